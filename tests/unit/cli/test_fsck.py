"""``verify`` counts the rows that have offsets, and names each file that is damaged or missing."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from kit.tables import new_table, tier
from streamhouse_spark import StreamhouseError, Table, Warehouse
from streamhouse_spark.cli import fsck
from streamhouse_spark.cli.fsck import Verification, open_lake_plan, verify_lake
from streamhouse_spark.cli.maintenance_commands import _verify_table
from streamhouse_spark.lake.parquet import copy_on_write
from streamhouse_spark.lake.parquet.reader import FileWithOffsets
from streamhouse_spark.storage.base import Storage


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
    lake = table.open_lake().binding.load()
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
    table.open_lake().binding.load().delete("land = 'de'")
    retier(table)
    assert problems(table) == [
        f"lake snapshot {table.state.lake.snapshot_id} has 6 rows, expected 11 tiered offsets"
    ]  # fmt: skip


def test_offsets_that_are_there_twice_or_too_early_are_seen(table, monkeypatch):
    known = fsck.read_file_offsets
    name = {}

    def read(files, location, uuid):
        found = known(files, location, uuid)
        return FileWithOffsets(found.location, found.bucket, name.setdefault("first", found.runs))

    monkeypatch.setattr(fsck, "read_file_offsets", read)
    assert any("has 5 duplicate offsets" in problem for problem in problems(table))
    monkeypatch.undo()
    monkeypatch.setattr(type(table.state), "first_offset", lambda *_: 3)
    assert any("has 3 offsets outside its range" in problem for problem in problems(table))


UNSEEN = {
    "database.json": "of all tables of a database",
    "deleted snapshot-1": "the oldest one may have expired",
    "deleted checkpoint": "one that the hint does not name may have been cleaned up",
    "v1.metadata.json": "versions before the newest are history",
    "v2.metadata.json": "versions before the newest are history",
    "v3.metadata.json": "versions before the newest are history",
    "deleted floor": "a floor of versions is one of several",
    "empty floor": "its name says all",
    ".parquet": "of older snapshots alone",
}


class Quiet:
    """Output of a command that nobody sees."""

    def progress(self, _unit: str):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_error: object) -> None: ...

    def add_task(self, *_task: object, **_total: object) -> None: ...

    def advance(self, *_progress: object) -> None: ...


def life(warehouse: Warehouse, lake: str, *, keyed: bool) -> Table:
    """A table with tags, a branch, checkpoints, tiered rows and hot ones."""
    table = new_table(warehouse, keyed=keyed, lake=lake)
    write = table.upsert if keyed else table.append
    for number in range(3):
        write([{"id": number, "day": 1}])
        tier(table)
        if number == 1:
            table.create_tag("one")
    table.log.checkpoint(table.refresh())
    write([{"id": 9, "day": 1}])
    table.create_tag("two")
    table.maintain()
    return table


def named(key: str, what: str) -> str:
    """The name of a kind of damage in `UNSEEN`."""
    path = PurePath(key)
    kinds = {"checkpoints": "checkpoint", "floors": "floor"}
    kind = kinds.get(path.parent.name, path.name) if path.name != "hint" else path.name
    if path.suffix == ".parquet":
        kind = path.suffix
    return f"{what} {kind}" if f"{what} {kind}" in UNSEEN else kind


def problem_text(storage: Storage, warehouse: Warehouse, name: str) -> str:
    try:
        return " ".join(_verify_table(warehouse.table(name), Quiet()).problems)
    except StreamhouseError as error:
        return str(error)


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_each_damaged_or_missing_file_is_named(memory, world, own_cache, lake, keyed):
    def opened() -> Warehouse:
        return Warehouse("wh", storage=memory, world=world)

    table = life(opened(), lake, keyed=keyed)
    assert problem_text(memory, opened(), table.name) == ""
    whole = {info.key: memory.read(info.key) for info in memory.list("")}
    unseen = set()
    for key, data in whole.items():
        if key.endswith((".lock", "names/00000001.json")):
            continue
        middle = len(data) // 2
        flipped = data[:middle] + bytes(byte ^ 255 for byte in data[middle : middle + 1]) + data[middle + 1 :]
        damages = {"deleted": None, **({"flipped": flipped} if data else {})}
        for what, damage in {**damages, "empty": b""}.items():
            memory.delete(key) if damage is None else memory.put(key, damage)
            if PurePath(key).name not in problem_text(memory, opened(), table.name):
                unseen.add(named(key, what))
            memory.put(key, data)
    assert unseen <= set(UNSEEN)


def test_a_table_without_tags_checkpoints_and_lake_is_well(memory, world):
    warehouse = Warehouse("wh", storage=memory, world=world)
    table = new_table(warehouse)
    table.append([{"id": 1, "day": 1}])
    assert problem_text(memory, warehouse, table.name) == ""


def test_an_absent_object_says_what_to_do(memory):
    with pytest.raises(StreamhouseError, match=r"OBJECT_NOT_FOUND: .*/absent does not exist; restore it.* verify"):
        memory.read("absent")
