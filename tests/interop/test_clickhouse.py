"""ClickHouse reads the lake right, knowing nothing of us. `make interop` runs this.

Of what our tables hold, ClickHouse has no null arrays, maps and tuples, which it reads as empty ones, no binary type,
which it reads as strings of any bytes, and no timestamps without a zone, which it gives its own zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from interop.histories import HISTORIES, Written

pytestmark = pytest.mark.engines

Query = Callable[[str], pa.Table]


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[Query]:
    """A running ClickHouse. It reads files below the current folder only."""
    import chdb

    connection = chdb.connect(":memory:")
    yield lambda sql: connection.query(f"{sql} SETTINGS session_timezone = 'UTC'", "ArrowTable")
    connection.close()


@pytest.mark.parametrize("name", HISTORIES)
def test_clickhouse_reads_the_current_rows(clickhouse, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    steps = 0
    for written in HISTORIES[name](tmp_path):
        source = f"icebergLocal('{written.folder}')"
        found = clickhouse(f"SELECT * FROM {source}")
        assert rows_in_types_of(written.rows.schema, found) == as_clickhouse_has_them(written.rows)
        assert clickhouse(f"SELECT count(*) AS n FROM {source}")["n"].to_pylist() == [written.rows.num_rows]
        require_found(clickhouse, source, written)
        steps += 1
    assert steps


def require_found(clickhouse: Query, source: str, written: Written) -> None:
    """Filters find all rows of a value: bounds and partition values hide none."""
    for name in written.filters:
        for value, number in written.counts(name).items():
            where = (
                f"`{name}` IS NULL"
                if value is None
                else f"`{name}` = {literal(value, written.rows.schema.field(name).type)}"
            )
            found = clickhouse(f"SELECT count(*) AS n FROM {source} WHERE {where}")
            assert found["n"].to_pylist() == [number], where


def literal(value: Any, of: pa.DataType) -> str:
    if pa.types.is_binary(of):
        return f"unhex('{value.hex()}')"
    if pa.types.is_timestamp(of):
        return f"toDateTime64('{value:%Y-%m-%d %H:%M:%S.%f}', 6, 'UTC')"
    if pa.types.is_date(of):
        return f"toDate32('{value}')"
    if pa.types.is_decimal(of):
        return f"toDecimal128('{value}', {of.scale})"
    if pa.types.is_float32(of):
        return f"toFloat32('{value!r}')"
    return f"'{value}'" if pa.types.is_string(of) else repr(value)


def rows_in_types_of(schema: pa.Schema, found: pa.Table) -> list[dict[str, Any]]:
    assert found.column_names == schema.names
    columns = [
        pa.array(
            column.cast(pa.binary()).to_pylist() if pa.types.is_binary(field.type) else column.to_pylist(), field.type
        )
        for column, field in zip(found.columns, schema, strict=True)
    ]
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    return sorted(pa.Table.from_arrays(columns, schema=nullable).to_pylist(), key=repr)


def as_clickhouse_has_them(rows: pa.Table) -> list[dict[str, Any]]:
    emptied = [
        {field.name: _without_nulls(row[field.name], field.type) for field in rows.schema} for row in rows.to_pylist()
    ]
    return sorted(emptied, key=repr)


def _without_nulls(value: Any, of: pa.DataType) -> Any:
    if pa.types.is_list(of) or pa.types.is_map(of):
        return value or []
    if pa.types.is_struct(of):
        return {f.name: _without_nulls((value or {}).get(f.name), f.type) for f in of.fields}
    return value
