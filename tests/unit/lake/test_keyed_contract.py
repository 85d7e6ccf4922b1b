"""Promises of every lake for tables with a primary key: one class of cases, and an adapter for each format."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from faults.sim import sim_world
from interop.keyed_cases import KeyedTable, rows_of
from kit.lake_rows import lake_rows
from streamhouse_spark import CommitConflictError, OffsetRange, OffsetsTrimmedError
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage
from unit.lake.filters_of_reads import filter_of

EIGHT = [(i, f"n{i}", i) for i in range(8)]
DAYS = TableSchema.of("day date not null, id bigint not null, tag string not null, n bigint")


class KeyedContract:
    lake_format: str

    def table(self, storage: MemoryStorage | None = None, seed: int = 1, *args, **shape) -> KeyedTable:
        storage = storage or MemoryStorage(sim_world())
        return KeyedTable(storage, sim_world(seed), *args, lake_format=self.lake_format, **shape)

    @pytest.fixture
    def items(self) -> KeyedTable:
        table = self.table()
        table.change(EIGHT)
        table.tier()
        return table

    def test_inserts_updates_and_deletes(self, items):
        items.require_expected()
        items.change([(1, "b", 1), (9, "new", 9)], [(3,)])
        report = items.tier()
        assert (report.rows, report.conflicts, len(report.snapshots)) == (2, 0, 1)
        items.require_expected()
        assert items.lake().newest().offsets == items.state.ends == items.state.lake.offsets

    def test_changes_that_cancel_out_move_the_offsets(self, items):
        items.change([(100, "x", 1)])
        items.change([], [(100,)])
        assert items.tier().rows == 0
        assert items.lake().newest().offsets == items.state.ends
        items.require_expected()

    def test_all_rows_go_and_some_come_back(self, items):
        items.change([], list(items.rows))
        items.tier()
        items.require_expected()
        assert items.lake_rows() == []
        items.change(EIGHT[:3])
        items.tier()
        items.require_expected()

    @pytest.mark.parametrize("before_images", [True, False])
    def test_a_keyed_lake_has_partitions_buckets_and_keys_of_several_columns(self, before_images):
        table = self.table(
            None, 1, DAYS, key=["tag", "day", "id"], partition_by=["day"], bucket_key="id", num_buckets=3,
            before_images=before_images,
        )  # fmt: skip
        days = [dt.date(2026, 1, 1), dt.date(1969, 12, 31)]
        for step in range(3):
            table.change([(day, i, tag, step) for day in days for i in range(step, 9, 2) for tag in ("x", "漢\0")])
            table.change([], [key for key in table.rows if key[2] % 5 == step])
            table.tier(bytes_per_bucket_max=200)
            table.require_expected()
        table.add_column("more string")
        table.change([(days[0], 1, "x", 9, "new")])
        table.tier()
        table.require_expected()
        table.lake().compact()
        table.require_expected()

    def test_older_snapshots_keep_their_rows(self, items):
        first, held = items.lake().newest(), items.expected()
        items.change([(1, "b", 1)], [(3,)])
        items.tier()
        second, then = items.lake().newest(), items.expected()
        items.change([(1, "c", 1)], [(4,)])
        items.tier()
        items.lake().compact()
        for snapshot, rows in ((first, held), (second, then)):
            plan = items.lake().plan_read(snapshot_id=snapshot.id)
            assert rows_of(lake_rows(items.lake(), plan), items.state.schema) == rows
        assert items.lake().snapshot_as_of(second.timestamp_ms).id >= second.id

    def test_a_filter_shows_no_older_row_of_a_key(self, items):
        items.change([(1, "b", 100), (2, "n2", 100)], [(3,)])
        items.tier()
        lake = items.lake()
        for n in (*range(8), 100):
            plan = lake.plan_read(columns=["name", "n"], node=filter_of(lake.binding.spec.schema, ("n", "=", n)))
            found = lake_rows(lake, plan, filter=pc.field("n") == n)
            assert found.schema.names == ["name", "n"]
            if n == 100:
                assert sorted(found["name"].to_pylist()) == ["b", "n2"]
            else:
                assert found.to_pylist() == [{"name": f"n{n}", "n": n}] * (n not in (1, 2, 3))
        plan = lake.plan_read(columns=["name"])
        assert sorted(lake_rows(lake, plan)["name"].to_pylist()) == sorted(row[1] for row in items.rows.values())
        assert lake.plan_read(node=filter_of(lake.binding.spec.schema, ("id", ">", 1000))).splits == ()

    def test_what_a_round_says_travels_as_json(self, items):
        items.change([(1, "b", 1)], [(3,)])
        items.tier()  # ships tasks, files and contexts as JSON
        lake = items.lake()
        plan = lake.plan_read()
        shipped = [type(split).from_json(split.to_json()) for split in plan.splits]
        assert tuple(shipped) == plan.splits
        found = [batch for split in shipped for batch in lake.read_split(split, plan.projection)]
        assert rows_of(pa.Table.from_batches(found), items.state.schema) == items.expected()

    def test_a_truncated_keyed_table_has_an_empty_lake(self, items):
        items.truncate()
        items.tier()
        items.require_expected()
        assert items.lake_rows() == []
        assert items.lake().newest().starts == {0: 8}
        items.change([(1, "after", 1)])
        items.tier()
        items.require_expected()
        items.truncate()
        items.change([(1, "again", 1)])
        items.tier()
        items.require_expected()
        items.lake().compact()
        assert items.lake().newest().starts == items.state.first_offsets
        items.require_expected()

    def test_metadata_tables_of_a_keyed_lake_have_rows(self, items):
        items.change([(1, "b", 1)], [(3,)])
        items.tier()
        lake = items.lake()
        for name in set(lake.metadata_tables) & {"files", "entries", "manifests", "partitions", "snapshots"}:
            assert lake.metadata_table(name).to_pylist(), name
        assert lake.metadata_table("snapshots")["snapshot_id"].to_pylist()[-1] == lake.newest().id
        assert len(lake.metadata_table("files")) >= 2

    def test_the_lake_holds_no_changes(self, items):
        with pytest.raises(OffsetsTrimmedError):
            list(items.lake().read_offsets(0, OffsetRange(0, 4)))

    def test_of_two_rounds_over_the_same_changes_one_wins(self, items):
        items.change([(1, "b", 1)])
        rival = self.table(items.storage, 5)
        report = items.tier(before_commit=rival.tier)
        assert report.conflicts == 1
        items.require_expected()

    def test_a_compaction_that_lost_its_files_is_refused(self, items):
        for i in range(6):
            items.change([(i, "again", i)])
            items.tier()
        rival = self.table(items.storage, 5)
        fired = []

        def between() -> None:
            if not fired:
                fired.append(rival.lake().compact())

        self.before_compaction_commits(items, between)
        with pytest.raises(CommitConflictError):
            items.lake().compact()
        assert fired[0].files_removed
        items.require_expected()

    def test_a_compaction_that_a_truncation_overtook_brings_no_row_back(self, items):
        for i in range(6):
            items.change([(i, "again", i)])
            items.tier()
        rival = self.table(items.storage, 5)
        fired = []

        def between() -> None:
            if not fired:
                fired.append(rival.truncate())
                rival.tier()

        self.before_compaction_commits(items, between)
        with pytest.raises(CommitConflictError):
            items.lake().compact()
        items.rows.clear()
        items.require_expected()

    def before_compaction_commits(self, table: KeyedTable, between) -> None:
        """``between`` runs when a compaction has written its files."""
        ids = table.world.ids
        real = ids.new_uuid

        def new_uuid() -> str:
            between()
            return real()

        ids.new_uuid = new_uuid

    def test_compaction_keeps_offsets_and_says_what_it_would_do(self, items):
        for i in range(6):
            items.change([(i, "again", i)], [(7 - i,)] if (7 - i,) in items.rows and i < 1 else [])
            items.tier()
        before = items.lake().newest()
        asked = items.lake().compact(dry_run=True)
        assert items.lake().newest() == before
        done = items.lake().compact()
        assert asked.files_removed == done.files_removed >= 7
        assert done.rows == len(items.rows)
        assert items.lake().newest().offsets == before.offsets
        assert items.lake().newest().id != before.id
        items.require_expected()
        assert items.lake().compact().files_removed == 0
        items.change([(1, "later", 1)])
        items.tier()
        items.require_expected()


class TestIceberg(KeyedContract):
    lake_format = "iceberg"


@pytest.mark.paimon
class TestPaimon(KeyedContract):
    lake_format = "paimon"
