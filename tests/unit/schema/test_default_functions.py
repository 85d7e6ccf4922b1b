"""Functions as defaults of columns: one value in a write, that of its own moment, whoever fills it in."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pytest

from faults.scenarios import LAKE, PAIMON
from kit.tables import tier
from streamhouse_spark import CommitConflictError, SchemaMismatchError, Warehouse
from streamhouse_spark.core.clock import Author
from streamhouse_spark.schema.default_values import StatementContext
from streamhouse_spark.schema.defaults import SqlText, evaluate_defaults
from streamhouse_spark.schema.table_schema import Column, TableSchema

COLUMNS = "id INT, at TIMESTAMP DEFAULT current_timestamp(), day DATE DEFAULT current_date(), by STRING DEFAULT user()"


def moment(clock) -> dt.datetime:
    return dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)


@pytest.mark.parametrize(
    ("said", "kind", "shown"),
    [
        ("current_timestamp()", "timestamp", "current_timestamp()"),
        ("CURRENT_TIMESTAMP", "timestamp", "current_timestamp()"),
        ("( now( ) )", "timestamp", "current_timestamp()"),
        ("Current_Date", "date", "current_date()"),
        ("curdate()", "date", "current_date()"),
        ("session_user()", "string", "current_user()"),
        ("'now()'", "string", "'now()'"),
    ],
)
def test_they_are_parsed_shown_and_stored(said, kind, shown):
    schema = TableSchema.of(f"c {kind} DEFAULT {said}")
    assert schema.columns[0].default_sql == shown
    assert TableSchema.of(schema.ddl()) == TableSchema.from_json(schema.to_json()) == schema


def test_records_hold_its_name():
    (stored,) = TableSchema.of("c TIMESTAMP DEFAULT now()").to_json()
    assert stored["default"] == {"function": "current_timestamp"}


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("c DATE DEFAULT now()", "DEFAULT current_timestamp\\(\\), which is a timestamp; give the column this type"),
        ("c TIMESTAMP_NTZ DEFAULT now()", "which is a timestamp; give the column this type"),
        ("c INT DEFAULT current_user()", "which is a string; give the column this type"),
        ("c VARCHAR(9) DEFAULT current_user()", "may be longer than the column, which is varchar\\(9\\)"),
        ("c STRING DEFAULT uuid()", "is not a constant; .* one of current_timestamp"),
        ("c TIMESTAMP DEFAULT now(3)", "is not a constant"),
        ("c ARRAY<DATE> DEFAULT current_date()", "only columns of plain types"),
    ],
)
def test_others_are_refused(column, says):
    with pytest.raises(SchemaMismatchError, match=says):
        TableSchema.of(column)


def test_a_function_of_a_later_version_is_refused_and_says_so():
    stored = TableSchema.of("c STRING DEFAULT user()").to_json()
    stored[0]["default"] = {"function": "uuid"}
    with pytest.raises(SchemaMismatchError, match=r"'function': 'uuid'.*install the version that wrote it"):
        TableSchema.from_json(stored)


def test_it_has_no_value_outside_a_write():
    column = Column(1, "c", pa.date32(), default=TableSchema.of("c DATE DEFAULT curdate()").columns[0].default)
    with pytest.raises(AssertionError, match="no value outside a write"):
        _ = column.default_scalar
    schema = evaluate_defaults(TableSchema((column,)), StatementContext(-1, "me"))
    assert schema.columns[0].default_scalar.as_py() == dt.date(1969, 12, 31)


@pytest.mark.parametrize("properties", [LAKE, PAIMON], ids=["iceberg", "paimon"])
def test_rows_have_the_moment_and_the_user_of_their_write(store, world, clock, properties):
    wh = Warehouse("wh", storage=store, world=replace(world, author=Author("ada", "python/x")))
    table = wh.create_table("a.t", COLUMNS, properties=properties)
    clock.sleep_ms(86_400_000)
    first = moment(clock)
    table.append([{"id": 1}, {"id": 2, "by": None}, {"id": 3, "at": None}])
    clock.sleep_ms(86_400_000)
    table.append(pa.table({"id": pa.array([4], pa.int32())}))
    found = table.to_arrow().sort_by("id").to_pylist()
    assert [row["day"] for row in found] == [first.date()] * 3 + [first.date() + dt.timedelta(1)]
    assert len({found[0]["at"], found[1]["at"]}) == 1
    assert dt.timedelta(0) <= found[0]["at"] - first < dt.timedelta(seconds=10)
    assert [row["by"] for row in found] == ["ada", None, "ada", "ada"]
    assert found[2]["at"] is None
    tier(table)
    assert table.lake.to_arrow().sort_by("id").to_pylist() == found


def test_rows_of_a_writer_have_it(wh, clock):
    table = wh.create_table("a.t", COLUMNS)
    with table.writer() as writer:
        writer.send({"id": 1})
        writer.send({"id": 2, "by": "x"})
    found = table.to_arrow().to_pylist()
    assert {row["day"] for row in found} == {moment(clock).date()}
    assert found[1]["by"] == "x" != found[0]["by"]


def test_rows_by_key_have_it_and_keep_it(wh, clock, own_cache):
    columns = "id INT NOT NULL, v INT, at TIMESTAMP NOT NULL DEFAULT now()"
    table = wh.create_table("a.k", columns, primary_key=["id"])
    table.upsert([{"id": 1, "v": 1}])
    (before,) = table.to_arrow().to_pylist()
    clock.sleep_ms(86_400_000)
    table.upsert([{"id": 1, "v": 2}, {"id": 2, "v": 2}], columns=["v"])
    first, second = table.to_arrow().sort_by("id").to_pylist()
    assert first == {**before, "v": 2}
    assert second["at"] - first["at"] >= dt.timedelta(days=1)
    clock.sleep_ms(86_400_000)
    table.upsert([{"id": 1, "v": 3}])
    assert table.to_arrow().sort_by("id").to_pylist()[0]["at"] > second["at"]


def test_it_is_set_changed_and_dropped(wh, other_process):
    table = wh.create_table("a.t", "id INT, at TIMESTAMP")
    table.append([{"id": 1}])
    table.set_default("at", SqlText("now()"))
    lacking = pa.Table.from_pylist([{"id": 0, "at": None}], table.state.schema.arrow)
    staged = table.log_writer.stager().stage(lacking, frozenset({2}))
    other_process().table("a.t").append([{"id": 2}])
    table.drop_default("at")
    with pytest.raises(CommitConflictError, match="have other defaults now"):
        table.log_writer.commit(staged)
    table.append([{"id": 3}])
    table.set_default("at", SqlText("current_timestamp()"))
    table.rename_column("at", "since")
    table.append([{"id": 4}])
    found = table.to_arrow().sort_by("id").to_pylist()
    assert [row["since"] is None for row in found] == [True, False, True, False]
