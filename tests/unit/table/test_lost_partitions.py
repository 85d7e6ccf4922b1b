"""Rows without offsets that are deleted with their partition: changes report them, and a rollback restores them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from interop.foreign_engines import ENGINES
from interop.foreign_iceberg import NAME, row
from kit.change_replay import changes, replayed, version
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import InvalidOptionError, OffsetsTrimmedError
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.tiering import record_snapshot
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.commit_reader import find_partition_drop, iter_records_backwards
from streamhouse_spark.log.deletion_vectors import PartitionDropRows
from streamhouse_spark.table import drop_partition
from streamhouse_spark.table.versioning.rollback import rollback_to_version

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
EU = {"region": "eu"}
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(params=ENGINES)
def engine(request, store, world):
    return ENGINES[request.param](store, world)


@pytest.fixture
def table(engine):
    return engine.adopted(by_region=True)


def require_told(table, before: int, gone: list[int]) -> None:
    """The changes since a version lead from its rows to those of now, and say that these ids went."""
    now = table.refresh().version
    found = changes(table, before + 1, now)
    assert sorted(one["id"] for one in found if one["_change_type"] == "delete") == gone
    assert replayed(version(table, before), found) == version(table, now)


def dropped_in_the_lake_alone(table, monkeypatch) -> None:
    """The process dies between the lake's commit and the log's record."""
    with monkeypatch.context() as patch:
        patch.setattr(drop_partition, "_record_drop", lambda *_: False)
        table.drop_partition(EU)


class TestDroppedPartition:
    def test_changes_tell_its_rows(self, table, engine, other_process):
        before = table.refresh().version
        assert table.drop_partition(EU).rows == 3
        require_told(table, before, [0, 2, 4])
        require_told(other_process().table(NAME), before, [0, 2, 4])
        net = changes(table, before + 1, table.state.version, is_net=True)
        assert sorted((one["id"], one["_change_type"]) for one in net) == [(n, "delete") for n in (0, 2, 4)]
        assert engine.ids(table) == [1, 3, 5]

    def test_changes_tell_lost_rows_from_deleted_ones(self, table):
        table.append([row(n) for n in range(6, 12)])
        table.delete(where=[("id", "in", [0, 1, 6])])
        tier(table)
        table.append([row(n) for n in range(12, 15)])
        before = table.refresh().version
        table.delete(where=[("id", "in", [2, 8])])
        table.drop_partition(EU)
        require_told(table, before, [2, 4, 8, 10, 12, 14])
        assert ids(table.to_arrow()) == [3, 5, 7, 9, 11, 13]

    def test_a_rollback_brings_them_back(self, table, engine, other_process):
        table.append([row(n) for n in range(6, 9)])
        before = table.refresh().version
        table.delete(where=[("id", "in", [0, 3])])
        table.drop_partition(EU)
        report = rollback_to_version(table, before, dry_run=True)
        assert (report.rows_deleted, report.rows_added) == (0, 6)
        assert rollback_to_version(table, before) == replace(report, dry_run=False)
        assert ids(other_process().table(NAME).to_arrow()) == list(range(9))
        assert version(table, table.refresh().version) == version(table, before)
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == list(range(9))

    def test_a_time_before_it_has_them(self, table, clock):
        clock.advance(1000)
        at_ms = table.refresh().time_ms + 500
        table.drop_partition(EU)
        assert ids(table.to_arrow(as_of_timestamp_ms=at_ms)) == list(range(6))
        assert ids(table.to_arrow()) == [1, 3, 5]

    def test_rows_that_another_engine_had_written_again(self, table, engine):
        table.append([row(n) for n in range(6, 9)])
        tier(table)
        engine.rewrite()
        table.append([row(10)])
        tier(table)
        between = table.refresh().version
        table.drop_partition(EU)
        require_told(table, between, [0, 2, 4, 6, 8, 10])
        assert table.refresh().lake.dropped_without_offsets == 5
        rollback_to_version(table, between)
        assert ids(table.to_arrow()) == [*range(9), 10]

    def test_a_rollback_to_before_their_files_were_written(self, table, engine):
        table.append([row(8)])
        before = table.refresh().version
        engine.rewrite()
        table.append([row(10)])
        tier(table)
        table.drop_partition(EU)
        with pytest.raises(InvalidOptionError, match="in files that are newer than that version"):
            rollback_to_version(table, before)

    def test_rows_that_another_engine_had_added_since(self, table, engine):
        """They are the table's as soon as a round finds them, so they went with the partition, too."""
        before = table.refresh().version
        engine.append([row(20), row(21)])
        table.drop_partition(EU)
        found = changes(table, before + 1, table.refresh().version)
        assert sorted(one["id"] for one in found) == [0, 2, 4, 20]
        assert ids(table.to_arrow()) == [1, 3, 5, 21]

    def test_the_next_round_tells_it_behind_a_crash(self, table, monkeypatch):
        table.append([row(6)])
        before = table.refresh().version
        dropped_in_the_lake_alone(table, monkeypatch)
        table.append([row(8)])
        tier(table)
        require_told(table, before, [0, 2, 4, 6])
        assert ids(table.to_arrow()) == [1, 3, 5, 8]

    def test_a_row_that_was_deleted_behind_a_crash(self, table, monkeypatch):
        """It was the table's until then, because nothing was recorded."""
        before = table.refresh().version
        dropped_in_the_lake_alone(table, monkeypatch)
        assert table.delete(where=[("id", "=", 2)]) == 1
        tier(table)
        require_told(table, before, [0, 2, 4])
        assert ids(table.to_arrow()) == [1, 3, 5]

    def test_it_is_refused_where_a_round_came_between(self, table, monkeypatch):
        """One snapshot lacks the rows of both, and which commit lacks which is not looked for."""
        before = table.refresh().version
        dropped_in_the_lake_alone(table, monkeypatch)
        assert table.delete(where=[("id", "in", [2, 3])]) == 2
        tier(table)
        now = table.refresh().version
        with pytest.raises(InvalidOptionError, match="removed rows from the lake that no record names"):
            changes(table, before + 1, now)
        with pytest.raises(InvalidOptionError, match="rows that no record names were removed from the lake"):
            rollback_to_version(table, before)
        assert changes(table, now + 1, now) == []

    def test_it_is_refused_where_the_snapshot_is_gone(self, table, clock):
        before = table.refresh().version
        table.append([row(6)])
        table.drop_partition(EU)
        dropped = table.refresh().version
        table.append([row(10)])
        tier(table)
        clock.advance(3 * DAY_MS)
        table.lake.expire_snapshots(retain_last=1)
        with pytest.raises(OffsetsTrimmedError, match=f"the first available version is {dropped + 1}$"):
            changes(table, before + 1, table.refresh().version)
        assert [one["id"] for one in changes(table, dropped + 1, table.state.version)] == [10]

    def test_it_is_refused_where_an_earlier_version_recorded_it(self, table, monkeypatch):
        """Those named rows by their offsets alone, and so told no others."""
        table.append([row(6)])
        before = table.refresh().version
        really = record_snapshot.find_partition_drops
        named = lambda *given: [replace(one, files={}, snapshot_id=None, total=None) for one in really(*given)]  # noqa: E731
        monkeypatch.setattr(record_snapshot, "find_partition_drops", named)
        table.drop_partition(EU)
        with pytest.raises(InvalidOptionError, match="removed rows from the lake that no record names"):
            changes(table, before + 1, table.refresh().version)
        with pytest.raises(InvalidOptionError, match="rows that no record names were removed from the lake"):
            rollback_to_version(table, before)

    def test_a_record_with_files_has_a_name_that_older_versions_refuse(self, table):
        table.drop_partition(EU)
        record = next(iter_records_backwards(table.storage, table.refresh()))
        action = find_partition_drop(record.actions)
        assert action.to_json()["type"] == "dropped-file-rows"
        assert PartitionDropRows.from_json(action.to_json()) == action
        assert as_stored(table.state).lake == table.state.lake, "checkpoints keep how many had no offsets"


