"""Settings of a server, its address, and the checks that it is safe."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final
from urllib.parse import urlsplit

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.serve.acl import Access
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.same_site import AllowedSites
from streamhouse_spark.storage.s3.sts import parse_partition

HOST: Final = "127.0.0.1"
PORT: Final = 8181


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address of a server, and its certificate."""

    host: str = HOST
    port: int = PORT
    """0 for a free port."""
    flight_port: int | None = None
    """Port of Arrow Flight on the same host; None to disable it, 0 for a free port."""
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
        """Raise `InvalidOptionError` if other hosts could read or write without a token, or read the traffic."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidOptionError("--tls-cert and --tls-key require each other: give both, or neither")
        if self.allows_insecure or _is_loopback(self.host):
            return
        missing = ["--token-file or --access"] if access.is_open else []
        missing += [] if self.tls_cert else ["--tls-cert and --tls-key"]
        if missing:
            raise InvalidOptionError(
                f"--host {self.host} is reached by other machines, and {' and '.join(missing)} is missing: anybody "
                "there could read and write, or read along; give it, or say --insecure where something before this "
                "server does both"
            )

    def require_certificate(self) -> None:
        """Raise `InvalidOptionError` if the certificate and its key cannot be used."""
        if self.tls_cert is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ValueError) as error:  # `ssl.SSLError` is an OSError
            raise InvalidOptionError(
                f"the certificate {self.tls_cert} and its key cannot be used: {error}; give both as PEM files"
            ) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


AccessOf = Callable[[], Access]
"""Returns the current access rights."""
GRACE_MS: Final = 3_600_000
_SCHEMES: Final = ("s3", "s3a")


@dataclass(frozen=True, slots=True)
class VendOptions:
    role_arn: str
    seconds: int = 3_600
    """Lifetime of credentials. Stores accept 900 and more."""

    def require_usable(self, url: str) -> None:
        """Raise `InvalidOptionError` for an invalid role, or a warehouse that S3 credentials cannot open."""
        parse_partition(self.role_arn)
        if urlsplit(url).scheme not in _SCHEMES:
            raise InvalidOptionError(
                f"--vend-role gives credentials of S3, and the warehouse {url} is elsewhere; leave it out"
            )


@dataclass(frozen=True, slots=True)
class ServeOptions:
    access: AccessOf = Access
    client_config: Mapping[str, str] = field(default_factory=dict)
    """Properties for Iceberg clients, such as ``s3.region``. No credentials."""
    grace_ms: int = GRACE_MS
    """Minimum time for which the files of a table's hot rows stay readable."""
    audit: AuditLog | None = None
    lake_after_s: float | None = None
    """Time after which an engine gets the lake alone, if hot rows are not ready; None waits for them."""
    vend: VendOptions | None = None
    """Credential vending for the files of tables; None disables it."""
    sites: AllowedSites = AllowedSites()
