"""Every way to read a scan returns the rows of `to_arrow`: random tables with rows of every type, in random states."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamhouse_spark as sh
from kit.tables import tier, trim_tiered
from streamhouse_spark import OffsetsTrimmedError, Table, Warehouse
from streamhouse_spark.table.scan import Scan
from unit.sample_rows import ALL_TYPES_DDL, COLUMNS, sample

STEPS = ["write", "write few", "tier", "trim", "delete", "drop", "rename", "add", "branch", "dictionary"]
FOREIGN = [name for name, kind in COLUMNS.items() if "map<" in kind]
"""Columns whose values other libraries bring back in another form."""


def read_by_duckdb(scan: Scan) -> pa.Table:
    return scan.to_duckdb("t").sql("FROM t").to_arrow_table()


def read_by_datafusion(scan: Scan) -> pa.Table:
    return scan.to_datafusion("t").sql("SELECT * FROM t").to_arrow_table()


def read_variable(scan: Scan) -> pa.Table:
    return duckdb.sql("FROM scan").to_arrow_table()


WAYS: dict[str, Callable[[Scan], Any]] = {
    "to_arrow_batch_reader": lambda scan: scan.to_arrow_batch_reader().read_all(),
    "to_batches": lambda scan: pa.Table.from_batches(scan.to_batches(), scan.schema),
    "stream": pa.table,
    "to_arrow_dataset": lambda scan: scan.to_arrow_dataset().to_table(),
    "to_duckdb": read_by_duckdb,
    "variable of duckdb": read_variable,
}


def in_order(rows: pa.Table, columns: list[str]) -> list[dict[str, Any]]:
    return rows.select(columns).sort_by("id").to_pylist()


def make(warehouse: Warehouse, steps: list[str], *, is_keyed: bool, seed: int) -> Table:
    """Create a table and take the steps, those that it can take."""
    table = warehouse.create_table("d.t", ALL_TYPES_DDL, primary_key=["id"] if is_keyed else [], buckets=2)
    write = table.upsert if is_keyed else table.append
    numbers, renamed = itertools.count(), itertools.count()
    for step in steps:
        at = next(numbers)
        rows = sample(5 if step == "write few" else 60, seed + at, first_id=50 * at)
        known = rows.select([name for name in rows.schema.names if name in table.schema.names])
        match step:
            case "write" | "write few":
                write(known)
            case "dictionary":
                place = known.schema.get_field_index("c10")
                if place >= 0:
                    known = known.set_column(place, "c10", known["c10"].dictionary_encode())
                write(known)
            case "tier":
                tier(table)
            case "trim":
                trim_tiered(table)
            case "delete":
                gone = [3, 51, 52, 100]
                _ = table.delete(gone) if is_keyed else table.delete(where=[("id", "in", gone)])
            case "drop" if "c3" in table.schema.names:
                table.drop_column("c3")
            case "rename" if "c4" in table.schema.names:
                table.rename_column("c4", f"renamed {next(renamed)}")
            case "add":
                table.add_columns(f"added{at} STRUCT<x: DOUBLE>")
    if "branch" in steps:
        table.create_branch("b")
        branch = table.branch("b")
        (branch.upsert if is_keyed else branch.append)([{"id": 7_000}])
        return branch
    return table


def require_same(scan: Scan, ways: dict[str, Callable[[Scan], Any]] = WAYS) -> None:
    expected = scan.to_arrow()
    names = expected.schema.names
    rows = in_order(expected, names)
    for way, read in ways.items():
        found = read(scan)
        plain = [name for name in names if "duckdb" not in way or name not in FOREIGN]
        assert found.schema.names == names, way
        cast = found.select(plain).cast(expected.select(plain).schema)
        assert in_order(cast, plain) == in_order(expected, plain), way
    frames = {
        "to_polars": scan.to_polars(),
        "polars.DataFrame": pl.DataFrame(scan),
        "scan_polars": sh.scan_polars(scan).collect(),
    }
    first = frames["to_polars"].sort("id")
    assert first["id"].to_list() == [row["id"] for row in rows]
    for way, frame in frames.items():
        assert frame.sort("id").equals(first), way
    pandas = scan.to_pandas()
    assert (sorted(pandas["id"]), list(pandas.columns)) == (first["id"].to_list(), names)
    assert scan.count() == scan.to_arrow_dataset().count_rows() == len(rows)
    assert scan.limit(3).count() == scan.limit(3).to_arrow().num_rows == min(3, len(rows))


@pytest.mark.filterwarnings("ignore:.*nanosecond.*")
@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=7), st.booleans(), st.integers(0, 1000), st.integers(0, 300))
def test_every_way_to_read_a_scan_returns_the_same_rows(steps, is_keyed, seed, bound):
    with tempfile.TemporaryDirectory() as folder:
        table = make(Warehouse(folder), steps, is_keyed=is_keyed, seed=seed)
        require_same(table.scan())
        filters = [[("id", "<", bound)], [("c0", "=", True), ("id", "not in", [bound])]]
        require_same(table.scan(filter=filters))
        expected = table.scan(filter=filters).to_arrow()
        assert in_order(
            table.to_arrow().filter((pc.field("id") < bound) | (pc.field("c0") & (pc.field("id") != bound))), ["id"]
        ) == in_order(expected, ["id"])
        changes = table.changes().select("id", "c10", "_change_type", "_commit_version").filter("id < 40")
        with suppress(OffsetsTrimmedError):  # they begin with the branch, or were trimmed
            require_same(changes, {name: WAYS[name] for name in ("to_batches", "stream", "to_arrow_dataset")})


def test_datafusion_returns_the_rows_of_every_type():
    pytest.importorskip("datafusion", reason="datafusion is not installed: pip install datafusion")
    with tempfile.TemporaryDirectory() as folder:
        table = make(Warehouse(folder), ["write", "tier", "write few", "delete"], is_keyed=True, seed=1)
        require_same(table.scan(), {"to_datafusion": read_by_datafusion})
