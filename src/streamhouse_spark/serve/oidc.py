"""Tokens of an identity provider: OpenID Connect's signed JSON web tokens (RFC 7519, RFC 9068), checked without it.

A token is valid by its signature, its issuer, its audience and its times. The provider's public keys are fetched when a
token names one that is not known, and not more often than `_REFRESH_MS`, so that made-up tokens cannot be used to
overload it.
"""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.fork_safety import new_lock, try_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, StorageError, fit_to_show
from streamhouse_spark.serve.rights import Client, merge_clients

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public key. A secret that the server shares with the provider would let it make tokens."""
OIDC_PREFIX: Final = "oidc:"
"""Beginning of the names of clients that a provider tells: so nobody has the name of a client with a token."""
_LEEWAY_S: Final = 60
_REFRESH_MS: Final = 60_000
_AGE_MS_MAX: Final = 3_600_000
"""Keys that are older are fetched again: the provider may have withdrawn one."""
_ANSWER_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 5
_MALFORMED_TOKEN_ERRORS: Final = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
"""Errors for tokens of another form, besides the library's own, such as for times that are no numbers."""
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

Fetch = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """An identity provider, and the rights of its groups."""

    issuer: str
    audience: str
    groups: Mapping[str, Client]
    keys: SigningKeys = field(repr=False)
    groups_claim: str = "groups"
    name_claim: str = "sub"

    def client_of(self, token: str) -> Client | None:
        """Return the client of a token, with the rights of all its groups; None for a token that is not valid.

        Raises `StorageError` where the key of a token is unknown and the provider cannot be asked.
        """
        try:
            claims = self._claims(token)
            if claims is None or not math.isfinite(claims["exp"]):  # a text, which is no time, is a `TypeError`
                return None
            claim = claims.get(self.groups_claim, [])
            names = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
            groups = [self.groups[name] for name in names if isinstance(name, str) and name in self.groups]
            name = fit_to_show(str(claims.get(self.name_claim) or claims.get("sub") or "unnamed"))[:200]
            return merge_clients(OIDC_PREFIX + name, groups, float(claims["exp"]) + _LEEWAY_S)
        except _MALFORMED_TOKEN_ERRORS:
            return None

    def _claims(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token whose signature, issuer, audience and times are right; None for another one."""
        import jwt

        try:
            key = self.keys.find_key(str(jwt.get_unverified_header(token).get("kid") or ""))
            if key is None:
                return None
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self.audience,
                issuer=self.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError:
            return None
        return claims


class SigningKeys:
    """The public keys of a provider, by the name that a token gives its key. Safe for threads."""

    def __init__(self, issuer: str, jwks_url: str | None, clock: Clock, fetch: Fetch | None = None) -> None:
        for url in (issuer, jwks_url):
            if url is not None:
                require_secure(url)
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._clock = clock
        self._fetch = fetch or fetch_body
        self._lock = new_lock()
        self._keys: dict[str, PyJWK] = {}
        self._fetched_ms: int | None = None
        self._failure: str | None = None

    def find_key(self, name: str) -> PyJWK | None:
        """Return the key of a name, and the only one of a provider that gives its key no name; None for an unknown one.

        Raises `StorageError` where it is unknown and the provider did not answer.
        """
        key = self._find_key(name)
        if key is not None:
            with try_lock(self._lock) as is_held:  # others go on with the keys of before
                if not is_held or not self._is_due(_AGE_MS_MAX):
                    return key
                self._fetch_keys()
                return self._find_key(name)
        with self._lock:
            if self._find_key(name) is None and self._is_due(_REFRESH_MS):
                self._fetch_keys()
            key = self._find_key(name)
            if key is None and self._failure is not None:
                raise StorageError(
                    f"the keys of {self._issuer} could not be fetched: {self._failure}; tokens that it signed with "
                    "other keys cannot be checked until it answers",
                    condition="IDENTITY_PROVIDER_UNAVAILABLE",
                )
            return key

    def _is_due(self, age_ms: int) -> bool:
        return self._fetched_ms is None or self._clock.boot_ms() - self._fetched_ms >= age_ms

    def _find_key(self, name: str) -> PyJWK | None:
        if not name and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    def _fetch_keys(self) -> None:
        """Fetch the keys. Those of before stay where that fails."""
        import jwt

        self._fetched_ms = self._clock.boot_ms()
        try:
            self._jwks_url = self._jwks_url or self._discover_keys_url()
            keys = jwt.PyJWKSet.from_dict(_parse_object(self._fetch(self._jwks_url))).keys
            self._keys = {str(key.key_id or ""): key for key in keys if key.public_key_use in (None, "sig")}
            self._failure = None
        except (OSError, ValueError, jwt.PyJWTError, InvalidOptionError) as error:
            self._failure = str(error)

    def _discover_keys_url(self) -> str:
        """Return where the provider says that its keys are (OpenID Connect Discovery 1.0, section 4)."""
        document = _parse_object(self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"))
        if document.get("issuer") != self._issuer:
            raise ValueError(f"it says that its name is {str(document.get('issuer'))[:200]!r}")
        url = str(document.get("jwks_uri"))
        require_secure(url)
        return url


def require_secure(url: str) -> None:
    """Raise `InvalidOptionError` for an address whose answers somebody between could forge."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise InvalidOptionError(f"{url[:200]!r}: keys of an identity provider are fetched by https alone; give such a URL")


def fetch_body(url: str) -> bytes:
    """Return the body of an answer. Raises `OSError`."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - `require_secure`
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as before
        body: bytes = answer.read(_ANSWER_BYTES_MAX + 1)
    if len(body) > _ANSWER_BYTES_MAX:
        raise OSError(f"the answer of {url} has more than {_ANSWER_BYTES_MAX >> 20} MiB")
    return body


def _parse_object(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - bad data, not a wrong call
    return value
