"""``verify`` names each file of a table that is damaged or missing, whatever reads go on without it."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from kit.tables import new_table, tier
from streamhouse_spark import StreamhouseError, Table, Warehouse
from streamhouse_spark.cli.maintenance_commands import _verify_table
from streamhouse_spark.storage.base import Storage

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


def problems(storage: Storage, warehouse: Warehouse, name: str) -> str:
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
    assert problems(memory, opened(), table.name) == ""
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
            if PurePath(key).name not in problems(memory, opened(), table.name):
                unseen.add(named(key, what))
            memory.put(key, data)
    assert unseen <= set(UNSEEN)


def test_a_table_without_tags_checkpoints_and_lake_is_well(memory, world):
    warehouse = Warehouse("wh", storage=memory, world=world)
    table = new_table(warehouse)
    table.append([{"id": 1, "day": 1}])
    assert problems(memory, warehouse, table.name) == ""


def test_an_absent_object_says_what_to_do(memory):
    with pytest.raises(StreamhouseError, match=r"OBJECT_NOT_FOUND: .*/absent does not exist; restore it.* verify"):
        memory.read("absent")
