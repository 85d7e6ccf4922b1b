"""Dropping partitions from a lake: values of every type, files of other engines, and concurrent commits."""

from __future__ import annotations

import math
import pkgutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.snapshots import Operation

from interop.lake_cases import EVENTS, EVERY_TYPE, event_rows, every_type_rows, lake_of, sorted_rows, tier
from kit.lake_rows import lake_rows
from streamhouse_spark import CommitConflictError, LakeMismatchError, LakeRolledBackError, OffsetRange
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.lake.iceberg.compaction import carry_offsets
from streamhouse_spark.lake.iceberg.snapshot_commit import SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.parquet import copy_on_write as partition_drop
from streamhouse_spark.lake.types import DeletedRows, LakeFile

PLAIN_COLUMNS = [c for c in EVERY_TYPE.columns[1:] if not pa.types.is_nested(c.type)]
PAIMON_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)
COLUMNS = {
    "iceberg": [c.name for c in PLAIN_COLUMNS],
    "paimon": [c.name for c in PLAIN_COLUMNS if any(is_type(c.type) for is_type in PAIMON_TYPES)],
}
MODULE = "streamhouse_spark.lake.{}.drop_partition"
only_iceberg = pytest.mark.parametrize("lake_format", ["iceberg"])


def chosen(lake, *values: dict) -> PartitionMatches:
    spec = lake.binding.spec
    return PartitionMatches.of(values, spec.schema, spec.partition_by, "t")


def drop(lake, *values: dict, below: int = 1000, **options):
    ends = lake.newest().offsets
    return lake.drop_partitions(chosen(lake, *values), below={b: min(below, end) for b, end in ends.items()}, **options)


def read(lake) -> list[dict]:
    return sorted_rows(lake_rows(lake, lake.plan_read()))


@pytest.mark.parametrize(("lake_format", "column"), [(name, c) for name, columns in COLUMNS.items() for c in columns])
def test_a_value_of_each_type_is_dropped(memory, lake_format, column):
    lake = lake_of(memory, EVERY_TYPE, partition_by=[column], lake_format=lake_format)
    rows = every_type_rows(40)
    tier(lake, rows)
    all_rows = rows.to_pylist()
    for value in {row[column] for row in all_rows[:2]} | {None}:
        dropped = [row for row in all_rows if row[column] == value]
        all_rows = [row for row in all_rows if row[column] != value]
        assert drop(lake, {column: value}, dry_run=True).rows == len(dropped)
        assert drop(lake, {column: value}).rows == len(dropped)
        assert read(lake) == sorted_rows(pa.Table.from_pylist(all_rows, schema=EVERY_TYPE.arrow))
    assert (lake.newest().offsets, lake.newest().dropped_rows) == ({0: 40}, 40 - len(all_rows))


@pytest.mark.parametrize("column", ["a_float", "a_double"])
def test_partitions_of_nan_infinity_and_minus_zero_are_dropped(memory, column):
    lake = lake_of(memory, EVERY_TYPE, partition_by=[column])
    values = [math.nan, math.inf, -math.inf, -0.0, 1.5, None]
    rows = [{"id": i, column: value} for i, value in enumerate(values)]
    tier(lake, pa.Table.from_pylist(rows, schema=EVERY_TYPE.arrow))
    for i, value in enumerate(values):
        assert drop(lake, {column: value}, dry_run=True).rows == 1, value
        assert drop(lake, {column: value}).rows == 1, value
        assert [row["id"] for row in read(lake)] == list(range(i + 1, len(values)))


@pytest.fixture(params=["iceberg", "paimon"])
def lake_format(request):
    return request.param


def new_lake(storage, lake_format):
    """Return a handle of the lake table by region, as another process opens it."""
    return lake_of(storage, EVENTS, partition_by=["region"], lake_format=lake_format)


@pytest.fixture
def lake(memory, lake_format):
    lake = new_lake(memory, lake_format)
    tier(lake, event_rows(20).set_column(2, "region", pa.array(["a", "b"] * 10)))
    return lake


def foreign_rows(lake, region: str):
    table = lake.binding.load()
    table.append(event_rows(3, seed=5).set_column(2, "region", pa.array([region] * 3)).cast(table.schema().as_arrow()))


@only_iceberg
def test_files_of_other_engines_are_dropped_whole(lake):
    foreign_rows(lake, "a")
    foreign_rows(lake, "b")
    assert drop(lake, {"region": "a"}).rows == 13
    assert [row["region"] for row in read(lake)] == ["b"] * 13


@only_iceberg
def test_files_of_another_partition_spec_are_an_error(lake):
    lake.binding.load().update_spec().remove_field("region").commit()
    foreign_rows(lake, "a")
    before = read(lake)
    with pytest.raises(LakeMismatchError, match="not partitioned by region"):
        drop(lake, {"region": "a"})
    assert read(lake) == before


