"""``verify`` of a log table counts the rows that have offsets, whatever other engines put beside them or take away."""

from __future__ import annotations

import pytest

from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.cli import fsck
from streamhouse_spark.cli.fsck import Verification, open_lake_plan, verify_lake
from streamhouse_spark.lake.parquet import copy_on_write
from streamhouse_spark.lake.parquet.reader import OffsetFile


@pytest.fixture
def table(memory, world):
    table = Warehouse("wh", storage=memory, world=world).create_table(
        "sales.events", "id bigint, land string", partition_by=["land"]
    )
    table.append([{"id": i, "land": "de" if i % 2 else "fr"} for i in range(10)])
    tier(table)
    return table


def append_elsewhere(table, land: str, num_rows: int = 3) -> None:
    """As another engine does."""
    lake = table.open_lake().place.load()
    rows = table.schema.empty_table().from_pylist([{"id": -i, "land": land} for i in range(num_rows)], table.schema)
    lake.append(rows.cast(lake.schema().as_arrow()))


def retier(table) -> None:
    table.append([{"id": 100, "land": "it"}])
    tier(table)


def problems(table) -> list[str]:
    state, result = table.refresh(), Verification(table.name)
    verify_lake(table, state, open_lake_plan(table, state, result), result, lambda _: None)
    return result.problems


def test_rows_of_another_engine_are_no_problem(table):
    append_elsewhere(table, "de")
    retier(table)
    assert table.lake.to_arrow().num_rows == 14
    assert problems(table) == []


def test_a_partition_that_had_them_is_dropped(table):
    append_elsewhere(table, "de")
    assert table.drop_partition({"land": "de"}).rows == 8
    newest = table.open_lake().newest()
    assert (newest.dropped_rows, newest.dropped_without_offsets) == (8, 3)
    assert table.refresh().num_rows == table.to_arrow().num_rows == 5
    assert problems(table) == []
    retier(table)
    assert problems(table) == []


def test_a_drop_that_was_counted_with_them_before_is_no_problem(table, monkeypatch):
    append_elsewhere(table, "de")
    with monkeypatch.context() as patch:
        patch.setattr(copy_on_write, "has_external_name", lambda _: False)
        table.drop_partition({"land": "de"})
    assert table.open_lake().newest().dropped_rows == 8
    assert problems(table) == []


def test_rows_that_are_missing_are_seen_beside_others(table):
    append_elsewhere(table, "fr", num_rows=20)
    table.open_lake().place.load().delete("land = 'de'")
    retier(table)
    assert problems(table) == [
        f"lake snapshot {table.state.lake.snapshot_id} has 6 rows, expected 11 tiered offsets"
    ]  # fmt: skip


def test_offsets_that_are_there_twice_or_too_early_are_seen(table, monkeypatch):
    known = fsck.read_offset_file
    name = {}

    def read(files, location, uuid):
        found = known(files, location, uuid)
        return OffsetFile(found.location, found.bucket, name.setdefault("first", found.runs))

    monkeypatch.setattr(fsck, "read_offset_file", read)
    assert any("has 5 duplicate offsets" in problem for problem in problems(table))
    monkeypatch.undo()
    monkeypatch.setattr(type(table.state), "first_offset", lambda *_: 3)
    assert any("has 3 offsets outside its range" in problem for problem in problems(table))
