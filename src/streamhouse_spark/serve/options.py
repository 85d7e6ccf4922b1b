"""The settings of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from streamhouse_spark.serve.access import Access
from streamhouse_spark.serve.audit import AuditLog

AccessOf = Callable[[], Access]
"""Gives the rights as they are now."""
GRACE_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class ServeOptions:
    access: AccessOf = Access
    client_config: Mapping[str, str] = field(default_factory=dict)
    """Properties that Iceberg's clients get, such as ``s3.region``. No credentials."""
    grace_ms: int = GRACE_MS
    """Time for which the files of a table's hot rows stay readable, at least."""
    audit: AuditLog | None = None
