"""Settings of a server, its address, and checks that the settings are secure."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import field
from typing import Final
from urllib.parse import urlsplit

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.serve.acl import Access, AccessOf
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.same_site import AllowedSites
from streamhouse_spark.storage.s3.sts import parse_partition

HOST: Final = "127.0.0.1"
PORT: Final = 8181
GRACE_MS: Final = 3_600_000
_SCHEMES: Final = ("s3", "s3a")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address of a server, and its certificate."""

    host: str = HOST
    port: int = PORT
    """0 selects a free port."""
    flight_port: int | None = None
    """Port of Arrow Flight; None disables it, 0 selects a free port."""
    tls_cert: str | None = None
    tls_key: str | None = field(default=None, repr=False)
    allows_insecure: bool = False

    @property
    def url_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def names(self) -> tuple[str, ...]:
        """The host name, or nothing if the host is an address."""
        return (self.host,) if any(c.isalpha() for c in self.host) and ":" not in self.host else ()

    def require_safe(self, access: Access) -> None:
        """Raise `InvalidOptionError` if other hosts could use the server without a token, or read the traffic."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidOptionError("--tls-cert and --tls-key require each other; set both, or neither")
        if self.allows_insecure or _is_loopback(self.host):
            return
        missing = ["--token-file or --access"] if access.is_open else []
        missing += [] if self.tls_cert else ["--tls-cert and --tls-key"]
        if missing:
            raise InvalidOptionError(
                f"--host {self.host} is reachable from other machines, and {' and '.join(missing)} is missing; add it, "
                "or --insecure if a proxy in front of the server authenticates clients and encrypts the traffic"
            )

    def require_certificate(self) -> None:
        """Raise `InvalidOptionError` for an unusable certificate or key."""
        if self.tls_cert is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ValueError) as error:  # `ssl.SSLError` is an OSError
            raise InvalidOptionError(
                f"cannot load the certificate {self.tls_cert} and its key: {error}; specify both as PEM files"
            ) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class VendOptions:
    role_arn: str
    seconds: int = 3_600
    """Lifetime of credentials. Stores accept at least 900."""

    def require_usable(self, url: str) -> None:
        """Raise `InvalidOptionError` for an invalid role, or a warehouse that is not on S3."""
        parse_partition(self.role_arn)
        if urlsplit(url).scheme not in _SCHEMES:
            raise InvalidOptionError(f"--vend-role requires a warehouse on S3, found {url}; leave it out")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    access: AccessOf = Access
    client_config: Mapping[str, str] = field(default_factory=dict)
    """Properties for Iceberg clients, such as ``s3.region``, never credentials."""
    grace_ms: int = GRACE_MS
    """Minimum time for which the files of a table's hot rows stay readable."""
    audit: AuditLog | None = None
    lake_after_s: float | None = None
    """Time to wait for hot rows, after which the response has only the lake's rows; None waits without limit."""
    vend: VendOptions | None = None
    """Credential vending; None disables it."""
    sites: AllowedSites = AllowedSites()
