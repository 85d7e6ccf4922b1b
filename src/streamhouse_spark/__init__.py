"""streamhouse-spark: one table with a hot Arrow log and an open lake, for Spark and Python, without a server.

Tables and warehouses are loaded lazily, because each Python worker of Spark imports this module and uses few of its
names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from streamhouse_spark.core.types import BucketOffsets, OffsetRange, Transaction
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    ConstraintViolatedError,
    ConsumerFencedError,
    CorruptDataError,
    DifferentHistoryError,
    ErrorKind,
    FormatVersionError,
    InvalidNameError,
    InvalidOptionError,
    LakeMismatchError,
    LakeRolledBackError,
    MissingExtraError,
    OffsetsTrimmedError,
    ProducerFencedError,
    SchemaMismatchError,
    SnapshotExpiredError,
    StorageError,
    StreamhouseError,
    TableExistsError,
    TableNotFoundError,
    TransactionConflictError,
    WarehouseMovedError,
    WarehouseNotFoundError,
    WriterFullError,
    WriterStoppedError,
)
from streamhouse_spark.spark import (
    RefreshService,
    TieringService,
    cdc,
    configure,
    delta_join,
    lookup_join,
    materialize,
    optimize,
    register,
    tier,
)

if TYPE_CHECKING:
    from streamhouse_spark.log.consumers import LogPosition
    from streamhouse_spark.metrics import export_metrics
    from streamhouse_spark.table.polars_scan import scan_polars
    from streamhouse_spark.table.table import Table
    from streamhouse_spark.warehouse.relocation import relocate
    from streamhouse_spark.warehouse.scan import scan
    from streamhouse_spark.warehouse.warehouse import Warehouse

__version__ = "0.1.0"

__all__ = [
    "BucketOffsets",
    "CommitConflictError",
    "CommitStateUnknownError",
    "ConstraintViolatedError",
    "ConsumerFencedError",
    "CorruptDataError",
    "DifferentHistoryError",
    "ErrorKind",
    "FormatVersionError",
    "InvalidNameError",
    "InvalidOptionError",
    "LakeMismatchError",
    "LakeRolledBackError",
    "LogPosition",
    "MissingExtraError",
    "OffsetRange",
    "OffsetsTrimmedError",
    "ProducerFencedError",
    "RefreshService",
    "SchemaMismatchError",
    "SnapshotExpiredError",
    "StorageError",
    "StreamhouseError",
    "Table",
    "TableExistsError",
    "TableNotFoundError",
    "TieringService",
    "Transaction",
    "TransactionConflictError",
    "Warehouse",
    "WarehouseMovedError",
    "WarehouseNotFoundError",
    "WriterFullError",
    "WriterStoppedError",
    "__version__",
    "cdc",
    "configure",
    "delta_join",
    "export_metrics",
    "lookup_join",
    "materialize",
    "optimize",
    "register",
    "relocate",
    "scan",
    "scan_polars",
    "tier",
]

_HOMES: Final = {
    "LogPosition": "log.consumers",
    "Table": "table.table",
    "scan_polars": "table.polars_scan",
    "export_metrics": "metrics",
    "Warehouse": "warehouse.warehouse",
    "relocate": "warehouse.relocation",
    "scan": "warehouse.scan",
}
"""Lazily loaded public name → module."""


if not TYPE_CHECKING:  # to a type checker, the module would have any attribute

    def __getattr__(name: str) -> Any:
        """Load the module of a public name and store the name as an attribute."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