def test_a_drop_is_retried_after_a_concurrent_round(lake, memory, monkeypatch, lake_format):
    planned = f"{MODULE.format(lake_format)}.{'_make_change' if lake_format == 'iceberg' else 'write_context'}"
    original, late = pkgutil.resolve_name(planned), iter([True])
    rows = event_rows(4, seed=9).set_column(2, "region", pa.array(["a"] * 4))

    def slow(*args):
        if next(late, False):
            tier(new_lake(memory, lake_format), rows)
        return original(*args)

    monkeypatch.setattr(planned, slow)
    assert drop(lake, {"region": "a"}).rows == 10
    assert [row["region"] for row in read(lake)].count("a") == 4, "rows from behind the drop"
    assert lake.newest().offsets == {0: 24}
    if lake_format == "paimon":
        assert lake.metadata_table("snapshots")["commit_kind"].to_pylist().count("COMPACT") == 1, "sealed once"


def test_a_drop_that_always_loses_is_a_conflict(lake, monkeypatch, lake_format):
    def never(*_):
        raise CommitConflictError("another was faster")

    attempt = "_make_change" if lake_format == "iceberg" else "_require_as_planned"
    monkeypatch.setattr(f"{MODULE.format(lake_format)}.{attempt}", never)
    monkeypatch.setattr(partition_drop, "ATTEMPTS_MAX", 3)
    before = lake.newest()
    with pytest.raises(CommitConflictError, match=r"nothing of \(region = 'a'\) was dropped"):
        drop(lake, {"region": "a"})
    assert lake.newest() == before


def test_nothing_is_dropped_from_a_lake_that_lost_rows(lake):
    with pytest.raises(LakeRolledBackError, match="nothing was dropped"):
        lake.drop_partitions(chosen(lake, {"region": "a"}), below={0: 21})
    assert len(read(lake)) == 20


def delete_by_position(lake, region: str, positions: list[int]) -> str:
    """As another engine would: a file of deleted positions about the partition's data file."""
    place = lake.binding
    found = [f for f in lake.metadata_table("data_files").to_pylist() if f["partition"]["region"] == region]
    location = found[0]["file_path"]
    of_deletes = location.replace(".parquet", "-deletes.parquet")
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"file_path": [location] * len(positions), "pos": pa.array(positions, pa.int64())}), buffer)
    with place.files_at(of_deletes).create(of_deletes) as sink:
        sink.write(buffer.getvalue())
    table = place.load()
    file = LakeFile(
        of_deletes, 0, OffsetRange(0, 1), len(positions), len(buffer.getvalue()), table.schema().schema_id,
        table.spec().spec_id, (region.encode(),), deletes=DeletedRows(location),
    )  # fmt: skip

    def change(metadata) -> SnapshotUpdate:
        return SnapshotUpdate(Operation.OVERWRITE, added=[file], summary=carry_offsets(metadata))

    commit_snapshot(place, change)
    return of_deletes


@only_iceberg
def test_rows_that_another_engine_deleted_stay_deleted(lake):
    for region in ("a", "b"):
        delete_by_position(lake, region, [0, 3])
    assert len(read(lake)) == 16
    with pytest.raises(LakeMismatchError, match="Drop the partition again"):
        drop(lake, {"region": "a"}, below=7)
    assert len(read(lake)) == 16
    drop(lake, {"region": "a"})
    assert [row["region"] for row in read(lake)] == ["b"] * 8
    (left,) = lake.metadata_table("delete_files")["file_path"].to_pylist()
    assert "region=b" in left


@only_iceberg
def test_a_deletion_that_lands_during_a_drop_is_not_undone(lake, monkeypatch):
    planned = f"{MODULE.format('iceberg')}._make_change"
    original, late = pkgutil.resolve_name(planned), iter([True])

    def slow(*args):
        if next(late, False):
            delete_by_position(lake, "a", [8])
        return original(*args)

    monkeypatch.setattr(planned, slow)
    with pytest.raises(LakeMismatchError, match="Drop the partition again"):
        drop(lake, {"region": "a"}, below=7)
    assert len(read(lake)) == 19


@only_iceberg
def test_several_partitions_are_dropped_in_one_snapshot(lake):
    snapshots = len(lake.metadata_table("snapshots"))
    report = drop(lake, {"region": "a"}, {"region": "b"}, {"region": "nowhere"})
    assert (report.rows, report.files) == (20, 2)
    assert len(lake.metadata_table("snapshots")) == snapshots + 1
    assert read(lake) == []
    assert drop(lake, {"region": "a"}).snapshot is None
