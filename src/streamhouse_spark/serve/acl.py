"""Access control of a server: its clients, the tables that they may read or write, and their tokens.

Clients are defined in a token file (``--token-file``) or an access file (``--access``). An access file may also name an
identity provider (OpenID Connect; RFC 7519, RFC 9068), whose signed tokens are validated locally. Its public keys are
fetched if a token uses an unknown key, but at most once per `_REFRESH_MS`, so that forged tokens cannot overload it.
"""

from __future__ import annotations

import difflib
import hashlib
import hmac
import json
import logging
import math
import os
import re
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from streamhouse_spark.config.table_properties import VIEW
from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.concurrency import new_lock, try_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import TableName, TablePath
from streamhouse_spark.core.warehouse_layout import parse_database, parse_table_name
from streamhouse_spark.errors import (
    InvalidNameError,
    InvalidOptionError,
    NotAuthorizedError,
    StorageError,
    StreamhouseError,
    TableNotFoundError,
    truncate_message,
)
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table.refresh_commit import last_refresh

if TYPE_CHECKING:
    from jwt import PyJWK

Right = Literal["read", "write"]
_ALL: Final = "*"
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Public-key algorithms. With a shared secret, the server could issue tokens."""
OIDC_PREFIX: Final = "oidc:"
"""Prefix of the names of a provider's clients, so that they differ from the names in the access file."""
_LEEWAY_S: Final = 60
_REFRESH_MS: Final = 60_000
_AGE_MS_MAX: Final = 3_600_000
"""Age at which keys are fetched again, because the provider may have revoked a key."""
_RESPONSE_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 5
_MALFORMED_TOKEN_ERRORS: Final = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
"""Errors for malformed tokens in addition to those of the library, such as for times that are not numbers."""
_DEFINITION_SUFFIXES: Final = ("lineage", "options")
"""System tables that contain the query of a materialized table or the names of its sources."""
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
Fetch = Callable[[str], bytes]
logger = logging.getLogger(__name__)
_RIGHTS: Final = ("read", "write")
_TOKEN_CHARS_MIN: Final = 16
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_CHECK_MS: Final = 2_000
_SECTIONS: Final = ("requests_per_second", "clients", "groups", "oidc")
_CLIENT: Final = ("token_sha256", "requests_per_second", *_RIGHTS)
_GROUP: Final = ("requests_per_second", *_RIGHTS)
_OIDC: Final = ("issuer", "audience", "jwks_url", "groups_claim", "name_claim")


@dataclass(frozen=True, slots=True)
class TableGrant:
    """The tables of a grant: one table, all tables of a database, or all tables. None matches any name."""

    database: str | None = None
    table: str | None = None

    def covers(self, path: TablePath) -> bool:
        return self.database in (None, path.database) and self.table in (None, path.base.table)


ALL_TABLES: Final = TableGrant()


def parse_pattern(text: str) -> TableGrant:
    """Parse ``*``, ``<database>.*`` or ``<database>.<table>``. Raises `InvalidNameError`."""
    if text == _ALL:
        return ALL_TABLES
    database, _, table = text.partition(".")
    if table == _ALL:
        return TableGrant(parse_database(database))
    name = parse_table_name(text)
    if name.suffix is not None:
        raise InvalidNameError(f"{text[:80]!r}: rights on a table include its system tables; leave out ${name.suffix}")
    if name.path.branch is not None:
        raise InvalidNameError(f"{text[:80]!r}: rights on a table include its branches; use {name.path.base}")
    return TableGrant(name.path.database, name.path.table)


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the server, with the tables that it may read or write. Write includes read."""

    name: str
    readable: tuple[TableGrant, ...] = ()
    writable: tuple[TableGrant, ...] = ()
    requests_per_s: float | None = None
    """Rate limit; None for the server's limit per client."""
    expires_s: float | None = None
    """Unix time at which the client's token expires, or None."""

    def can(self, right: Right, path: TablePath) -> bool:
        granted = self.writable if right == "write" else (*self.readable, *self.writable)
        return any(pattern.covers(path) for pattern in granted)

    def can_read_all(self) -> bool:
        return ALL_TABLES in self.readable or ALL_TABLES in self.writable

    def can_see_database(self, database: str) -> bool:
        """Return whether the client has a right on the database or on one of its tables."""
        return any(pattern.database in (None, database) for pattern in (*self.readable, *self.writable))

    def filter_readable(self, names: Iterable[str]) -> list[str]:
        """Return the tables ``<database>.<table>`` that the client may read."""
        return [name for name in names if self.can("read", parse_table_name(name).path)]


