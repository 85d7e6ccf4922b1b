"""Settings of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final
from urllib.parse import urlsplit

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.serve.access import Access
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.same_site import AllowedSites
from streamhouse_spark.storage.s3.sts import parse_partition

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
