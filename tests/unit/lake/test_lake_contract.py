"""Promises of every lake, whatever its format: one class of cases, and an adapter for each format."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestFile, clear_manifest_cache

from interop.lake_cases import (
    EVENTS,
    EVERY_TYPE,
    PLAIN,
    TABLE_UUID,
    batches_from,
    by_bucket,
    event_rows,
    every_type_rows,
    lake_of,
    sorted_rows,
    tier,
    write_round,
    written_files,
)
from kit.lake_rows import lake_rows
from streamhouse_spark import (
    CommitConflictError,
    CorruptDataError,
    InvalidNameError,
    LakeMismatchError,
    LakeRolledBackError,
    OffsetRange,
    OffsetsTrimmedError,
    SchemaMismatchError,
    SnapshotExpiredError,
    Warehouse,
)
from streamhouse_spark.expressions.predicates import UNKNOWN
from streamhouse_spark.lake.parquet import bucket_writer as bucket_files
from streamhouse_spark.lake.parquet import file_writer as data_file
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.lake.types import COMMIT_USER, LakeFile, LakeProjection, LakeSplit, WriteContext
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.table.maintenance.tiering import tier_table
from unit.lake.filters_of_reads import filter_of

PARTITION_TYPES = [n for n in EVERY_TYPE.names if n in ("a_byte", "a_short", "an_int", "a_string", "a_date")]
"""Columns that every format can be partitioned by."""


def plain_rows(first: int, num_rows: int) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


def read_rows(lake, plan=None) -> pa.Table:
    return lake_rows(lake, plan or lake.plan_read())


def _ids(lake) -> list[int]:
    return sorted(read_rows(lake)["id"].to_pylist())


class LakeContract:
    lake_format: str

    def lake(self, store, schema: TableSchema = PLAIN, **shape):
        return lake_of(store, schema, lake_format=self.lake_format, **shape)

    def by_bucket(self, rows: pa.Table, key: str, num_buckets: int) -> dict[int, pa.Table]:
        return by_bucket(rows, key, num_buckets, self.lake_format)

    # -- create, adopt, refuse ----------------------------------------------------------------------------------------

    def test_nothing_exists_before_it_is_created(self, store):
        lake = self.lake(store)
        assert not lake.exists()
        assert lake.newest() is None
        plan = lake.plan_read(columns=["name"])
        assert plan.snapshot is None
        assert read_rows(lake, plan).schema.names == ["name"]
        for use in (
            lambda: lake.plan_read(snapshot_id=7),
            lambda: lake.scan_files(snapshot_id=7, columns=["id"], schema=PLAIN),
            lambda: lake.snapshot(7),
            lambda: lake.snapshot_by_name("main"),
            lambda: lake.snapshot_as_of(0),
        ):
            with pytest.raises(SnapshotExpiredError, match="no lake table"):
                use()
        with pytest.raises(LakeMismatchError, match="has no lake table"):
            lake.write_context()
        for name in lake.metadata_tables:
            assert lake.metadata_table(name).num_rows == 0
        lake.drop(purge=True)
        assert not store.list("lake/")

    def test_another_tables_lake_is_refused(self, store):
        tier(self.lake(store), plain_rows(0, 1))
        other = self.lake(store, table_uuid="f" * 32)
        for use in (other.create_or_evolve, other.newest, other.write_context):
            with pytest.raises(LakeMismatchError, match="belongs to table 0123"):
                use()
        for purge in (False, True):
            other.drop(purge=purge)
        assert _ids(self.lake(store)) == [0]

    def test_a_dropped_place_is_not_taken_again(self, store):
        lake = self.lake(store)
        tier(lake, plain_rows(0, 1))
        lake.drop(purge=False)
        assert not lake.exists()
        with pytest.raises(LakeMismatchError, match="dropped"):
            lake.create_or_evolve()

    def test_columns_are_added_and_nothing_else_is_changed(self, store):
        tier(self.lake(store), plain_rows(0, 2))
        wider = self.lake(store, TableSchema.of("id bigint, name string, more int comment 'why'"))
        tier(wider, pa.table({"id": [2], "name": ["n2"], "more": pa.array([7], pa.int32())}))
        assert read_rows(wider).sort_by("id")["more"].to_pylist() == [None, None, 7]
        assert read_rows(wider, wider.plan_read(columns=["more"]))["more"].null_count == 2
        wider.create_or_evolve()
        for schema in ("id bigint, name string, more bigint", "id bigint", "id bigint, name string, more int not null"):
            with pytest.raises(LakeMismatchError, match="does not fit"):
                self.lake(store, TableSchema.of(f"{schema}, later int not null")).create_or_evolve()

    # -- round trips --------------------------------------------------------------------------------------------------

    def test_rows_of_every_type_are_partitioned_and_bucketed(self, store):
        lake = self.lake(store, EVERY_TYPE, partition_by=["a_short"], bucket_key="id", num_buckets=4)
        rows = every_type_rows(60)
        tier(lake, self.by_bucket(rows, "id", 4))
        plan = lake.plan_read()
        read = read_rows(lake, plan)
        assert read.schema.equals(EVERY_TYPE.arrow)
        assert sorted_rows(read) == sorted_rows(rows)
        assert plan.num_rows == 60
        split_rows = [b for split in plan.splits for b in lake.read_split(split, plan.projection)]
        assert sorted_rows(pa.Table.from_batches(split_rows)) == sorted_rows(rows)

    @pytest.mark.parametrize("name", PARTITION_TYPES)
    def test_partitioned_by_a_column_of_each_type(self, memory, name):
        lake = self.lake(memory, EVERY_TYPE, partition_by=[name])
        rows = every_type_rows(25)
        tier(lake, rows)
        assert sorted_rows(read_rows(lake)) == sorted_rows(rows)
        partitions = {
            row["partition"] if isinstance(row["partition"], str) else str(row["partition"])
            for row in lake.metadata_table("files").to_pylist()
        }
        assert len(partitions) == len(set(rows[name].to_pylist()))
        assert pa.Table.from_batches([b for _, b in lake.read_offsets(0, OffsetRange(0, 25))]).equals(rows)
        for value in set(rows[name].to_pylist()) - {None}:
            plan = lake.plan_read(node=filter_of(EVERY_TYPE, (name, "=", value)))
            matching = lake_rows(lake, plan, filter=pc.field(name) == pa.scalar(value, rows[name].type))
            assert matching.num_rows == rows[name].to_pylist().count(value), value

    def test_values_of_partitions_that_no_folder_can_have(self, store):
        values = ["x" * 500, "漢" * 150, "a/b", "..", ".", "%2F", " ", "", None, "a=b:c*?#[1]", "\t\n"]
        schema = TableSchema.of("id bigint, p string")
        rows = pa.table({"id": range(len(values)), "p": values}, schema=schema.arrow)
        lake = self.lake(store, schema, partition_by=["p"])
        tier(lake, rows)
        tier(lake, rows)
        assert sorted_rows(read_rows(lake)) == sorted_rows(pa.concat_tables([rows, rows]))

    def test_rows_with_null_bucket_keys_are_tiered(self, store):
        lake = self.lake(store, EVENTS, bucket_key="region", num_buckets=3)
        rows = event_rows(60, null_keys=True)
        tier(lake, self.by_bucket(rows, "region", 3))
        assert sorted_rows(read_rows(lake)) == sorted_rows(rows)

    def test_a_round_without_news_commits_nothing(self, store):
        lake = self.lake(store)
        tier(lake, plain_rows(0, 5))
        before = lake.newest()
        assert lake.commit([], expected={0: 5}, new={0: 5}, context=lake.write_context()) is None
        assert lake.newest() == before

    def test_rows_that_do_not_add_up_are_not_committed(self, store):
        lake = self.lake(store)
        lake.create_or_evolve()
        files, new = write_round(lake, {0: plain_rows(0, 5)}, {})
        for offsets in ({0: 6}, {0: 5, 1: 1}):
            with pytest.raises(ValueError, match="rows for an advance"):
                lake.commit(files, expected={}, new=offsets, context=lake.write_context())
        with pytest.raises(ValueError, match="rows for an advance"):
            lake.commit([], expected={}, new=new, context=lake.write_context())

    @pytest.mark.parametrize("offsets", [OffsetRange(0, 4), OffsetRange(0, 6), OffsetRange(1, 6)])
    def test_batches_that_do_not_cover_the_range_are_corrupt(self, store, offsets):
        lake = self.lake(store)
        lake.create_or_evolve()
        with pytest.raises(CorruptDataError, match="rows continue at offset"):
            written_files(lake, lake.write_context(), 0, offsets, batches_from(0, plain_rows(0, 5)))

    def test_values_travel_as_json(self, store):
        lake = self.lake(store, EVENTS, partition_by=["day"], bucket_key="id", num_buckets=2)
        lake.create_or_evolve()
        context = WriteContext.from_json(lake.write_context().to_json())
        rows = self.by_bucket(event_rows(20), "id", 2)
        files = written_files(lake, context, 0, OffsetRange(0, rows[0].num_rows), batches_from(0, rows[0]))
        assert [LakeFile.from_json(f.to_json()) for f in files] == files
        lake.commit(files, expected={}, new={0: rows[0].num_rows}, context=context)
        plan = lake.plan_read()
        assert LakeProjection.from_json(plan.projection.to_json()) == plan.projection
        assert tuple(LakeSplit.from_json(s.to_json()) for s in plan.splits) == plan.splits

    def test_files_roll_and_stay_in_offset_order(self, memory, monkeypatch):
        monkeypatch.setattr(data_file, "ROW_GROUP_ROWS_MAX", 20)
        lake = self.lake(memory, target_file_bytes=1)
        tier(lake, plain_rows(0, 95))
        files = sorted(lake.metadata_table("files")["file_path"].to_pylist())
        assert len(files) == 5
        keys = sorted(info.key for info in memory.list("lake/") if info.key.endswith(".parquet"))
        ids = [pq.read_table(pa.BufferReader(memory.read(key)))["id"].to_pylist() for key in keys]
        assert [i for part in ids for i in part] == list(range(95))

    @pytest.mark.parametrize(
        "limits",
        [
            {"BUFFERED_BYTES_MAX": 500},
            {"BUFFERED_BYTES_MAX": 500, "OPEN_FILES_MAX": 3},
            {"BUFFERED_BYTES_MAX": 0, "OPEN_FILES_MAX": 1},
            {"PARTITIONS_MAX": 4},
            {"ROW_GROUP_ROWS_MAX": 2, "OPEN_FILES_MAX": 2},
        ],
        ids=str,
    )
    def test_many_partitions_within_any_limits(self, memory, monkeypatch, limits):
        for name, value in limits.items():
            monkeypatch.setattr(data_file if name.startswith("ROW") else bucket_files, name, value)
        schema = TableSchema.of("id bigint, p int")
        lake = self.lake(memory, schema, partition_by=["p"])
        rows = pa.table(
            {"id": range(200), "p": pa.array([i * 7 % 11 for i in range(200)], pa.int32())}, schema=schema.arrow
        )
        tier(lake, rows)
        assert sorted_rows(read_rows(lake)) == sorted_rows(rows)
        got = pa.Table.from_batches([b for _, b in lake.read_offsets(0, OffsetRange(0, 200))])
        assert got.to_pylist() == rows.to_pylist()

    # -- reading ------------------------------------------------------------------------------------------------------

    def test_columns_predicates_and_filter(self, store):
        lake = self.lake(store)
        for i in range(4):
            tier(lake, plain_rows(10 * i, 10))
        schema = lake.binding.spec.schema
        node = filter_of(schema, ("id", ">=", 30), ("name", "not null", None))
        plan = lake.plan_read(columns=["name", "id"], node=node)
        assert len(plan.splits) == 1
        read = lake_rows(lake, plan, filter=pc.field("id") > 37)
        assert read.schema.names == ["name", "id"]
        assert read["id"].to_pylist() == [38, 39]
        predicates = [("id", "in", [1, 25]), ("ID", "is null", None), ("id", "=", 39), ("id", "<", 10), ("id", "!=", 3)]
        assert [len(lake.plan_read(node=filter_of(schema, p)).splits) for p in predicates] == [2, 0, 1, 1, 4]
        assert len(lake.plan_read(node=UNKNOWN).splits) == 4
        with pytest.raises(SchemaMismatchError, match="nme"):
            lake.plan_read(columns=["nme"])

    @pytest.mark.parametrize("name", EVERY_TYPE.names[:14])
    def test_no_predicate_prunes_a_row_that_matches(self, memory, name):
        lake = self.lake(memory, EVERY_TYPE)
        rounds = [every_type_rows(12, seed=i) for i in range(3)]
        for rows in rounds:
            tier(lake, rows)
        rows = pa.concat_tables(rounds)
        values = sorted(set(rows[name].to_pylist()) - {None}, key=repr)
        for value in [values[0], values[len(values) // 2], values[-1]]:
            for operator, compare in (("=", pc.equal), ("<", pc.less), (">=", pc.greater_equal), ("!=", pc.not_equal)):
                scalar = pa.scalar(value, EVERY_TYPE.arrow.field(name).type)
                plan = lake.plan_read(node=filter_of(EVERY_TYPE, (name, operator, value)))
                wanted = rows.filter(compare(rows[name], scalar))
                found = read_rows(lake, plan)
                assert sorted_rows(found.filter(compare(found[name], scalar))) == sorted_rows(wanted), (value, operator)
        nulls = lake.plan_read(node=filter_of(EVERY_TYPE, (name, "is null", None)))
        assert read_rows(lake, nulls)[name].null_count == rows[name].null_count

    def test_of_snapshots_with_one_time_the_newest_counts(self, store, clock, world):
        lake = self.lake(store, world=world)
        first = tier(lake, plain_rows(0, 2))
        clock.jump(-3_600_000)  # until the clock has caught up, each snapshot has the time of the one before
        for at in (2, 4):
            newest = tier(lake, plain_rows(at, 2))
            assert newest.timestamp_ms == first.timestamp_ms
            assert lake.snapshot_as_of(first.timestamp_ms).id == newest.id

    def test_planning_finds_what_files_say(self, store):
        lake = self.lake(store, EVENTS, partition_by=["day"], bucket_key="id", num_buckets=2)
        rows = event_rows(40)
        tier(lake, self.by_bucket(rows, "id", 2))
        scan = lake.scan_files(
            snapshot_id=lake.newest().id, columns=["id", "day"], schema=EVENTS, statistics_of=["id", "region"]
        )
        assert scan.readable_by_name == {"id", "day"}
        assert sum(file.num_rows for file in scan.files) == 40
        read = {file.location: lake.read_split(file.splits()[0], scan.projection) for file in scan.files}
        for file in scan.files:
            found = pa.Table.from_batches(list(read[file.location]))
            days = {None if day is None else (day - EPOCH_DAY).days for day in found["day"].to_pylist()}
            assert {file.partition["day"]} == days
            assert set(self.by_bucket(found, "id", 2)) == {file.bucket}
            low_high = pc.min_max(found["id"]).as_py()
            assert (file.statistics["id"].low, file.statistics["id"].high) == (low_high["min"], low_high["max"])
            assert (file.statistics["id"].null_count, file.statistics["id"].value_count) == (0, file.num_rows)

    def test_earlier_snapshots_are_found_by_id_name_and_time(self, store, clock, world):
        lake = self.lake(store, world=world)
        first = tier(lake, plain_rows(0, 2))
        clock.advance(1_000)
        second = tier(lake, plain_rows(2, 2))
        assert (first.offsets, second.offsets) == ({0: 2}, {0: 4})
        assert read_rows(lake, lake.plan_read(snapshot_id=first.id)).num_rows == 2
        assert lake.snapshot(first.id) == first
        assert lake.snapshot_as_of(second.timestamp_ms).id == second.id
        assert lake.snapshot_as_of(second.timestamp_ms - 1).id == first.id
        with pytest.raises(SnapshotExpiredError, match="choose a later time"):
            lake.snapshot_as_of(first.timestamp_ms - 1)
        with pytest.raises(SnapshotExpiredError, match="has no snapshot 5"):
            lake.plan_read(snapshot_id=5)
        assert lake.snapshot_by_name(COMMIT_USER) == lake.newest() == second
        with pytest.raises(SnapshotExpiredError, match="'x'"):
            lake.snapshot_by_name("x")

    def test_a_read_of_files_that_were_expired_says_so(self, store):
        lake = self.lake(store)
        tier(lake, plain_rows(0, 2))
        plan = lake.plan_read()
        for info in store.list("lake/"):
            if info.key.endswith(".parquet"):
                store.delete(info.key)
        with pytest.raises(SnapshotExpiredError, match="retry the query"):
            lake_rows(lake, plan)

    def test_no_flipped_byte_of_a_data_file_gives_other_rows(self, memory):
        lake = self.lake(memory)
        rows = plain_rows(0, 200)
        tier(lake, rows)
        (key,) = [info.key for info in memory.list("lake/") if info.key.endswith(".parquet")]
        whole = memory.read(key)
        plan = lake.plan_read()
        (split,) = plan.splits
        detected = 0
        for at in range(len(whole)):
            memory.put(key, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                read = pa.Table.from_batches(list(lake.read_split(split, plan.projection)))
            except CorruptDataError:
                detected += 1
                continue
            assert read.equals(rows), at
        assert detected > len(whole) // 2

    def check_damage(self, store, keys, damage, **snapshot):
        """Damage each file of a lake of 200 rows at 25 places: reads fail, or a flipped byte changes no count."""
        lake = self.lake(store)
        for key in keys:
            whole = store.read(key)
            for at in range(3, len(whole) - 4, max(1, len(whole) // 25)):
                flipped = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
                store.put(key, whole[:at] if damage == "cut" else flipped)
                clear_manifest_cache()
                try:
                    plan = lake.plan_read(**snapshot)
                    assert sum(b.num_rows for s in plan.splits for b in lake.read_split(s, plan.projection)) == 200
                except (CorruptDataError, SnapshotExpiredError, LakeMismatchError):
                    continue
                assert damage == "flipped", (key, at)
            store.put(key, whole)
        clear_manifest_cache()
        assert len(_ids(lake)) == 200

    @pytest.fixture
    def disk(self, tmp_path):
        """A store on disk with a lake of 200 rows."""
        store = LocalStorage(str(tmp_path), fsync=False)
        tier(self.lake(store), plain_rows(0, 200))
        return store

    def test_metadata_tables_of_a_lake_have_rows(self, store):
        lake = self.lake(store, EVERY_TYPE, partition_by=["a_date"])
        tier(lake, every_type_rows(10))
        tier(lake, every_type_rows(10, seed=1))
        for name in lake.metadata_tables:
            table = lake.metadata_table(name)
            table.to_pylist()
            assert not any(pa.types.is_large_string(t) or pa.types.is_large_binary(t) for t in table.schema.types), name
        assert lake.metadata_table("snapshots")["snapshot_id"].to_pylist()[-1] == lake.newest().id
        assert sum(lake.metadata_table("files")["record_count"].to_pylist()) == 20
        with pytest.raises(InvalidNameError, match="did you mean snapshots"):
            lake.metadata_table("snapshot")

    # -- the fence ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("handle", ["stale", "fresh"])
    def test_of_two_rounds_over_the_same_offsets_one_wins(self, memory, handle):
        lake = self.lake(memory)
        tier(lake, plain_rows(0, 2))
        context = lake.write_context()
        files, new = write_round(lake, {0: plain_rows(2, 2)}, {0: 2})
        tier(self.lake(memory), plain_rows(2, 2))
        if handle == "fresh":
            lake.newest()
        with pytest.raises(CommitConflictError, match="bucket 0 of the lake is at offset 4, expected 2"):
            lake.commit(files, expected={0: 2}, new=new, context=context)
        assert _ids(lake) == [0, 1, 2, 3]

    def test_a_changed_shape_is_a_conflict(self, store):
        lake = self.lake(store)
        tier(lake, plain_rows(0, 2))
        context = lake.write_context()
        files, new = write_round(lake, {0: plain_rows(2, 2)}, {0: 2})
        self.lake(store, TableSchema.of("id bigint, name string, more int")).create_or_evolve()
        with pytest.raises(CommitConflictError, match="retry the round"):
            lake.commit(files, expected={0: 2}, new=new, context=context)

    @pytest.mark.parametrize("damage", ["deleted", "cut"])
    def test_files_must_be_there_when_they_are_committed(self, memory, damage):
        lake = self.lake(memory)
        lake.create_or_evolve()
        context = lake.write_context()
        files, new = write_round(lake, {0: plain_rows(0, 2)}, {})
        key = files[0].location.removeprefix(memory.url + "/")
        data = memory.read(key)
        memory.delete(key)
        if damage == "cut":
            memory.put(key, data[:-1])
        with pytest.raises(CommitConflictError, match="retry the round"):
            lake.commit(files, expected={}, new=new, context=context)
        assert lake.newest() is None

    def test_a_truncation_drops_what_was_there(self, store):
        lake = self.lake(store, EVENTS, partition_by=["day"])
        rows = event_rows(20)
        first = tier(lake, rows)
        context = lake.write_context()
        emptied = lake.commit([], expected={0: 20}, new={0: 20}, context=context, starts={0: 20})
        assert (emptied.offsets, emptied.starts) == ({0: 20}, {0: 20})
        assert lake.newest() == emptied
        assert read_rows(lake).num_rows == 0
        files, new = write_round(lake, {0: rows.slice(0, 5)}, {0: 20})
        with pytest.raises(CommitConflictError, match="before a truncation: another tiering service committed"):
            lake.commit(files, expected={0: 20}, new=new, context=context)
        with pytest.raises(LakeRolledBackError):
            lake.commit(files, expected={0: 20}, new=new, context=context, expected_starts={0: 30}, starts={0: 30})
        lake.commit(files, expected={0: 20}, new=new, context=context, expected_starts={0: 20}, starts={0: 20})
        assert sorted_rows(read_rows(lake)) == sorted_rows(rows.slice(0, 5))
        assert sorted_rows(read_rows(lake, lake.plan_read(snapshot_id=first.id))) == sorted_rows(rows)
        assert list(lake.read_offsets(0, OffsetRange(20, 25)))
        with pytest.raises(OffsetsTrimmedError):
            list(lake.read_offsets(0, OffsetRange(18, 22)))

    def test_offsets_and_commit_user_are_in_the_snapshot(self, store):
        lake = self.lake(store)
        tier(lake, plain_rows(0, 5))
        snapshot = tier(lake, plain_rows(5, 3))
        said = self.properties_of(lake, snapshot.id)
        assert said["streamhouse-offsets"] == f'{{"version":1,"table_uuid":"{TABLE_UUID}","offsets":{{"0":8}}}}'
        assert said["commit-user"] == COMMIT_USER

    def properties_of(self, lake, snapshot_id: int) -> dict[str, str]:
        raise NotImplementedError


EPOCH_DAY = pa.scalar(0, pa.date32()).as_py()


class TestIceberg(LakeContract):
    lake_format = "iceberg"

    @pytest.mark.parametrize("name", EVERY_TYPE.names[1:14])
    def test_partitioned_by_a_column_of_each_type(self, memory, name):
        """pyiceberg 0.12 reads doubles of manifests with 32 bits, see `iceberg_io`."""
        super().test_partitioned_by_a_column_of_each_type(memory, name)

    @pytest.mark.parametrize("kind", ["/metadata/v", "/metadata/snap-", "-m0.avro"])
    @pytest.mark.parametrize("damage", ["cut", "flipped"])
    def test_damaged_metadata_is_an_error(self, disk, kind, damage):
        (*_, key) = sorted(info.key for info in disk.list("lake/") if kind in info.key)
        self.check_damage(disk, [key], damage)

    def test_a_manifest_that_lost_a_file_is_damage(self, tmp_path, monkeypatch):
        """As a flipped status of an entry does: Avro has no checksum."""
        table = Warehouse(str(tmp_path)).create_table("t", "id BIGINT", buckets=2)
        table.append([{"id": number} for number in range(40)])
        tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))
        fetch = ManifestFile.fetch_manifest_entry
        monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", lambda *args, **kwargs: fetch(*args, **kwargs)[1:])
        with pytest.raises(CorruptDataError, match=r"its manifests have \d files, expected \d from the manifest list"):
            Warehouse(str(tmp_path)).table("t").lake.to_arrow()

    def properties_of(self, lake, snapshot_id):
        return lake.binding.load().metadata.snapshot_by_id(snapshot_id).summary.additional_properties


@pytest.mark.paimon
class TestPaimon(LakeContract):
    lake_format = "paimon"

    @pytest.mark.parametrize(
        "kind", ["snapshot/snapshot", "manifest/manifest-list", "manifest/manifest", "schema/schema"]
    )
    @pytest.mark.parametrize("damage", ["cut", "flipped"])
    def test_damaged_metadata_is_an_error(self, disk, kind, damage):
        keys = [i.key for i in disk.list("lake/") if f"/{kind}-" in i.key and ("-list-" in i.key) == ("list" in kind)]
        assert keys
        self.check_damage(disk, keys, damage, snapshot_id=1)

    def properties_of(self, lake, snapshot_id):
        snapshot = lake.binding.snapshots.find(snapshot_id)
        return {**snapshot.properties, "commit-user": snapshot.commit_user}