ANONYMOUS: Final = Client("anybody", writable=(ALL_TABLES,))
"""The client of a server without tokens."""


def require_right(client: Client, right: Right, path: TablePath) -> None:
    """Raise an error if the client does not have the right on a table.

    Raises `NotAuthorizedError` if the client may read the table but not write it, and `TableNotFoundError` if it may
    not read the table, whether or not the table exists. Sends no storage request.
    """
    if not client.can("read", path):
        raise table_not_found_error(client, path)
    if not client.can(right, path):
        raise NotAuthorizedError(
            f'the client {client.name} may not {right} {path}; request the right, {right} = ["{path}"] in the '
            "server's access file"
        )


def can_see_definition(client: Client, state: TableState) -> bool:
    """Return whether the client may see the query of a materialized table, which names its sources.

    The client must have the right to read every source. Before the first refresh, the sources are unknown, and only
    clients that may read all tables see the query.
    """
    if VIEW not in state.properties or client.can_read_all():
        return True
    _, lineage = last_refresh(state)
    return lineage is not None and all(
        client.can("read", parse_table_name(source.name).path) for source in lineage.sources
    )


def require_definition(client: Client, name: TableName, state: TableState) -> None:
    """Raise `TableNotFoundError` for a system table that shows a view's definition, if the client may not see that."""
    if name.suffix in _DEFINITION_SUFFIXES and not can_see_definition(client, state):
        raise table_not_found_error(client, name)


def table_not_found_error(client: Client, path: TablePath | TableName) -> TableNotFoundError:
    """Return the error for a table that does not exist, or that a client may not see."""
    return TableNotFoundError(
        f"table {path} does not exist, or the client {client.name} has no right on it; request the right, or use a "
        "listed table"
    )


def database_not_found_error(client: Client, database: str) -> TableNotFoundError:
    """Return the error for a database that does not exist, or that a client may not see."""
    return TableNotFoundError(
        f"database {database[:100]} does not exist, or the client {client.name} has no right on a table of it; request "
        "a right, or use a listed database",
        condition="DATABASE_NOT_FOUND",
    )


def hide_names(
    error: StreamhouseError, client: Client, table: str | None, exists: Callable[[str], bool]
) -> StreamhouseError:
    """Return the error to send to a client instead of an error about a table.

    The error for a missing table may suggest other tables, or the new name of the table, which the client may not see.
    """
    if table is None or not isinstance(error, TableNotFoundError) or client.can_read_all():
        return error
    try:
        return error if exists(table) else table_not_found_error(client, parse_table_name(table).path)
    except StreamhouseError as failure:
        return failure


