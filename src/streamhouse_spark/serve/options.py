"""The settings of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from streamhouse_spark.serve.access import Access

GRACE_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class ServeOptions:
    access: Access = field(default_factory=Access)
    client_config: Mapping[str, str] = field(default_factory=dict)
    """Properties that Iceberg's clients get, such as ``s3.region``. No credentials."""
    grace_ms: int = GRACE_MS
    """Time for which the files of a table's hot rows stay readable, at least."""
