"""Generated columns of a table: every way of writing gives rows their values, and they cannot change."""

from __future__ import annotations

import datetime as dt
import shutil

import pytest

from kit.tables import tier
from streamhouse_spark import ConstraintViolatedError, FormatVersionError, InvalidOptionError, Warehouse, relocate
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.log.record import read_record

COLUMNS = "id INT, ts TIMESTAMP, day DATE, n INT, twice INT"
EXPRESSIONS = {"table.generated.day": "CAST(ts AS DATE)", "table.generated.twice": "n * 2"}


def at(day: int) -> dt.datetime:
    return dt.datetime(2024, 1, day, 23, tzinfo=dt.UTC)


def made(wh, name="a.t", **more):
    return wh.create_table(name, COLUMNS, properties=EXPRESSIONS, **more)


def pairs(table):
    return sorted((row["id"], row["day"], row["twice"]) for row in table.to_arrow().to_pylist())


EXPECTED = [(1, dt.date(2024, 1, 1), 2), (2, dt.date(2024, 1, 2), None), (3, None, None)]
ROWS = [{"id": 1, "ts": at(1), "n": 1}, {"id": 2, "ts": at(2), "day": dt.date(2024, 1, 2)}, {"id": 3, "twice": None}]


def test_appended_rows_have_them_in_the_log_and_in_the_lake_by_partition(wh):
    table = made(wh, partition_by=["day"])
    table.append(ROWS[:2])
    with table.writer() as writer:
        writer.send(ROWS[2])
    assert pairs(table) == EXPECTED
    tier(table)
    assert pairs(table.lake) == pairs(table) == EXPECTED
    table.overwrite_partitions([{"id": 9, "ts": at(1)}])
    assert pairs(table) == [*EXPECTED[1:], (9, dt.date(2024, 1, 1), None)]


def test_a_row_with_another_value_is_refused_and_nothing_is_written(wh):
    table = made(wh)
    version = table.state.version
    with pytest.raises(ConstraintViolatedError, match="'twice' than n \\* 2, such as 5, expected 2"):
        table.append([*ROWS, {"n": 1, "twice": 5}])
    with table.writer() as writer, pytest.raises(ConstraintViolatedError, match="'day'"):
        writer.send({"ts": at(1), "day": dt.date(2024, 1, 2)})
    assert table.refresh().version == version


def test_rows_by_key_have_them_merged(wh):
    table = wh.create_table(
        "a.k",
        "id INT NOT NULL, a INT, b INT DEFAULT 5, s INT",
        primary_key=["id"],
        properties={"table.generated.s": "a + b"},
    )

    def rows():
        return sorted((r["id"], r["a"], r["b"], r["s"]) for r in table.to_arrow().to_pylist())

    table.upsert([{"id": 1, "a": 1, "b": 2}, {"id": 2, "a": 1, "b": 1, "s": 2}])
    table.upsert([{"id": 1, "a": 10}, {"id": 3, "a": 1}], columns=["a"])
    table.upsert([{"id": 2, "b": None}], columns=["b"])
    assert rows() == [(1, 10, 2, 12), (2, 1, None, None), (3, 1, 5, 6)]
    table.delete([{"id": 3}])
    for refused, says in (
        (lambda: table.upsert([{"id": 1, "s": 12}], columns=["s"]), "names 's', a generated column; leave it out"),
        (lambda: table.upsert([{"id": 1, "a": 1, "b": 1, "s": 3}]), "'s' than a \\+ b, such as 3, expected 2"),
    ):
        with pytest.raises((InvalidOptionError, ConstraintViolatedError), match=says):
            refused()
    assert rows() == [(1, 10, 2, 12), (2, 1, None, None)]


@pytest.mark.parametrize("image", ["full", "wal"])
def test_rows_by_key_that_are_written_unseen_have_them(wh, image):
    properties = {"table.generated.s": "a + a", "table.changelog.image": image}
    table = wh.create_table("a.k", "id INT NOT NULL, a INT, s INT", primary_key=["id"], properties=properties)
    table.upsert([{"id": 1, "a": 1}, {"id": 1, "a": 2}])
    assert table.to_arrow().to_pylist() == [{"id": 1, "a": 2, "s": 4}]


