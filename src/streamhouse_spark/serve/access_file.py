"""Files of access rights: a list of tokens (``--token-file``), or rights per table (``--access``)."""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError
from streamhouse_spark.serve.access import Access, digest_of
from streamhouse_spark.serve.oidc import OIDC_PREFIX, SigningKeys, TokenIssuer
from streamhouse_spark.serve.rights import ALL_TABLES, Client, TableGrant, parse_pattern

logger = logging.getLogger(__name__)

_RIGHTS: Final = ("read", "write")
_TOKEN_CHARS_MIN: Final = 16
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_CHECK_MS: Final = 2_000
_SECTIONS: Final = ("requests_per_second", "clients", "groups", "oidc")
_CLIENT: Final = ("token_sha256", "requests_per_second", *_RIGHTS)
_GROUP: Final = ("requests_per_second", *_RIGHTS)
_OIDC: Final = ("issuer", "audience", "jwks_url", "groups_claim", "name_claim")


def parse_tokens(path: str) -> Access:
    """Read a token file: one ``read TOKEN`` or ``write TOKEN`` per line, for all tables; write includes read.

    Raises `InvalidOptionError` for an unreadable file or a malformed line. No error contains a token.
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
                f"{_TOKEN_CHARS_MIN} characters; make one with: openssl rand -hex 32"
            )
        clients[digest_of(words[1])] = _line_client(f"line {number}", words[0])
    if not clients:
        raise InvalidOptionError(f"--token-file {path} has no token; write a line 'read TOKEN' or 'write TOKEN'")
    return Access(clients)


def _line_client(name: str, right: str) -> Client:
    return Client(name, writable=(ALL_TABLES,)) if right == "write" else Client(name, readable=(ALL_TABLES,))


def parse_access(path: str, clock: Clock) -> Access:
    """Read a TOML file of rights: ``[clients.<name>]``, ``[groups.<name>]``, ``[oidc]``, ``requests_per_second``.

    Raises `InvalidOptionError` for an unreadable file or an unknown name: a misspelt right must not be ignored
    silently.
    """
    try:
        document = tomllib.loads(_read_text(path, "--access"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidOptionError(f"--access {path} is not valid TOML: {error}; fix that line") from error
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
                raise self._error(
                    f"{where}: names that start with {OIDC_PREFIX} are reserved for [oidc]; choose another"
                )
            digest = fields.get("token_sha256")
            if not isinstance(digest, str) or not _DIGEST.match(digest):
                raise self._error(
                    f"{where} needs token_sha256, the SHA-256 of its token as 64 hexadecimal digits in lower case; "
                    "make it with: printf %s TOKEN | sha256sum"
                )
            if bytes.fromhex(digest) in clients:
                raise self._error(f"{where} has the token of another client; give each client its own")
            clients[bytes.fromhex(digest)] = self._client(name, fields, where)
        issuer = self._issuer(document)
        if not clients and issuer is None:
            raise self._error(
                "there is neither a client nor [oidc], so nobody could use the server; add [clients.<name>]"
            )
        return Access(clients, issuer, self._rate(document, ""))

    def _issuer(self, document: Mapping[str, Any]) -> TokenIssuer | None:
        groups = {}
        for name, fields in self._tables(document, "groups").items():
            self._require_known(fields, _GROUP, f"[groups.{name}]")
            groups[name] = self._client(name, fields, f"[groups.{name}]")
        if "oidc" not in document:
            if groups:
                raise self._error("[groups] needs [oidc], which is missing; add it")
            return None
        fields = document["oidc"]
        if not isinstance(fields, dict):
            raise self._error("oidc is not a section; write [oidc] and its settings below it")
        self._require_known(fields, _OIDC, "[oidc]")
        texts = {name: self._word(fields, name) for name in _OIDC if name in fields}
        for name in ("issuer", "audience"):
            if name not in texts:
                raise self._error(f"[oidc] needs {name}, to reject tokens for other servers; add it")
        keys = SigningKeys(texts["issuer"], texts.get("jwks_url"), self._clock)
        claims = {name: texts[name] for name in ("groups_claim", "name_claim") if name in texts}
        return TokenIssuer(texts["issuer"], texts["audience"], groups, keys, **claims)

    def _client(self, name: str, fields: Mapping[str, Any], where: str) -> Client:
        patterns = {right: self._patterns(fields.get(right, []), f"{where} {right}") for right in _RIGHTS}
        return Client(name, patterns["read"], patterns["write"], self._rate(fields, where))

    def _patterns(self, patterns: object, where: str) -> tuple[TableGrant, ...]:
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise self._error(
                f'{where} is not a list of tables; write for example {where.rpartition(" ")[2]} = ["sales.*"]'
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
            raise self._error(f"{section} is not a section of names; write [{section}.<name>] and its rights below")
        return tables

    def _word(self, fields: Mapping[str, Any], name: str) -> str:
        value = fields[name]
        if not isinstance(value, str) or not value:
            raise self._error(f"[oidc] {name} is {str(value)[:40]!r}, expected a text; write it in quotes")
        return value

    def _require_known(self, fields: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
        for name in fields:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                raise self._error(f"{where} {name[:60]!r} is unknown; {hint}".lstrip())

    def _error(self, text: str) -> InvalidOptionError:
        return InvalidOptionError(f"--access {self._path}: {text}")


class ReloadingAcl:
    """Access rights that follow their file: a right that is removed there ends within seconds, without a restart.

    An invalid file changes nothing and is logged. Safe for threads.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        """Raises `InvalidOptionError` like `parse_access`."""
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