def test_a_rollback_of_rows_that_lost_their_offsets_is_refused(table, engine):
    """They could not be told from others, and no reader could leave them out."""
    before = table.refresh().version
    table.append([row(6), row(7)])
    tier(table)
    engine.rewrite()
    table.append([row(9)])
    tier(table)
    with pytest.raises(InvalidOptionError, match="lost their offsets, because another engine rewrote"):
        rollback_to_version(table, before)
    assert ids(table.to_arrow()) == [*range(8), 9]


def require_all_told(table, before):
    now = table.refresh().version
    assert replayed(version(table, before), changes(table, before + 1, now)) == version(table, now)


class TestAllRows:
    @pytest.mark.parametrize("has_own", [False, True])
    def test_a_truncation_is_told_and_undone(self, table, has_own):
        table.append([row(6)]) if has_own else None
        before = table.refresh().version
        rows = ids(table.to_arrow())
        table.truncate()
        table.append([row(7)])
        tier(table)
        require_all_told(table, before)
        found = changes(table, before + 1, before + 1)
        assert sorted(one["id"] for one in found) == rows
        assert {one["_change_type"] for one in found} == {"delete"}
        rollback_to_version(table, before)
        assert ids(table.to_arrow()) == rows
        assert [one["id"] for one in changes(table, before + 2, before + 2)] == [7]

    def test_an_overwrite_is_told(self, table):
        before = table.refresh().version
        table.delete(where=[("id", "=", 1)])
        table.overwrite([row(7)])
        require_all_told(table, before)
        tier(table)
        require_all_told(table, before)

    def test_an_overwritten_partition_is_told(self, table, engine):
        before = table.refresh().version
        table.overwrite_partitions([row(8)])
        require_told(table, before, [0, 2, 4])
        rollback_to_version(table, before)
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == list(range(6))

    def test_a_deletion_of_all_rows_is_told(self, table):
        before = table.refresh().version
        assert table.delete(where=[("id", ">=", 0)]) == 6
        tier(table)
        require_told(table, before, list(range(6)))


