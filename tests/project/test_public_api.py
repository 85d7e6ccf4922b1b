"""Snapshot of the public API: names, errors and parameters. Removing a name breaks users; adding one is a promise."""

from __future__ import annotations

import inspect

import pytest

import streamhouse_spark as sh

NAMES = {
    "Warehouse", "Table", "TieringService", "tier", "register", "configure",
    "cdc", "lookup_join", "delta_join", "materialize", "optimize", "RefreshService", "relocate", "export_metrics",
    "scan", "scan_polars",
    "BucketOffsets", "LogPosition", "OffsetRange", "Transaction",
    "StreamhouseError", "ErrorKind", "WarehouseNotFoundError", "TableNotFoundError", "TableExistsError",
    "InvalidNameError", "InvalidOptionError", "SchemaMismatchError", "CommitConflictError", "CommitStateUnknownError",
    "ConstraintViolatedError", "ConsumerFencedError",
    "TransactionConflictError", "ProducerFencedError", "WriterFullError", "WriterStoppedError",
    "OffsetsTrimmedError", "SnapshotExpiredError", "LakeRolledBackError",
    "LakeMismatchError", "WarehouseMovedError", "DifferentHistoryError",
    "CorruptDataError", "FormatVersionError", "MissingExtraError",
    "StorageError",
    "__version__",
}  # fmt: skip


def test_public_names_are_those_of_the_snapshot():
    assert set(sh.__all__) == NAMES, "add a name here if users shall have it"
    assert sorted(sh.__all__) == sh.__all__
    for name in sh.__all__:
        assert getattr(sh, name) is not None


def test_every_public_error_has_a_kind():
    errors = {n for n in NAMES if n.endswith("Error") and n != "StreamhouseError"}
    assert len(errors) == 24
    for name in errors:
        error = getattr(sh, name)
        assert issubclass(error, sh.StreamhouseError)
        assert isinstance(error.kind, sh.ErrorKind)
    kinds = {k.name for k in sh.ErrorKind}
    assert kinds == {"CONFLICT", "FENCED", "UNAVAILABLE", "INVALID", "CORRUPT", "INTERNAL"}


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (sh.Warehouse.create_table, ["name", "schema", "primary_key", "partition_by", "buckets", "properties"]),
        (sh.Warehouse.table, ["name"]),
        (sh.Warehouse.view, ["name"]),
        (sh.Warehouse.tables, ["database"]),
        (sh.Warehouse.drop_table, ["name", "if_exists"]),
        (sh.Table.append, ["rows", "transaction"]),
        (sh.Table.to_arrow, ["columns", "filter", "as_of_timestamp_ms"]),
        (sh.Table.lookup_one, ["key", "columns", "max_staleness_ms", "at_least"]),
        (sh.Table.tail, ["start", "columns", "include_metadata", "poll_ms", "stop", "until_ms", "filter"]),
        (sh.Table.follow, ["name", "start", "columns", "filter", "include_metadata", "skip_change_commits", "sink"]),
        (sh.Table.maintain, ["grace_ms", "dry_run"]),
    ],
    ids=lambda m: getattr(m, "__name__", ""),
)  # fmt: skip
def test_parameters_keep_their_names_and_order(method, parameters):
    names = list(inspect.signature(method).parameters)[1:]
    assert names[: len(parameters)] == parameters, "append new parameters"
    assert method.__doc__
