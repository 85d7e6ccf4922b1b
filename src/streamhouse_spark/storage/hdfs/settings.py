"""Location and settings of an HDFS folder."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.storage.remote.settings import (
    CONNECT_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    mask_secrets,
    parse_seconds,
    parse_url,
    select_settings,
)

_PREFIX: Final = "hdfs."
_ADDRESS: Final = "hdfs.webhdfs.address"
_USER: Final = "hdfs.user"
_TOKEN: Final = "hdfs.delegation-token"  # noqa: S105 - the name of a setting
TOKEN_FILE: Final = "hdfs.delegation-token-file"  # noqa: S105 - the name of a setting
_NAMES: Final = (_ADDRESS, _USER, _TOKEN, TOKEN_FILE, "hdfs.connect-timeout", "hdfs.request-timeout")
_KERBEROS: Final = "hdfs.kerberos_ticket"
_IGNORED: Final = ("hdfs.host", "hdfs.port")
"""Settings of pyiceberg that the location already defines."""
_HTTP_PORT: Final = 9870
_URL: Final = re.compile(
    r"hdfs://(?P<host>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(?::\d{1,5})?(?:/(?P<path>.*))?\Z", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class HdfsAddress:
    """A cluster, and the settings to reach it. ``repr`` shows no secret."""

    namenodes: tuple[str, ...]
    """The WebHDFS URLs of the NameNodes, one of which is active."""
    user: str | None
    """The user of requests; None with a token, which identifies the user."""
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    """The path of a file with a delegation token that is renewed externally."""
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS

    @classmethod
    def parse(cls, url: str, settings: Mapping[str, str]) -> tuple[HdfsAddress, str]:
        """Return the address and the root's path, without slashes at its ends. Raises `InvalidOptionError`."""
        match = _URL.match(url)
        if match is None:
            shown = "a user name in it" if "@" in url else repr(url)
            raise InvalidOptionError(
                f"warehouse URL: found {shown}, expected hdfs://<host>:<port>/<path> with the NameNode's host, or the "
                f"name of a nameservice; a user belongs in the setting {_USER}"
            )
        path = (match["path"] or "").rstrip("/")
        if path and any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidOptionError(f"warehouse URL {url!r}: its path has an empty, '.' or '..' part; remove it")
        if ":" in path:
            raise InvalidOptionError(f"warehouse URL {url!r}: its path holds a colon, which HDFS does not take")
        ours = select_settings(settings, _PREFIX, (*_NAMES, _KERBEROS, *_IGNORED))
        if _KERBEROS in ours:
            raise InvalidOptionError(
                f"{_KERBEROS}: Kerberos is not supported; get a delegation token with the WebHDFS operation "
                f"GETDELEGATIONTOKEN, and set {_TOKEN}"
            )
        token, token_file = ours.get(_TOKEN) or None, ours.get(TOKEN_FILE) or None
        if token and token_file:
            raise InvalidOptionError(f"{_TOKEN} and {TOKEN_FILE} exclude each other: set one of them")
        if (token or token_file) and ours.get(_USER):
            raise InvalidOptionError(
                f"{_TOKEN if token else TOKEN_FILE} and {_USER} exclude each other: the token identifies the user"
            )
        address = cls(
            namenodes=_namenodes(ours.get(_ADDRESS), match["host"]),
            user=None if token or token_file else ours.get(_USER) or _own_user(),
            token=token,
            token_file=token_file,
            connect_timeout_seconds=parse_seconds(ours, "hdfs.connect-timeout", CONNECT_TIMEOUT_SECONDS),
            request_timeout_seconds=parse_seconds(ours, "hdfs.request-timeout", REQUEST_TIMEOUT_SECONDS),
        )
        return address, path

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return mask_secrets(self.token)


def _namenodes(setting: str | None, host: str) -> tuple[str, ...]:
    names = [name.strip() for name in (setting or "").split(",") if name.strip()] or [f"{host}:{_HTTP_PORT}"]
    urls = [parse_url(_ADDRESS, name if "://" in name else f"http://{name}", _USER) for name in names]
    return tuple(url for url in urls if url)


def _own_user() -> str:
    """Return the user that Hadoop's own clients would use."""
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (OSError, KeyError) as error:  # a container may run under a number without a name
        raise InvalidOptionError(f"the user of this process has no name ({error}): set {_USER}") from error
