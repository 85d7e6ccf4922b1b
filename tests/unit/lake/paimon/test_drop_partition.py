"""Dropping partitions from a Paimon lake: what pypaimon reads afterwards, and writers that rename over the drop."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from interop.keyed_cases import read_by_pypaimon
from interop.lake_cases import EVENTS, event_rows, sorted_rows, tier
from kit.lake_rows import lake_rows
from streamhouse_spark.lake.paimon import drop_partition as paimon_drop_partition
from unit.lake.test_drop_partition import drop, lake, read

__all__ = ["lake"]

SNAPSHOTS = "lake/sales.db/orders/snapshot"


def kinds(lake) -> list[str]:
    return lake.metadata_table("snapshots")["commit_kind"].to_pylist()


@pytest.fixture
def lake_format():
    return "paimon"


def test_several_partitions_in_one_snapshot_which_other_readers_follow(lake, memory):
    before, snapshots = read(lake), kinds(lake)
    first = lake.newest().id
    report = drop(lake, {"region": "a"}, {"region": "nowhere"})
    assert (report.rows, report.files, report.snapshot) == (10, 1, lake.newest())
    assert kinds(lake) == [*snapshots, "OVERWRITE", "COMPACT"]
    assert lake.newest().offsets == {0: 20}
    found = read_by_pypaimon(memory, "sales.orders").cast(EVENTS.arrow)
    assert sorted_rows(found) == read(lake) == [row for row in before if row["region"] == "b"]
    assert sorted_rows(lake_rows(lake, lake.plan_read(snapshot_id=first))) == before
    assert drop(lake, {"region": "a"}).snapshot is None
    assert drop(lake, {"region": "b"}).rows == 10
    assert (read(lake), read_by_pypaimon(memory, "sales.orders").num_rows) == ([], 0)


def test_a_file_with_later_rows_is_cut(lake, memory):
    before = read(lake)
    report = drop(lake, {"region": "a"}, below=7)
    assert (report.rows, report.files, report.kept_rows) == (4, 1, 6)
    after = read(lake)
    gone = event_rows(7).filter(pa.array([True, False] * 3 + [True])).column("id").to_pylist()
    assert [row["id"] for row in before if row not in after] == sorted(gone), "those of the first seven offsets"
    assert sorted_rows(read_by_pypaimon(memory, "sales.orders").cast(EVENTS.arrow)) == after
    assert lake.newest().dropped_rows == 4
    assert drop(lake, {"region": "a"}, below=7).rows == 0, "what is left is from behind it"


@pytest.mark.parametrize("moment", ["as it is committed", "before it is kept", "later"])
def test_a_stock_writer_that_renames_over_the_drop_restores_no_row(lake, memory, monkeypatch, moment):
    """It looked for the number when that was free; whenever it renames, the rows of the partition stay away."""
    base = lake.newest().id
    made = json.loads(memory.read(f"{SNAPSHOTS}/snapshot-{base}"))
    made |= {"id": base + 1, "commitUser": "stock", "commitKind": "APPEND", "uuid": "stock"}
    made.pop("properties")

    def rename():
        memory.put(f"{SNAPSHOTS}/snapshot-{base + 1}", json.dumps(made).encode())

    put, sealed = memory.put_if_absent, paimon_drop_partition.make_snapshot_durable

    def overtaken(key, data):
        put(key, data)
        if key.endswith(f"/snapshot-{base + 1}"):
            monkeypatch.undo()
            rename()

    def slow(*args):
        monkeypatch.undo()
        rename()
        return sealed(*args)

    if moment == "as it is committed":
        monkeypatch.setattr(memory, "put_if_absent", overtaken)
    elif moment == "before it is kept":
        monkeypatch.setattr(paimon_drop_partition, "make_snapshot_durable", slow)
    assert drop(lake, {"region": "a"}).rows == 10
    if moment == "later":
        rename()
    assert {row["region"] for row in read(lake)} == {"b"}
    assert (lake.newest().offsets, lake.newest().dropped_rows) == ({0: 20}, 10)
    tier(lake, event_rows(4, seed=9))
    assert (len(read(lake)), lake.newest().dropped_rows) == (14, 10), "rounds and what is merged carry the count on"


def test_a_stock_writer_that_renames_over_what_keeps_the_drop(lake, memory, monkeypatch):
    """The rows went once, and are counted once, though keeping them away was another's snapshot in the end."""
    base, put = lake.newest().id, memory.put_if_absent

    def overtaken(key, data):
        put(key, data)
        if key.endswith(f"/snapshot-{base + 2}"):
            monkeypatch.undo()
            below = json.loads(memory.read(f"{SNAPSHOTS}/snapshot-{base + 1}"))
            made = below | {"id": base + 2, "commitUser": "stock", "commitKind": "APPEND", "uuid": "stock"}
            made.pop("properties")
            memory.put(key, json.dumps(made).encode())

    monkeypatch.setattr(memory, "put_if_absent", overtaken)
    report = drop(lake, {"region": "a"})
    assert (report.rows, report.files, report.snapshot.id) == (10, 1, base + 1)
    assert {row["region"] for row in read(lake)} == {"b"}
    assert (lake.newest().offsets, lake.newest().dropped_rows) == ({0: 20}, 10)
