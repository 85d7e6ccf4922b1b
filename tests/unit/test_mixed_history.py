"""A process goes on writing while its table is restored from a backup: each way out that the error names is gone."""

from __future__ import annotations

import re
import shutil

import pytest

from faults.sim import sim_world
from kit.tables import tier
from streamhouse_spark import CorruptDataError, DifferentHistoryError, Warehouse
from streamhouse_spark.core.warehouse_layout import checkpoints_prefix, commits_prefix, parse_number, table_prefix
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage

WAYS_OUT = (
    r"stop all writers; then restore the whole folder (tables/[0-9a-f]{32}/) from one backup, or delete its "
    r"commits and checkpoints with number (\d+) and higher"
)


class Place:
    """A table ``t`` with the rows 0 to 4 in its lake and 5 hot, of which there is a backup, and a live writer."""

    def __init__(self, kind, folder, clock, lake):
        self.clock, self.folder, self.seeds = clock, folder, iter(range(2, 100))
        world = sim_world(1, clock)
        is_local = kind == "local"
        self.store = LocalStorage(str(folder / "wh"), fsync=False, world=world) if is_local else MemoryStorage(world)
        self.live = self.warehouse().create_table("t", "id BIGINT", properties={"table.datalake.format": lake})
        self.live.append([{"id": i} for i in range(5)])
        self.tier()
        self.live.append([{"id": 5}])
        self.backed_up = {i.key: self.store.read(i.key) for i in self.store.list("")}

    def warehouse(self):
        return Warehouse("wh", storage=self.store, world=sim_world(next(self.seeds), self.clock))

    def table(self):
        return self.warehouse().table("t")

    def tier(self):
        tier(self.table())

    def ids(self):
        return sorted(self.table().to_arrow()["id"].to_pylist())

    def restore(self, prefix=""):
        for info in list(self.store.list(prefix)):
            if info.key not in self.backed_up:
                self.store.delete(info.key)
        if prefix == "" and isinstance(self.store, LocalStorage):
            shutil.rmtree(self.folder / "wh")
        there = {info.key for info in self.store.list(prefix)}
        for key, data in self.backed_up.items():
            if key.startswith(prefix) and key not in there:
                self.store.put(key, data)


@pytest.fixture(params=["memory", "local"])
def place(request, tmp_path, clock, lake, monkeypatch):
    if request.param == "local":  # a local disk is asked before each commit; a restore may come between, too
        monkeypatch.setattr(CommitLog, "_has_last_record", lambda *_: True)
    return Place(request.param, tmp_path, clock, lake)


def hole(place):
    """One record was lost with the restore, and the live writer's next is behind it."""
    place.live.append([{"id": 10}])
    place.restore()
    place.live.append([{"id": 20}])
    return [0, 1, 2, 3, 4, 5]


def filled(place):
    """Two were lost, and others wrote these two anew before they met the live writer's."""
    for i in range(2):
        place.live.append([{"id": 10 + i}])
    place.restore()
    other = place.table()
    place.live.append([{"id": 20}])
    other.append([{"id": 6}])
    other.append([{"id": 7}])
    return [0, 1, 2, 3, 4, 5, 6, 7]


def checkpoint(place):
    """The live writer made a checkpoint, which those who open the table begin at."""
    place.live.append([{"id": 10}])
    place.restore()
    place.live.append([{"id": 20}])
    place.live.log.checkpoint(place.live.state)
    place.table().append([{"id": 21}])
    return [0, 1, 2, 3, 4, 5]


def large(place):
    """The same, with rows that have objects of their own."""
    place.live.log_writer.stager()._inline_bytes_max = 0
    return checkpoint(place)


def tiered(place):
    """The rows that went on were tiered from the other history before anybody saw."""
    place.live.append([{"id": 10}])
    place.tier()
    at_home = table_prefix(place.live.uuid)
    place.restore(at_home)
    place.live.append([{"id": 20}])
    return [0, 1, 2, 3, 4, 5]


def restore_the_folder(place, folder, _number):
    place.restore(folder)


def delete_from(place, folder, number):
    for prefix in (commits_prefix, checkpoints_prefix):
        for info in list(place.store.list(prefix(place.live.uuid))):
            assert info.key.startswith(folder)
            found = parse_number(info.key)
            if found is not None and found >= number:
                place.store.delete(info.key)


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
@pytest.mark.parametrize("way_out", [restore_the_folder, delete_from])
@pytest.mark.parametrize("mixed", [hole, filled, checkpoint, large, tiered])
def test_each_way_out_ends_with_a_healthy_table(place, mixed, way_out):
    kept = mixed(place)
    with pytest.raises(CorruptDataError, match=WAYS_OUT) as met:
        place.ids()
    folder, number = re.search(WAYS_OUT, str(met.value)).groups()
    way_out(place, folder, int(number))
    if way_out is restore_the_folder:
        kept = kept[:6]
    assert place.ids() == kept
    place.table().append([{"id": 100}])
    if mixed is tiered:
        with pytest.raises(DifferentHistoryError, match=r"rebuild the lake from the log with: streamhouse retier"):
            place.tier()
        place.table().retier()
    place.tier()
    place.table().maintain()
    assert place.ids() == sorted(place.table().lake.to_arrow()["id"].to_pylist()) == [*kept, 100]