def test_an_aggregate_has_them_of_the_merged_row(wh):
    properties = {"table.merge-engine": "aggregation", "fields.a.agg": "sum", "table.generated.s": "a * 2"}
    table = wh.create_table("a.k", "id INT NOT NULL, a INT, s INT", primary_key=["id"], properties=properties)
    for a in (1, 2):
        table.upsert([{"id": 1, "a": a, "s": 2 * a}])
    assert table.to_arrow().to_pylist() == [{"id": 1, "a": 3, "s": 6}]


def test_neither_they_nor_the_columns_that_they_use_can_change(wh):
    table = made(wh)
    version = table.state.version
    for refused, says in (
        (lambda: table.rename_column("ts", "x"), "'ts' cannot be renamed: it is used by the generated column 'day'"),
        (lambda: table.drop_column("n"), "'n' cannot be dropped: it is used by the generated column 'twice'"),
        (lambda: table.drop_column("day"), "'day' cannot be dropped: it is generated"),
        (lambda: table.rename_column("day", "x"), "'day' cannot be renamed: it is generated"),
        (lambda: table.widen_column("n", "bigint"), "the expression is a bigint; give the column this type"),
        (lambda: table.set_default("twice", 3), "has DEFAULT as well"),
        (lambda: table.alter(unset_properties=["table.generated.day"]), "is fixed at creation"),
        (lambda: table.alter(set_properties={"table.generated.id": "n"}), "is fixed at creation"),
    ):
        with pytest.raises(InvalidOptionError, match=says):
            refused()
    table.rename_column("id", "key")
    table.widen_column("twice", "bigint")
    table.append([{"key": 1, "n": 1}])
    assert table.to_arrow().column("twice").to_pylist() == [2]
    assert table.state.version == version + 3


@pytest.mark.parametrize(
    ("columns", "given", "says"),
    [
        ("id INT, g INT", {"properties": {"bucket.key": "g"}}, "'g' is generated and part of bucket.key"),
        (
            "id INT NOT NULL, g INT",
            {"primary_key": ["id"], "properties": {"table.merge-engine": "aggregation", "fields.g.agg": "sum"}},
            r"'g' is generated and named by the property fields\.g\.agg",
        ),
        (
            "id INT NOT NULL, g INT",
            {
                "primary_key": ["id"],
                "properties": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "g"},
            },
            r"'g' is generated and the table\.merge-engine\.versioned\.ver-column",
        ),
        ("id INT, g INT NOT NULL", {}, "has NOT NULL as well; leave it out"),
    ],
)
def test_columns_that_something_needs_before_are_refused(wh, columns, given, says):
    properties = {**given.get("properties", {}), "table.generated.g": "id"}
    with pytest.raises(InvalidOptionError, match=says):
        wh.create_table("a.x", columns, **{**given, "properties": properties})


def test_a_copied_warehouse_has_them(tmp_path, own_cache):
    wh = Warehouse(tmp_path / "wh")
    wh.create_database("a")
    made(wh).append(ROWS)
    shutil.copytree(tmp_path / "wh", tmp_path / "copy")
    relocate(tmp_path / "copy", copy=True)
    copy = Warehouse(tmp_path / "copy").table("a.t")
    copy.append([{"id": 4, "n": 4}])
    assert pairs(copy) == [*EXPECTED, (4, None, 8)]
    assert b'"type":"copy-generated"' in copy.storage.read(f"tables/{copy.uuid}/commits/{1:020}.json")


def test_an_older_version_stops_at_the_record_and_at_a_checkpoint(wh, monkeypatch):
    table = made(wh)
    record, _ = read_record(table.storage, table.uuid, 1)
    assert record.actions[0].properties["table.generated.twice"] == "n * 2"
    assert b'"type":"create-generated"' in table.storage.read(f"tables/{table.uuid}/commits/{1:020}.json")
    write_checkpoint(table.storage, table.state)
    assert read_checkpoint(table.storage, table.uuid, table.state.version).properties == table.state.properties
    monkeypatch.setattr(checkpoint_module, "NEWEST_VERSION", checkpoint_module.CHECKS_VERSION)
    with pytest.raises(FormatVersionError):
        read_checkpoint(table.storage, table.uuid, table.state.version)