def merge_clients(name: str, clients: Sequence[Client], expires_s: float | None) -> Client:
    """Return a client with the rights of several clients, such as of a user's groups."""
    rates = [client.requests_per_s for client in clients if client.requests_per_s is not None]
    return Client(
        name,
        tuple(dict.fromkeys(pattern for client in clients for pattern in client.readable)),
        tuple(dict.fromkeys(pattern for client in clients for pattern in client.writable)),
        max(rates) if rates else None,
        expires_s,
    )


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
        """Return the client of a token, with the rights of the user's groups; None for an invalid token.

        Raises `StorageError` if the token's key is unknown and the provider does not respond.
        """
        try:
            claims = self._claims(token)
            if claims is None or not math.isfinite(claims["exp"]):  # raises `TypeError` for a string
                return None
            claim = claims.get(self.groups_claim, [])
            names = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
            groups = [self.groups[name] for name in names if isinstance(name, str) and name in self.groups]
            name = truncate_message(str(claims.get(self.name_claim) or claims.get("sub") or "unnamed"))[:200]
            return merge_clients(OIDC_PREFIX + name, groups, float(claims["exp"]) + _LEEWAY_S)
        except _MALFORMED_TOKEN_ERRORS:
            return None

    def _claims(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token; None if its signature, issuer, audience or times are invalid."""
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
    """The public keys of an identity provider, by key id. Safe for threads."""

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
        """Return the key with this id, or None. If the provider has one key, tokens may omit the id.

        Raises `StorageError` if the key is unknown and the provider did not respond.
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
                    f"cannot fetch the keys of {self._issuer}: {self._failure}; retry when the identity provider "
                    "responds",
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
        """Fetch the keys. If that fails, the previous keys stay."""
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
        """Return the URL of the provider's keys (OpenID Connect Discovery 1.0, section 4)."""
        document = _parse_object(self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"))
        if document.get("issuer") != self._issuer:
            raise ValueError(f"the issuer is {str(document.get('issuer'))[:200]!r}")
        url = str(document.get("jwks_uri"))
        require_secure(url)
        return url


def require_secure(url: str) -> None:
    """Raise `InvalidOptionError` for a URL whose responses an attacker on the network could forge."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise InvalidOptionError(f"the URL of an identity provider is {url[:200]!r}, expected https")


def fetch_body(url: str) -> bytes:
    """Fetch a URL and return the body of the response. Raises `OSError`."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - `require_secure`
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - as before
        body: bytes = response.read(_RESPONSE_BYTES_MAX + 1)
    if len(body) > _RESPONSE_BYTES_MAX:
        raise OSError(f"the response of {url} has more than {_RESPONSE_BYTES_MAX >> 20} MiB")
    return body


def _parse_object(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("the response is not a JSON object")  # noqa: TRY004 - invalid data
    return value


@dataclass(frozen=True, slots=True)
class Access:
    """The clients of a server by token, and its token issuer. Without both, every request has all rights."""

    clients: Mapping[bytes, Client] = field(default_factory=dict, repr=False)
    """SHA-256 of a token → its client."""
    issuer: TokenIssuer | None = None
    requests_per_s: float | None = None
    """Requests per second that each client may send; None for no limit."""

    @property
    def is_open(self) -> bool:
        return not self.clients and self.issuer is None

    def client_of(self, authorization: str | None) -> Client | None:
        """Return the client of an ``Authorization`` header; None without a valid token.

        Compares all tokens in constant time, so that response times reveal nothing. Must not be called in an event
        loop, because it may request the issuer's keys. Raises `StorageError` if the issuer does not respond.
        """
        if self.is_open:
            return ANONYMOUS
        scheme, _, credentials = (authorization or "").partition(" ")
        token = credentials.strip() if scheme.casefold() == "bearer" else ""
        if not token:
            return None
        digest = digest_of(token)
        match: Client | None = None
        for token_digest, client in self.clients.items():
            if hmac.compare_digest(token_digest, digest):
                match = client
        if match is None and self.issuer is not None:
            match = self.issuer.client_of(token)
        return match


AccessOf = Callable[[], Access]
"""Returns the current access rights."""


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def parse_tokens(path: str) -> Access:
    """Read a token file, whose lines ``read TOKEN`` and ``write TOKEN`` grant rights on all tables.

    Raises `InvalidOptionError` for an unreadable file or a malformed line. Errors never contain a token.
    """
    lines = _read_text(path, "--token-file").splitlines()
    clients: dict[bytes, Client] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in _RIGHTS or len(words[1]) < _TOKEN_CHARS_MIN:
            raise InvalidOptionError(
                f"--token-file {path}, line {number}: expected 'read TOKEN' or 'write TOKEN' with a token of at least "
                f"{_TOKEN_CHARS_MIN} characters; create a token with: openssl rand -hex 32"
            )
        grants = ((ALL_TABLES,), ()) if words[0] == "read" else ((), (ALL_TABLES,))
        clients[digest_of(words[1])] = Client(f"line {number}", *grants)
    if not clients:
        raise InvalidOptionError(f"--token-file {path} has no token; write a line 'read TOKEN' or 'write TOKEN'")
    return Access(clients)


def parse_access(path: str, clock: Clock) -> Access:
    """Read an access file in TOML: ``[clients.<name>]``, ``[groups.<name>]``, ``[oidc]``, ``requests_per_second``.

    Raises `InvalidOptionError` for an unreadable file, and for an unknown name, because misspelt rights must not be
    ignored.
    """
    try:
        document = tomllib.loads(_read_text(path, "--access"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidOptionError(f"--access {path} is not valid TOML: {error}; correct the line") from error
    return _Parser(path, clock).access(document)


class _Parser:
    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def access(self, document: Mapping[str, Any]) -> Access:
        self._require_known(document, _SECTIONS, "")
        clients: dict[bytes, Client] = {}
        for name, fields in self._tables(document, "clients").items():
            where = f"[clients.{name}]"
            self._require_known(fields, _CLIENT, where)
            if name.startswith(OIDC_PREFIX):
                raise self._error(f"{where}: names with the prefix {OIDC_PREFIX} are reserved; choose another name")
            digest = fields.get("token_sha256")
            if not isinstance(digest, str) or not _DIGEST.match(digest):
                raise self._error(
                    f"{where} requires token_sha256, the SHA-256 of the client's token as 64 hexadecimal digits in "
                    "lower case; compute it with: printf %s TOKEN | sha256sum"
                )
            if bytes.fromhex(digest) in clients:
                raise self._error(f"{where} has the token of another client; use one token per client")
            clients[bytes.fromhex(digest)] = self._client(name, fields, where)
        issuer = self._issuer(document)
        if not clients and issuer is None:
            raise self._error("found neither a client nor [oidc]; add [clients.<name>]")
        return Access(clients, issuer, self._rate(document, ""))

    def _issuer(self, document: Mapping[str, Any]) -> TokenIssuer | None:
        groups = {}
        for name, fields in self._tables(document, "groups").items():
            self._require_known(fields, _GROUP, f"[groups.{name}]")
            groups[name] = self._client(name, fields, f"[groups.{name}]")
        if "oidc" not in document:
            if groups:
                raise self._error("[groups] requires [oidc], which is missing; add it")
            return None
        fields = document["oidc"]
        if not isinstance(fields, dict):
            raise self._error("oidc is not a section; write [oidc], and its settings in the lines below")
        self._require_known(fields, _OIDC, "[oidc]")
        texts = {name: self._word(fields, name) for name in _OIDC if name in fields}
        for name in ("issuer", "audience"):
            if name not in texts:
                raise self._error(f"[oidc] requires {name}, to reject tokens for other servers; add it")
        keys = SigningKeys(texts["issuer"], texts.get("jwks_url"), self._clock)
        claims = {name: texts[name] for name in ("groups_claim", "name_claim") if name in texts}
        return TokenIssuer(texts["issuer"], texts["audience"], groups, keys, **claims)

    def _client(self, name: str, fields: Mapping[str, Any], where: str) -> Client:
        patterns = {right: self._patterns(fields.get(right, []), f"{where} {right}") for right in _RIGHTS}
        return Client(name, patterns["read"], patterns["write"], self._rate(fields, where))

    def _patterns(self, patterns: object, where: str) -> tuple[TableGrant, ...]:
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise self._error(
                f'{where} is not a list of tables; write, for example, {where.rpartition(" ")[2]} = ["sales.*"]'
            )
        try:
            return tuple(parse_pattern(pattern) for pattern in patterns)
        except InvalidNameError as error:
            raise self._error(f"{where}: {error}; expected '*', '<database>.*' or '<database>.<table>'") from error

    def _rate(self, fields: Mapping[str, Any], where: str) -> float | None:
        rate = fields.get("requests_per_second")
        if rate is None:
            return None
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e6:
            raise self._error(f"{where} requests_per_second is {str(rate)[:40]}, expected a number above 0".lstrip())
        return float(rate)

    def _tables(self, document: Mapping[str, Any], section: str) -> Mapping[str, Mapping[str, Any]]:
        tables = document.get(section, {})
        if not isinstance(tables, dict) or not all(isinstance(fields, dict) for fields in tables.values()):
            raise self._error(
                f"{section} is not a section of names; write [{section}.<name>], and the rights in the lines below"
            )
        return tables

    def _word(self, fields: Mapping[str, Any], name: str) -> str:
        value = fields[name]
        if not isinstance(value, str) or not value:
            raise self._error(f"[oidc] {name} is {str(value)[:40]!r}, expected a string; write it in quotes")
        return value

    def _require_known(self, fields: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
        for name in fields:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(names)}"
                raise self._error(f"{where} {name[:60]!r} is unknown; {hint}".lstrip())

    def _error(self, text: str) -> InvalidOptionError:
        return InvalidOptionError(f"--access {self._path}: {text}")


class ReloadingAcl:
    """Access rights that are reloaded within seconds after their file changed.

    An invalid file is logged, and the previous rights stay. Safe for threads.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        """Raises the errors of `parse_access`."""
        self._path = path
        self._clock = clock
        self._lock = new_lock()
        self._file_version = _file_version(path)
        self._access = parse_access(path, clock)
        self._checked_ms = clock.boot_ms()

    def __call__(self) -> Access:
        with self._lock:
            now_ms = self._clock.boot_ms()
            if now_ms - self._checked_ms >= _CHECK_MS:
                self._checked_ms = now_ms
                self._reload_if_changed()
            return self._access

    def _reload_if_changed(self) -> None:
        version = _file_version(self._path)
        if version == self._file_version:
            return
        self._file_version = version
        try:
            self._access = parse_access(self._path, self._clock)
        except InvalidOptionError as error:
            logger.error("kept the previous access rights, because their file is invalid: %s", error)  # noqa: TRY400
        else:
            logger.info("reloaded the access rights from %s", self._path)


def _file_version(path: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 - as `open`
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read_text(path: str, option: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"{option} {path} cannot be read: {error}; give a readable UTF-8 text file") from error
