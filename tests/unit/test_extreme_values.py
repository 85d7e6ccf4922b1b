"""Values that Arrow and Spark hold and Python does not, or that are the last of their type, in every role of a column.

Each value is written, read, filtered, looked up, shown as JSON, tiered and deleted as any other is, or its write is
refused before anything is stored.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Sequence
from unittest import mock

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from kit.tables import require_verified, tier, trim_tiered
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.core.python_values import from_text, to_python, to_python_rows, to_ticks
from streamhouse_spark.errors import (
    ConstraintViolatedError,
    InvalidOptionError,
    LakeMismatchError,
    SchemaMismatchError,
)
from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.expressions.predicates import constant_bounds, may_match
from streamhouse_spark.expressions.where import parse_where
from streamhouse_spark.log import staging
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.write.upsert import parse_keys

UTC = pa.timestamp("us", "UTC")
INT32, INT64 = 1 << 31, 1 << 63
DEBEZIUM_INFINITY = 9_223_372_036_825_200_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
DAY = 86_400_000_000
DAYS = (-INT32, FIRST_DAY - 1, FIRST_DAY, 0, LAST_DAY, LAST_DAY + 1, INT32 - 1)
FIRST_TIME, LAST_TIME = FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1
TIMES = (-INT64, FIRST_TIME - 1, FIRST_TIME, 0, LAST_TIME, LAST_TIME + 1, DEBEZIUM_INFINITY, INT64 - 1)
VALUES = {
    "DATE": [pa.scalar(days, pa.date32()) for days in DAYS],
    "TIMESTAMP": [pa.scalar(micros, UTC) for micros in TIMES],
    "TIMESTAMP_NTZ": [pa.scalar(micros, pa.timestamp("us")) for micros in TIMES],
    "DECIMAL(38,0)": [decimal.Decimal(sign + "9" * 38) for sign in ("-", "")] + [decimal.Decimal(0)],
    "DECIMAL(38,38)": [decimal.Decimal(f"{sign}0.{'9' * 38}") for sign in ("-", "")] + [decimal.Decimal("1E-38")],
    "DOUBLE": [float(text) for text in ("-inf", "-1.7976931348623157e308", "-0.0", "5e-324", "1e308", "inf", "nan")],
    "FLOAT": [float(text) for text in ("-inf", "-0.0", "1.401298464324817e-45", "3.4028234663852886e38", "inf", "nan")],
    "BIGINT": [-INT64, 0, INT64 - 1],
    "STRING": ["", "\0", "\ufffd", "\U0010ffff" * 70, "a" * 70, "\ue000"],
    "BINARY": [b"", b"\xff" * 70, b"\x00\xff"],
}  # fmt: skip
TYPES = {"DATE": pa.date32(), "TIMESTAMP": UTC, "TIMESTAMP_NTZ": pa.timestamp("us"), "FLOAT": pa.float32()}
ROLES = ("of a log table", "of a primary-key table", "key", "partition", "bucket key")
OPERATORS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
PAIMON_LACKS = ("DOUBLE", "FLOAT", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(38,0)", "DECIMAL(38,38)", "BINARY")
"""Types by which a Paimon lake cannot be partitioned here; some of them cannot be keys either."""


def is_possible(kind: str, lake: str, role: str) -> bool:
    """Return whether a table may have a column of the type in the role."""
    if role == "bucket key":
        return kind not in ("DOUBLE", "FLOAT") and not (lake == "paimon" and kind.startswith("DECIMAL"))
    if role == "key":
        return not (lake == "paimon" and kind in ("DOUBLE", "FLOAT", "DECIMAL(38,0)", "DECIMAL(38,38)"))
    return not (role == "partition" and lake == "paimon" and kind in PAIMON_LACKS)


CASES = [
    pytest.param(kind, lake, role, id=f"{kind}-{lake}-{role.replace(' ', '_')}")
    for kind in VALUES
    for lake in ("iceberg", "paimon")
    for role in ROLES
    if is_possible(kind, lake, role)
]


def column_of(kind: str, values: Sequence[object]) -> pa.Array:
    data_type = TYPES.get(kind)
    if data_type is None:
        wanted = {"BIGINT": pa.int64(), "DOUBLE": pa.float64(), "STRING": pa.string(), "BINARY": pa.binary()}
        data_type = wanted.get(kind) or pa.decimal128(38, int(kind.split(",")[1].rstrip(")")))
    return pa.array(values, data_type)


def rows_of(kind: str, values: Sequence[object]) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": column_of(kind, values)})


def new_table(warehouse: Warehouse, kind: str, lake: str, role: str) -> Table:
    properties = {"table.datalake.format": lake} | ({"bucket.key": "v"} if role == "bucket key" else {})
    key = {"of a primary-key table": ["id"], "key": ["v"]}.get(role, [])
    columns = f"id BIGINT NOT NULL, v {kind}{' NOT NULL' if role == 'key' else ''}"
    partition_by = ["v"] if role == "partition" else []
    buckets = 3 if role in ("bucket key", "key") and is_possible(kind, lake, "bucket key") else 1
    return warehouse.create_table(
        "d.t", columns, primary_key=key, partition_by=partition_by, properties=properties, buckets=buckets
    )


def refused(kind: str, lake: str, role: str, values: Sequence[object]) -> list[object]:
    """Return the values that the lake cannot hold in this role."""
    if lake != "paimon" or role not in ("key", "partition") or kind not in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        return []
    return [value for value in values if isinstance(to_python(value), str)]


def shown(column: pa.ChunkedArray) -> list[str]:
    """Return values as texts, in which a NaN is like another and 0.0 is not like -0.0."""
    return [repr(to_ticks(value).as_py()) for value in column]


def require_readable(table: Table, rows: pa.Table, *, is_keyed: bool, as_json: bool) -> None:
    """Raise `AssertionError` where a read, a filter, a lookup or JSON gives another answer than the rows."""
    assert shown(table.to_arrow().sort_by("id").column("v")) == shown(rows.column("v"))
    for place, value in enumerate(rows.column("v")):
        for operator, compare in OPERATORS.items():
            expected = rows.filter(compare(rows.column("v"), value)).column("id")
            found = table.to_arrow(filter=[("v", operator, value)], columns=["id"]).sort_by("id").column("id")
            assert found.to_pylist() == expected.to_pylist(), (operator, to_ticks(value))
        listed = table.to_arrow(filter=[("v", "in", [value])], columns=["id"]).sort_by("id").column("id")
        expected = rows.filter(pc.is_in(rows.column("v"), rows.column("v").filter(pc.equal(rows.column("id"), place))))
        assert listed.to_pylist() == expected.column("id").to_pylist(), to_ticks(value)
    if is_keyed:
        names = table.state.primary_key
        assert shown(table.lookup(rows.select(names)).column("v")) == shown(rows.column("v"))
        for place in range(rows.num_rows):
            key = rows.column(names[0])[place]
            row = table.lookup_one(key if pa.types.is_temporal(key.type) else key.as_py())
            expected = to_python(rows.column("v")[place])
            assert row["v"] == expected or repr(row["v"]) == repr(expected)
    if as_json:
        lines = CliRunner().invoke(streamhouse, ["head", "d.t", "--output", "json"], catch_exceptions=False).stdout
        found = {row["id"]: row["v"] for row in map(json.loads, lines.splitlines())}
        for place, value in enumerate(rows.column("v")):
            if pa.types.is_temporal(value.type):
                assert from_text(found[rows.column("id")[place].as_py()], value.type).equals(value)


@pytest.mark.parametrize(("kind", "lake", "role"), CASES)
def test_every_value_of_a_type_passes_every_operation(kind, lake, role, warehouse_path, monkeypatch):
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", warehouse_path)
    table = new_table(Warehouse(warehouse_path), kind, lake, role)
    is_keyed = bool(table.state.primary_key)
    write = table.upsert if is_keyed else table.append
    for value in refused(kind, lake, role, VALUES[kind]):
        with pytest.raises(SchemaMismatchError, match=r"column 'v' of d\.t has the value [+-]?\d{4,7}-\d\d-\d\d"):
            write(rows_of(kind, [value]))
    assert table.refresh().num_rows == 0
    values = [value for value in VALUES[kind] if value not in refused(kind, lake, role, VALUES[kind])]
    rows = rows_of(kind, values)
    write(rows)
    require_readable(table, rows, is_keyed=is_keyed, as_json=True)
    tier(table)
    require_readable(table, rows, is_keyed=is_keyed, as_json=True)
    require_verified(table)
    followed = pa.concat_tables([pa.Table.from_batches([batch]) for batch in table.tail("earliest", until_ms=1)])
    assert shown(followed.sort_by("id").column("v")) == shown(rows.column("v"))
    trim_tiered(table)
    assert shown(table.lake.to_arrow().sort_by("id").column("v")) == shown(rows.column("v"))
    changed = rows.slice(0, 1).set_column(0, "id", pa.array([99], pa.int64()))
    write(changed)
    tier(table)
    if role == "partition":
        assert len(table.inspect.partitions()) == len(values)
    gone = rows.slice(1, 2)
    if is_keyed:
        table.delete(gone.select(table.state.primary_key))
    else:
        for value in gone.column("v"):
            table.delete(where=[("v", "=", value)])
    tier(table)
    kept = {*range(3, len(values)), *([] if role == "key" else [0]), 99}
    assert set(table.to_arrow().column("id").to_pylist()) == kept
    require_verified(table)


FAR_DAY, FAR_TIME = pa.scalar(INT32 - 1, pa.date32()), pa.scalar(DEBEZIUM_INFINITY, UTC)
FAR_TEXTS = ("+5881580-07-11", "+294247-01-10T04:00:25.200000Z")


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_values_inside_nested_columns_pass_as_well(lake, warehouse_path):
    table = Warehouse(warehouse_path).create_table(
        "d.t",
        "id BIGINT NOT NULL, days ARRAY<DATE>, s STRUCT<at: TIMESTAMP, day: DATE>, m MAP<STRING, TIMESTAMP>",
        primary_key=["id"],
        properties={"table.datalake.format": lake},
    )
    columns = {field.name: field.type for field in table.schema}
    row = {"days": [FAR_DAY, None], "s": {"at": FAR_TIME, "day": FAR_DAY}, "m": [("a", FAR_TIME)]}
    rows = pa.table({"id": [1], **{name: pa.array([value], columns[name]) for name, value in row.items()}})
    table.upsert(rows)
    texts = {
        "id": 1,
        "days": [FAR_TEXTS[0], None],
        "s": {"at": FAR_TEXTS[1], "day": FAR_TEXTS[0]},
        "m": [("a", FAR_TEXTS[1])],
    }
    for _ in range(2):
        assert table.lookup_one(1) == texts
        assert table.to_arrow().equals(rows.cast(table.to_arrow().schema))
        assert to_python_rows(table.to_arrow()) == [texts]
        tier(table)
    require_verified(table)


@pytest.mark.parametrize(
    ("lake", "partition_by", "goes_on"),
    [("iceberg", [], True), ("iceberg", ["v"], True), ("paimon", [], True), ("paimon", ["v"], False)],
)
def test_a_table_with_such_a_row_from_an_older_version_is_tiered_again(lake, partition_by, goes_on, warehouse_path):
    table = Warehouse(warehouse_path).create_table(
        "d.t", "id BIGINT, v DATE", partition_by=partition_by, properties={"table.datalake.format": lake}
    )
    with mock.patch.object(staging, "check_paimon_values"):
        table.append(rows_of("DATE", [FAR_DAY, pa.scalar(0, pa.date32())]))
    if not goes_on:
        with pytest.raises(LakeMismatchError, match=r"partition has the value \+5881580-07-11.*delete the rows"):
            tier(table)
        assert table.to_arrow().num_rows == 2
        assert table.delete(where=[("v", ">", dt.date.max)]) == 1
    tier(table)
    assert table.lake.to_arrow().num_rows == 1 + goes_on
    require_verified(table)


def test_a_writer_refuses_the_row_and_writes_the_others(warehouse_path):
    table = Warehouse(warehouse_path).create_table(
        "d.t", "id BIGINT, v DATE", partition_by=["v"], properties={"table.datalake.format": "paimon"}
    )
    with table.writer() as writer:
        writer.send([{"id": 1, "v": dt.date.max}])
        with pytest.raises(SchemaMismatchError, match=r"\+5881580-07-11"):
            writer.send([{"id": 2, "v": FAR_DAY}])
    assert table.to_arrow().column("id").to_pylist() == [1]


@pytest.mark.parametrize(
    ("kind", "value", "partition_by"),
    [
        ("DATE", FAR_DAY, "years(v)"),
        ("DATE", pa.scalar(-INT32, pa.date32()), "months(v)"),
        ("TIMESTAMP", FAR_TIME, "days(v)"),
        ("TIMESTAMP", FAR_TIME, "hours(v)"),
        ("TIMESTAMP", pa.scalar(-INT64, UTC), "hours(v)"),
        ("TIMESTAMP_NTZ", pa.scalar(-INT64, pa.timestamp("us")), "years(v)"),
    ],
)
def test_partitions_by_a_transform_of_time_leave_no_row_out(kind, value, partition_by, warehouse_path):
    table = Warehouse(warehouse_path).create_table("d.t", f"id BIGINT, v {kind}", partition_by=[partition_by])
    rows = rows_of(kind, [value, pa.scalar(0, value.type)])
    table.append(rows)
    tier(table)
    require_readable(table, rows, is_keyed=False, as_json=False)
    for name in ("files", "partitions", "snapshots", "entries"):
        assert table.lake.metadata(name).num_rows


def test_metadata_that_pyiceberg_cannot_show_is_a_typed_error(warehouse_path):
    table = Warehouse(warehouse_path).create_table("d.t", "id BIGINT, v DATE", partition_by=["v"])
    table.append(rows_of("DATE", [FAR_DAY]))
    tier(table)
    with pytest.raises(InvalidOptionError, match="read the metadata table partitions or files"):
        table.lake.metadata("manifests")


SCHEMA = pa.schema(
    [("day", pa.date32()), ("at", UTC), ("n", pa.timestamp("us")), ("s", pa.string()), ("d", pa.decimal128(38, 0))]
)


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("day > '+10000-01-01'", True),
        ("day = '+5881580-07-11'", True),
        ("day < '-0001-12-31'", False),
        ("at >= '+294247-01-10T04:00:25.200000Z'", True),
        ("at IN ('+294247-01-10 04:00:25.2Z', '2026-01-31T00:00:00Z')", True),
        ("at != '+294247-01-10T04:00:25.200000Z'", False),
        ("NOT n < '+10000-01-01T00:00:00'", True),
        ([("at", ">", dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-14))))], True),
        ([("at", "<", dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))))], False),
        ([("at", "=", pa.scalar(1, pa.timestamp("ns", "UTC")))], False),
        ([("at", ">=", pa.scalar(1, pa.timestamp("ns", "UTC")))], True),
        ([("at", "<", pa.scalar(INT64 - 1, pa.timestamp("s", "UTC")))], True),
        ([("at", "in", [pa.scalar(1, pa.timestamp("ns", "UTC")), FAR_TIME])], True),
        ([("at", "in", pa.array([FAR_TIME]))], True),
        ([("day", "=", pa.scalar(None, pa.date32()))], False),
        ([("n", "<", pd.Timestamp(1))], False),
        ([("d", "<", decimal.Decimal(10) ** 400)], True),
    ],
)
def test_filters_compare_values_that_python_lacks(where, chosen):
    rows = pa.table(
        [[FAR_DAY], [FAR_TIME], [pa.scalar(DEBEZIUM_INFINITY, SCHEMA.types[2])], ["a"], [decimal.Decimal(0)]], SCHEMA
    )
    found = parse_filter(parse_where(where, SCHEMA) if isinstance(where, str) else where)
    assert rows.filter(found.bind(SCHEMA).expression).num_rows == chosen
    bounds = {name: constant_bounds(to_ticks(rows.column(name)[0]).as_py()) for name in SCHEMA.names}
    assert may_match(found.bind(SCHEMA).node, bounds) or not chosen


@pytest.mark.parametrize(
    "predicate",
    [
        ("s", "=", "\ud800"),
        ("s", "in", ["\ud800"]),
        ("at", "=", FAR_DAY),
        ("at", "<", pa.scalar(1, pa.timestamp("us"))),
        ("n", "in", [FAR_TIME]),
        ("day", "in", FAR_DAY),
    ],
)
def test_filters_with_values_that_no_column_holds_are_refused(predicate):
    with pytest.raises(InvalidOptionError):
        parse_filter([predicate]).bind(SCHEMA)


def test_a_moment_of_pandas_keeps_its_nanoseconds():
    rows = pa.table({"n": pa.array([0, 1], pa.timestamp("us"))})
    found = parse_filter([("n", "<=", pd.Timestamp(999))]).bind(rows.schema)
    assert rows.filter(found.expression).num_rows == 1
    found = parse_filter([("n", ">=", pd.Timestamp(1))]).bind(rows.schema)
    assert rows.filter(found.expression).num_rows == 1


def test_texts_that_are_no_unicode_are_refused():
    with pytest.raises(InvalidOptionError, match=r"column 's'.*'\\ud800'"):
        parse_where("s = '\ud800'", SCHEMA)
    with pytest.raises(SchemaMismatchError, match=r"column 's' of t .*'\\ud800'"):
        PartitionMatches.of_texts({"s": "\ud800"}, TableSchema.of(SCHEMA), ["s"], "t")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("STRING", "\ud800"),
        ("DECIMAL(38,0)", decimal.Decimal(10) ** 38),
        ("DECIMAL(38,0)", decimal.Decimal("NaN")),
        ("BIGINT", INT64),
        ("TIMESTAMP", pa.scalar(1, pa.timestamp("ns", "UTC"))),
        ("TIMESTAMP", pa.scalar(INT64 - 1, pa.timestamp("s", "UTC"))),
        ("DATE", FAR_TIME),
        ("FLOAT", 1e300),
    ],
)
def test_rows_with_values_that_the_column_does_not_hold_are_refused(kind, value, warehouse_path):
    table = Warehouse(warehouse_path).create_table("d.t", f"id BIGINT, v {kind}")
    with pytest.raises(SchemaMismatchError, match="column 'v'"):
        table.append([{"id": 1, "v": value}])
    assert table.refresh().num_rows == 0


def test_errors_show_values_that_python_lacks(warehouse_path):
    table = Warehouse(warehouse_path).create_table(
        "d.t", "id BIGINT, v DATE", properties={"table.constraint.c": "id > 5 OR v IS NULL"}
    )
    with pytest.raises(ConstraintViolatedError, match=r"v = '\+5881580-07-11'"):
        table.append(rows_of("DATE", [FAR_DAY]))
    with pytest.raises(SchemaMismatchError, match="a key of t is"):
        parse_keys([(FAR_DAY, FAR_DAY)], ["v"], "t")
    assert str(PartitionMatches.of([{"v": FAR_DAY}], table.state.schema, ["v"], "t")) == "(v = '+5881580-07-11')"
