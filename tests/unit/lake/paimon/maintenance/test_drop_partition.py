"""Dropping partitions from a Paimon lake: values of every type, files and renames of other engines, who was faster."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from interop.keyed_cases import read_by_pypaimon
from interop.lake_cases import EVENTS, EVERY_TYPE, event_rows, every_type_rows, lake_of, sorted_rows, tier
from kit.lake_rows import lake_rows
from streamhouse_spark.errors import CommitConflictError, LakeRolledBackError
from streamhouse_spark.lake.paimon.maintenance import drop_partition as paimon_drop_partition
from streamhouse_spark.lake.parquet import partition_rewrite as partition_drop
from streamhouse_spark.query.partition_match import PartitionMatch, PartitionMatches

PARTITION_COLUMNS = [
    c.name
    for c in EVERY_TYPE.columns[1:]
    if pa.types.is_integer(c.type) or pa.types.is_string(c.type) or pa.types.is_date(c.type)
]
SNAPSHOTS = "lake/sales.db/orders/snapshot"


def drop(lake, *values: dict, below: int = 1000, **options):
    spec, ends = lake.place.spec, lake.newest().offsets
    matches = tuple(PartitionMatch.of(v, spec.schema, spec.partition_by, "t") for v in values)
    below = {b: min(below, end) for b, end in ends.items()}
    return lake.drop_partitions(PartitionMatches(matches), below=below, **options)


def read(lake) -> list[dict]:
    return sorted_rows(lake_rows(lake, lake.plan_read()))


def kinds(lake) -> list[str]:
    return lake.metadata_table("snapshots")["commit_kind"].to_pylist()


@pytest.mark.parametrize("column", PARTITION_COLUMNS)
def test_a_value_of_every_type(memory, column):
    lake = lake_of(memory, EVERY_TYPE, partition_by=[column], lake_format="paimon")
    rows = every_type_rows(20)
    tier(lake, rows)
    all_rows = rows.to_pylist()
    for value in {row[column] for row in all_rows[:2]} | {None}:
        going = [row for row in all_rows if row[column] == value]
        all_rows = [row for row in all_rows if row[column] != value]
        assert drop(lake, {column: value}, dry_run=True).rows == len(going)
        assert drop(lake, {column: value}).rows == len(going)
        assert read(lake) == sorted_rows(pa.Table.from_pylist(all_rows, schema=EVERY_TYPE.arrow))
    assert (lake.newest().offsets, lake.newest().dropped_rows) == ({0: 20}, 20 - len(all_rows))


@pytest.fixture
def lake(memory):
    lake = lake_of(memory, EVENTS, partition_by=["region"], lake_format="paimon")
    tier(lake, event_rows(20).set_column(2, "region", pa.array(["a", "b"] * 10)))
    return lake


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


def test_a_round_that_is_faster_is_met_again(lake, memory, monkeypatch):
    sealed, context, late = paimon_drop_partition.sealed_above, paimon_drop_partition.write_context, iter([True])
    rows = event_rows(4, seed=9).set_column(2, "region", pa.array(["a"] * 4))
    seals = []

    def slow(place):
        if next(late, False):
            tier(lake_of(memory, EVENTS, partition_by=["region"], lake_format="paimon"), rows)
        return context(place)

    monkeypatch.setattr(paimon_drop_partition, "write_context", slow)
    monkeypatch.setattr(paimon_drop_partition, "sealed_above", lambda *args: seals.append(args) or sealed(*args))
    assert drop(lake, {"region": "a"}).rows == 10
    assert [row["region"] for row in read(lake)].count("a") == 4, "rows from behind the drop"
    assert lake.newest().offsets == {0: 24}
    assert len(seals) == 1


def test_others_that_always_win_are_a_conflict(lake, monkeypatch):
    def never(*_):
        raise CommitConflictError("another was faster")

    monkeypatch.setattr(paimon_drop_partition, "_require_as_planned", never)
    monkeypatch.setattr(partition_drop, "ATTEMPTS_MAX", 3)
    before = lake.newest()
    with pytest.raises(CommitConflictError, match=r"nothing of \(region = 'a'\) was dropped"):
        drop(lake, {"region": "a"})
    assert lake.newest() == before


def test_a_lake_that_lost_rows_is_not_dropped_from(lake):
    spec = lake.place.spec
    match = PartitionMatch.of({"region": "a"}, spec.schema, spec.partition_by, "t")
    with pytest.raises(LakeRolledBackError, match="nothing was dropped"):
        lake.drop_partitions(PartitionMatches((match,)), below={0: 21})
    assert len(read(lake)) == 20


@pytest.mark.parametrize("moment", ["as it is committed", "before it is kept", "later"])
def test_a_stock_writer_that_renames_over_the_drop(lake, memory, monkeypatch, moment):
    """It looked for the number when that was free; whenever it renames, the rows of the partition stay away."""
    base = lake.newest().id
    made = json.loads(memory.read(f"{SNAPSHOTS}/snapshot-{base}"))
    made |= {"id": base + 1, "commitUser": "stock", "commitKind": "APPEND", "uuid": "stock"}
    made.pop("properties")

    def rename():
        memory.put(f"{SNAPSHOTS}/snapshot-{base + 1}", json.dumps(made).encode())

    put, sealed = memory.put_if_absent, paimon_drop_partition.sealed_above

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
        monkeypatch.setattr(paimon_drop_partition, "sealed_above", slow)
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
