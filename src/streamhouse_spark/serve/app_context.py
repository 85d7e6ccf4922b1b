"""Components that HTTP and Arrow Flight share in one server."""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.serve.admission import Admission
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.metrics import ServerCounters
from streamhouse_spark.serve.open_tables import OpenTables


@dataclass(frozen=True, slots=True)
class AppContext:
    tables: OpenTables
    admission: Admission
    counts: ServerCounters
    audit: AuditLog | None = None
