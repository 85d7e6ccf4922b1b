"""Tokens of an identity provider: signed JSON web tokens of OpenID Connect (RFC 7519, RFC 9068), validated locally.

A token is valid by its signature, issuer, audience and times. The provider's public keys are fetched if a token uses an
unknown key, but at most once per `_REFRESH_MS`, so that forged tokens cannot overload the provider.
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
from streamhouse_spark.errors import InvalidOptionError, StorageError, truncate_message
from streamhouse_spark.serve.rights import Client, merge_clients

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Public-key algorithms. With a shared secret, the server itself could issue tokens."""
OIDC_PREFIX: Final = "oidc:"
"""Prefix of client names that come from a provider, so that they never equal the name of a token's client."""
_LEEWAY_S: Final = 60
_REFRESH_MS: Final = 60_000
_AGE_MS_MAX: Final = 3_600_000
"""Age at which keys are fetched again: the provider may have revoked one."""
_ANSWER_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 5
_MALFORMED_TOKEN_ERRORS: Final = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of malformed tokens in addition to the library's own, such as times that are not numbers."""
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
        """Return the client of a token, with the rights of all its groups; None for an invalid token.

        Raises `StorageError` if the token's key is unknown and the provider does not respond.
        """
        try:
            claims = self._claims(token)
            if claims is None or not math.isfinite(claims["exp"]):  # raises `TypeError` for text
                return None
            claim = claims.get(self.groups_claim, [])
            names = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
            groups = [self.groups[name] for name in names if isinstance(name, str) and name in self.groups]
            name = truncate_message(str(claims.get(self.name_claim) or claims.get("sub") or "unnamed"))[:200]
            return merge_clients(OIDC_PREFIX + name, groups, float(claims["exp"]) + _LEEWAY_S)
        except _MALFORMED_TOKEN_ERRORS:
            return None

    def _claims(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token with valid signature, issuer, audience and times; None for any other."""
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
    """Public keys of a provider by key id. Safe for threads."""

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
        """Return the key with an id; None if unknown. A provider's single key without an id matches tokens without one.

        Raises `StorageError` if it is unknown and the provider did not respond.
        """
        key = self._find_key(name)
        if key is not None:
            with try_lock(self._lock) as is_held:  # other threads continue with the previous keys
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
        """Fetch the keys. On failure the previous keys stay."""
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
        """Return the provider's URL of its keys (OpenID Connect Discovery 1.0, section 4)."""
        document = _parse_object(self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"))
        if document.get("issuer") != self._issuer:
            raise ValueError(f"it reports the issuer {str(document.get('issuer'))[:200]!r}")
        url = str(document.get("jwks_uri"))
        require_secure(url)
        return url


def require_secure(url: str) -> None:
    """Raise `InvalidOptionError` for a URL whose responses an attacker on the network could forge."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise InvalidOptionError(f"{url[:200]!r}: keys of an identity provider require https; give such a URL")


def fetch_body(url: str) -> bytes:
    """Return the body of a response. Raises `OSError`."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - `require_secure`
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as before
        body: bytes = answer.read(_ANSWER_BYTES_MAX + 1)
    if len(body) > _ANSWER_BYTES_MAX:
        raise OSError(f"the answer of {url} has more than {_ANSWER_BYTES_MAX >> 20} MiB")
    return body


def _parse_object(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("the response is not a JSON object")  # noqa: TRY004 - bad data, not a wrong call
    return value
