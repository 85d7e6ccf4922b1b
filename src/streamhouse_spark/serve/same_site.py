"""Checks of ``Host`` and ``Origin``: pages of other sites must not use a server that the user's browser can reach.

A browser sends requests of any page to any address, with the page's origin. In DNS rebinding, the host of a page
resolves to this machine, so the browser considers the page the server's own; but the requests still have its host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from starlette.datastructures import Headers

ANY_HOST: Final = "*"
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?\Z")
_NAME: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\Z")
_PORTS: Final = {"http": "80", "https": "443"}
_OWN_SITES: Final = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejection of a request, with its HTTP status."""

    status: int
    text: str
    wait_s: int = 0


@dataclass(frozen=True, slots=True)
class AllowedSites:
    """The host names of a server, and the origins whose pages may use it.

    Addresses and ``localhost`` are always allowed as host names, because pages of other sites cannot have them.
    """

    hosts: tuple[str, ...] = ()
    """Lower case, without ports; `ANY_HOST` for all."""
    origins: tuple[str, ...] = ()
    """Origins such as ``https://streams.example.com``. The server's own origin is always allowed."""

    @classmethod
    def of(cls, hosts: Sequence[str], origins: Sequence[str]) -> AllowedSites:
        """Parse the options ``--allowed-host`` and ``--allowed-origin``. Raises `InvalidOptionError`."""
        return cls(tuple(_parse_host(text) for text in hosts), tuple(_parse_origin(text) for text in origins))

    def check(self, headers: Headers, *, requires_token: bool) -> Rejection | None:
        """Return the rejection of a request, or None. HTTP/1.0 clients may omit Host, but browsers never do.

        A server that requires tokens accepts every host name if none is configured, because pages have no token.
        """
        host = headers.get("host")
        if host is not None and (self.hosts or not requires_token) and not self._answers_to(host):
            return Rejection(
                421,
                f"the host {host[:100]!r} is not allowed, because it may be a web page whose name resolves to this "
                "server; use the server's address, or start the server with --allowed-host and the host",
            )
        return self._check_origin(headers, host)

    def _answers_to(self, host: str) -> bool:
        authority = _AUTHORITY.match(host)
        if authority is None:
            return False
        name = authority["host"].lower().removesuffix(".")
        return ANY_HOST in self.hosts or name == "localhost" or _is_address(name) or name in self.hosts

    def _check_origin(self, headers: Headers, host: str | None) -> Rejection | None:
        origins = headers.getlist("origin")
        for origin in origins:
            if origin not in self.origins and not _is_own_origin(origin, host):
                return Rejection(
                    403,
                    f"pages of the origin {origin[:100]!r} may not use this server; if they are the server's own pages "
                    "behind a proxy, start the server with --allowed-origin and the origin",
                )
        site, is_visit = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode") == "navigate"
        if not origins and site is not None and site not in _OWN_SITES and not is_visit:
            return Rejection(403, "pages of other sites may not use this server; open its own page")
        return None


def _is_own_origin(origin: str, host: str | None) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if host is None or parts.scheme not in _PORTS:
        return False
    return _normalize_authority(parts.netloc, parts.scheme) == _normalize_authority(host, parts.scheme) != ""


def _normalize_authority(authority: str, scheme: str) -> str:
    match = _AUTHORITY.match(authority)
    return f"{match['host'].lower()}:{match['port'] or _PORTS[scheme]}" if match else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _parse_host(text: str) -> str:
    name = text.strip().lower().removesuffix(".")
    if name != ANY_HOST and not _NAME.match(name) and not _is_address(name):
        raise InvalidOptionError(
            f"--allowed-host is {text[:80]!r}, expected a host name without scheme and port, such as "
            f"streams.example.com, or {ANY_HOST} for all"
        )
    return name


def _parse_origin(text: str) -> str:
    scheme, _, authority = text.strip().lower().partition("://")
    if scheme not in _PORTS or not _AUTHORITY.match(authority):
        raise InvalidOptionError(
            f"--allowed-origin is {text[:80]!r}, expected scheme, host and port as browsers send them, such as "
            "https://streams.example.com"
        )
    return f"{scheme}://{authority}".removesuffix(f":{_PORTS[scheme]}")