KEYED_NAME = "sales.orders"
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("region", pa.string(), nullable=False)])
ROWS = [{"id": number, "region": ["eu", "us"][number % 2]} for number in range(6)]


def of_iceberg(store, world, _folder: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "region", StringType(), required=True)
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    catalog = FileCatalog(store, world=world)
    made = catalog.create_table(KEYED_NAME, schema, partition_spec=spec, properties={"format-version": "2"})
    made.append(pa.Table.from_pylist(ROWS, COLUMNS))


def of_paimon(store, _world, folder: Path) -> None:
    from interop.paimon_cases import Stock  # where pypaimon is left out, no case gets here

    options = {"primary_key": ["region", "id"], "partition_by": ["region"], "bucket": "1"}
    Stock(store, folder).make(KEYED_NAME, COLUMNS, ROWS, **options)


@pytest.fixture(params=[pytest.param(of_iceberg, id="iceberg"), pytest.param(of_paimon, id="paimon")])
def keyed_table(request, store, world, wh, own_cache, tmp_path):
    request.param(store, world, tmp_path)
    wh.adopt_table(KEYED_NAME, primary_key=["region", "id"])
    return wh.table(KEYED_NAME)


def test_changes_and_a_rollback(keyed_table):
    keyed_table.upsert([{"id": 6, "region": "eu"}, {"id": 7, "region": "us"}])
    before = keyed_table.refresh().version
    assert keyed_table.drop_partition({"region": "eu"}).rows == 4
    now = keyed_table.refresh().version
    found = changes(keyed_table, before + 1, now)
    assert sorted(one["id"] for one in found if one["_change_type"] == "delete") == [0, 2, 4, 6]
    assert replayed(version(keyed_table, before), found) == version(keyed_table, now)
    tier(keyed_table)
    assert ids(keyed_table.to_arrow()) == ids(keyed_table.lake.to_arrow()) == [1, 3, 5, 7]
    rollback_to_version(keyed_table, before)
    tier(keyed_table)
    assert ids(keyed_table.to_arrow()) == ids(keyed_table.lake.to_arrow()) == list(range(8))
