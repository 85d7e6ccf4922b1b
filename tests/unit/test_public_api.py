"""The names that users import, and what importing them costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import streamhouse_spark as sh

NAMES = {
    "BucketOffsets",
    "CommitConflictError",
    "CommitStateUnknownError",
    "ConstraintViolatedError",
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
    "materialize",
    "optimize",
    "RefreshService",
    "lookup_join",
    "register",
    "relocate",
    "tier",
}
"""Adding a name is a decision; taking one away breaks users."""
HEAVY = ["pyspark", "py4j", "pyiceberg", "pypaimon", "s3fs", "fsspec", "boto3", "botocore", "lmdb", "pandas", "polars"]
HEAVY += ["opentelemetry", "prometheus_client"]


def test_the_names_are_these():
    assert set(sh.__all__) == NAMES, "name it in this test if users shall have it"
    assert sorted(sh.__all__) == sh.__all__
    for name in sh.__all__:
        assert getattr(sh, name) is not None


def test_every_error_of_the_contract_is_there():
    errors = {n for n in NAMES if n.endswith("Error") and n != "StreamhouseError"}
    assert len(errors) == 23
    for name in errors:
        error = getattr(sh, name)
        assert issubclass(error, sh.StreamhouseError)
        assert isinstance(error.kind, sh.ErrorKind)
    kinds = {k.name for k in sh.ErrorKind}
    assert kinds == {"CONFLICT", "FENCED", "UNAVAILABLE", "INVALID", "CORRUPT", "INTERNAL"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        _ = sh.nothing_of_the_kind


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
        (sh.Table.tail, ["start", "columns", "include_metadata", "poll_ms", "stop", "until_ms"]),
        (sh.Table.maintain, ["grace_ms", "dry_run"]),
    ],
    ids=lambda m: getattr(m, "__name__", ""),
)  # fmt: skip
def test_parameters_keep_their_names(method, parameters):
    found = list(inspect.signature(method).parameters)[1:]
    assert found[: len(parameters)] == parameters, "new parameters go behind"
    assert method.__doc__


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_loads_nothing_heavy():
    heavy = [*HEAVY, "pyarrow", "numpy"]
    assert run(f"import sys, streamhouse_spark; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_names_that_are_loaded_late_are_listed_and_stay():
    code = "import streamhouse_spark as sh; print(set(sh.__all__) <= set(dir(sh)), sh.Table, 'Table' in vars(sh))"
    assert run(code) == "True <class 'streamhouse_spark.table.table.Table'> True"


def test_writing_and_reading_a_local_table_loads_nothing_heavy(warehouse_path):
    code = f"""
import sys, streamhouse_spark as sh
table = sh.Warehouse({warehouse_path!r}).create_table("t", "id BIGINT, s STRING", buckets=2)
table.append([{{"id": 1, "s": "x"}}])
assert table.to_arrow(columns=["s"]).num_rows == 1
assert next(table.tail("earliest")).num_rows == 1
table.inspect.segments()
print([m for m in {HEAVY} if m in sys.modules])
"""
    assert run(code) in ("[]", "['pandas']"), "Arrow itself loads pandas to look at lists"


def test_the_version_is_the_distributions():
    from importlib.metadata import version

    assert version("streamhouse-spark") == sh.__version__
