"""streamhouse-spark: one table with a hot Arrow log and an open lake, for Spark and Python, without a server."""

from streamhouse_spark.core.model import BucketOffsets, OffsetRange, Transaction
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
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
    SchemaMismatchError,
    SnapshotExpiredError,
    StorageError,
    StreamhouseError,
    TableExistsError,
    TableNotFoundError,
    TransactionConflictError,
    WarehouseMovedError,
    WarehouseNotFoundError,
)
from streamhouse_spark.log.commits.position import LogPosition
from streamhouse_spark.spark import TieringService, configure, delta_join, lookup_join, register, tier
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.relocation import relocate
from streamhouse_spark.warehouse.warehouse import Warehouse

__version__ = "0.1.0"

__all__ = [
    "BucketOffsets",
    "CommitConflictError",
    "CommitStateUnknownError",
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
    "__version__",
    "configure",
    "delta_join",
    "lookup_join",
    "register",
    "relocate",
    "tier",
]
