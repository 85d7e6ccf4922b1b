"""Tables whose partitioning changes: each file keeps the partitions that it was written with, known to all readers."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.manifest import clear_manifest_cache

from kit.rows import ids
from kit.tables import tier
from kit.warehouses import open_warehouse
from streamhouse_spark import (
    CommitConflictError,
    FormatVersionError,
    InvalidOptionError,
    LakeMismatchError,
    SchemaMismatchError,
    Table,
)
from streamhouse_spark.config.table_properties import VIEW
from streamhouse_spark.dml.overwrite import OverwriteTarget
from streamhouse_spark.lake.iceberg import compaction
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.checkpoint import as_stored, write_checkpoint
from streamhouse_spark.log.gc.retention import plan_trim
from streamhouse_spark.log.record import read_record
from streamhouse_spark.table import alter
from streamhouse_spark.write.auto_compaction import compact_inline_rows

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
DDL = "id BIGINT, ts TIMESTAMP, region STRING, day DATE"
START = dt.datetime(1969, 12, 30, tzinfo=dt.UTC)
BUCKETS = {"buckets": 2, "properties": {"bucket.key": "id"}}


def row(number: int) -> dict:
    """Every six hours a row, from before 1970 on."""
    at = START + dt.timedelta(hours=6 * number)
    return {"id": number, "ts": at, "region": ["eu", "us", None][number % 3], "day": at.date()}


def rows(*numbers: int) -> list[dict]:
    return [row(number) for number in numbers]


@pytest.fixture(autouse=True)
def own_manifests() -> None:
    """Stores of other tests have manifests of the same names, which pyiceberg keeps."""
    clear_manifest_cache()


@pytest.fixture
def table(wh) -> Table:
    return wh.create_table("d.t", DDL, partition_by=["days(ts)"], **BUCKETS)


def lake_of(table: Table):
    return FileCatalog(table.storage, world=table.world).load_table(str(table.path))


def fields_of(table: Table) -> dict[int, list[tuple[int, str, str]]]:
    """Spec → ids, names and transforms of its fields."""
    specs = lake_of(table).specs()
    return {i: [(f.field_id, f.name, str(f.transform)) for f in spec.fields] for i, spec in specs.items()}


def files_of(table: Table) -> list:
    return [task.file for task in lake_of(table).scan().plan_files()]


def planned(table: Table, files_min: int) -> list:
    """The groups of files that compaction would join, were so few worth it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "COMPACT_FILES_MIN", files_min)
        place = table.open_lake().binding
        lake = place.require()
        return compaction.plan_compaction(place, lake, lake.current_snapshot())


def check_reads(table: Table, numbers: list[int]) -> None:
    """Every reader finds exactly these rows, by any filter on what the table is, or was, partitioned by."""
    assert ids(table.to_arrow()) == numbers
    for number in numbers[:: 1 + len(numbers) // 4]:
        found = row(number)
        for name, kind in (("ts", pa.timestamp("us", "UTC")), ("day", pa.date32())):
            value = pa.scalar(found[name], kind)
            expected = [n for n in numbers if row(n)[name] == found[name]]
            assert ids(table.to_arrow(filter=pc.field(name) == value)) == expected
            assert ids(table.to_arrow(filter=pc.field(name) > value)) == [
                n for n in numbers if row(n)[name] > found[name]
            ]
    for region in ("eu", "us"):
        expected = [n for n in numbers if row(n)["region"] == region]
        assert ids(table.to_arrow(filter=[("region", "=", region)])) == expected
    assert ids(table.to_arrow(filter=pc.field("region").is_null())) == [n for n in numbers if n % 3 == 2]


def check_lake(table: Table, numbers: list[int]) -> None:
    """The lake has these rows, as Iceberg's own library reads it with and without a filter."""
    check_reads(table, numbers)
    lake = lake_of(table)
    assert ids(lake.scan().to_arrow()) == numbers
    for region in ("eu", "us"):
        found = ids(lake.scan(row_filter=f"region = '{region}'").to_arrow())
        assert found == [n for n in numbers if row(n)["region"] == region]
    since = "ts >= '1970-01-01T00:00:00+00:00'"
    assert ids(lake.scan(row_filter=since).to_arrow()) == [n for n in numbers if n >= 8]


class TestTheRecord:
    def test_it_says_how_rows_are_partitioned_from_now_on(self, table, other_process):
        table.set_partitioning(["hours(ts)", "REGION"])
        for state in (table.state, other_process().table("d.t").state):
            assert state.partition_by == ("region",)
            assert state.properties["partition.fields"] == "hours(ts), region"
            assert state.parsed.partitioned_by == ("hours(ts)", "region")
            assert [(f.schema_id, f.columns, f.fields) for f in state.former_partitionings] == [(1, (), "days(ts)")]
            assert (state.schema_id, state.schemas[2]) == (2, state.schemas[1])
        assert table.inspect.history().to_pylist()[-1]["operation"] == "change partitioning"

    def test_columns_alone_need_no_property_and_none_are_no_partitions(self, table):
        table.set_partitioning(["day", "region"])
        assert "partition.fields" not in table.state.properties
        assert table.partition_by == ("day", "region")
        table.set_partitioning([])
        assert table.state.parsed.partitioned_by == ()
        assert [f.fields for f in table.state.former_partitionings] == ["days(ts)", "day, region"]

    def test_what_is_so_already_is_left(self, table):
        version = table.state.version
        table.set_partitioning(["days(ts)"])
        table.set_partitioning(["bucket(2, ID)", "day(ts)"])
        assert table.refresh().version == version

    def test_a_checkpoint_holds_it_and_an_older_version_of_the_package_stops(self, table, monkeypatch):
        before = as_stored(table.state)
        assert checkpoint_module._format_version(before) is None
        table.set_partitioning(["region"])
        state = as_stored(table.state)
        assert (state.former_partitionings, state.partition_by) == (
            table.state.former_partitionings,
            table.state.partition_by,
        )
        write_checkpoint(table.storage, table.state)
        monkeypatch.setattr(checkpoint_module, "NEWEST_VERSION", checkpoint_module.ARCHIVE_VERSION)
        with pytest.raises(FormatVersionError, match="upgrade"):
            checkpoint_module.read_checkpoint(table.storage, table.uuid, table.state.version)

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ("days(ts)", "expected a list of"),
            (["days(region)"], "expected a date or a timestamp"),
            (["days(ts)", "ts"], "'ts' occurs twice"),
            (["weeks(ts)"], "unknown transform 'weeks'"),
            (["id", "ts", "region", "day"], "partition by fewer columns"),
            (["days(ts)", "bucket(4, id)"], r"bucket\(4, id\): table d.t has bucket\(2, id\)"),
            (["bucket(2, region)"], "which cannot be changed"),
        ],
    )
    def test_partitionings_that_cannot_be_are_rejected(self, table, fields, says):
        version = table.state.version
        with pytest.raises(InvalidOptionError, match=says):
            table.set_partitioning(fields)
        with pytest.raises(SchemaMismatchError, match="unknown"):
            table.set_partitioning(["days(unknown)"])
        assert table.refresh().version == version

    def test_tables_with_a_fixed_partitioning_reject_a_change(self, wh):
        paimon = wh.create_table("d.p", DDL, partition_by=["day"], properties={"table.datalake.format": "paimon"})
        with pytest.raises(InvalidOptionError, match="has a paimon lake, expected Iceberg"):
            paimon.set_partitioning(["region"])
        made = wh.create_table("d.q", DDL, partition_by=["region"], properties={"table.datalake.format": "paimon"})
        made.append(paimon.to_arrow())
        rule = {"table.auto-partition.enabled": "true"}
        expiring = wh.create_table("d.e", DDL, partition_by=["day"], properties=rule)
        with pytest.raises(InvalidOptionError, match="the table has no partition columns"):
            expiring.set_partitioning(["days(ts)"])
        keyed = wh.create_table("d.k", DDL, primary_key=["id"])
        with pytest.raises(InvalidOptionError, match="partition column 'region' is not in primary"):
            keyed.set_partitioning(["region"])
        branched = wh.create_table("d.b", DDL)
        branched.create_branch("audit")
        with pytest.raises(InvalidOptionError, match="not changing the partitioning; use its table"):
            branched.branch("audit").set_partitioning(["region"])
        assert all(t.refresh().former_partitionings == () for t in (paimon, expiring, keyed, branched))
        view = replace(branched.state, properties={VIEW: "select 1"})
        with pytest.raises(InvalidOptionError, match="is a materialized view"):
            alter._require_supported(view)


class TestTheLake:
    def test_each_file_keeps_the_partitions_that_it_was_written_with(self, table):
        table.append(rows(*range(8)))
        tier(table)
        old = {file.file_path for file in files_of(table)}
        table.append(rows(*range(8, 12)))  # tiered by the newest partitioning
        table.set_partitioning(["region"])
        table.append(rows(*range(12, 16)))
        check_reads(table, list(range(16)))
        assert lake_of(table).metadata.default_spec_id == 0, "nothing but the log knows of it yet"
        tier(table)
        assert fields_of(table) == {
            0: [(1000, "ts_day", "day"), (1001, "id_bucket", "bucket[2]")],
            1: [(1002, "region", "identity"), (1001, "id_bucket", "bucket[2]")],
        }
        lake = lake_of(table)
        assert (lake.metadata.default_spec_id, lake.metadata.last_partition_id) == (1, 1002)
        assert {file.file_path: file.spec_id for file in files_of(table)} == {
            file.file_path: int(file.file_path not in old) for file in files_of(table)
        }
        assert {file.partition[0] for file in files_of(table) if file.spec_id == 1} == {"eu", "us", None}
        check_lake(table, list(range(16)))

    def test_a_partitioning_that_comes_back_has_its_fields_again(self, table):
        changes = (["region"], ["days(ts)"], ["region"], ["hours(ts)", "region"], [])
        for number, fields in enumerate(changes):
            table.append(rows(number))
            tier(table)
            table.set_partitioning(fields)
        table.append(rows(5))
        tier(table)
        found = fields_of(table)
        assert [name for _, name, _ in found[0]] == ["ts_day", "id_bucket"]
        assert found[2] == [(1003, "ts_hour", "hour"), (1002, "region", "identity"), (1001, "id_bucket", "bucket[2]")]
        assert found[3] == [(1001, "id_bucket", "bucket[2]")]
        assert {file.spec_id for file in files_of(table)} == {0, 1, 2, 3}
        check_lake(table, list(range(6)))

    def test_names_of_fields_are_never_those_of_others(self, wh):
        table = wh.create_table("d.n", "id BIGINT, name STRING", partition_by=["truncate(2, name)"])
        table.append([{"id": 1, "name": "abcdef"}])
        tier(table)
        table.set_partitioning(["truncate(4, name)"])
        table.append([{"id": 2, "name": "abcdef"}])
        tier(table)
        assert fields_of(table) == {
            0: [(1000, "name_trunc", "truncate[2]")],
            1: [(1001, "name_trunc_", "truncate[4]")],
        }
        assert [file.partition[0] for file in files_of(table) if file.spec_id] == ["abcd"]
        assert table.lake.metadata("partitions").num_rows == 2
        assert table.lake.metadata("files").num_rows == 2
        for name in ("name_trunc", "name_trunc_"):
            with pytest.raises(SchemaMismatchError, match="bucket or transform partition"):
                table.alter(add_columns=f"{name} INT")

    def test_several_changes_between_two_rounds_are_one(self, table):
        table.append(rows(0))
        tier(table)
        table.set_partitioning(["region"])
        table.add_columns("note STRING")
        table.set_partitioning(["day"])
        table.append(rows(1))
        tier(table)
        assert [name for _, name, _ in fields_of(table)[1]] == ["day", "id_bucket"]
        check_lake(table, [0, 1])

    def test_a_new_column_may_partition(self, table):
        table.append(rows(0, 1))
        tier(table)
        table.append(rows(2))
        table.add_columns("kind INT")
        table.set_partitioning(["kind"])
        table.append([row(3) | {"kind": 7}])
        tier(table)
        assert {file.partition[0] for file in files_of(table) if file.spec_id == 1} == {None, 7}
        assert ids(table.to_arrow(filter=[("kind", "=", 7)])) == [3]
        assert ids(table.to_arrow(filter=pc.field("kind").is_null())) == [0, 1, 2]

    def test_a_round_that_was_planned_before_is_planned_again(self, table, other_process):
        table.append(rows(0, 1))
        tier(table)
        table.append(rows(2, 3))
        slow = other_process().table("d.t")
        run = run_tasks_locally(slow.storage, slow.settings, slow.world)
        asked: list[int] = []

        def run_late(tasks):
            files = run(tasks)
            if not asked:
                table.set_partitioning(["region"])
                table.append(rows(4))
                tier(table)
            asked.append(len(tasks))
            return files

        report = TieringJob(slow.log, slow.open_lake(), world=slow.world).run(run_late)
        assert report.conflicts == 1
        assert {file.spec_id for file in files_of(table)} == {0, 1}
        check_lake(table, [0, 1, 2, 3, 4])

    def test_a_process_that_knows_the_partitioning_of_before_does_not_bring_it_back(self, table, other_process):
        table.append(rows(0))
        tier(table)
        stale = other_process().table("d.t").open_lake()
        table.set_partitioning(["region"])
        table.append(rows(1))
        tier(table)
        with pytest.raises(CommitConflictError, match="was altered after this round started"):
            stale.create_or_evolve()
        assert lake_of(table).metadata.default_spec_id == 1

    def test_a_spec_of_another_engine_is_refused_as_ever(self, table):
        table.append(rows(0))
        tier(table)
        with lake_of(table).update_spec() as update:
            update.add_identity("region")
        for change in (lambda: None, lambda: table.set_partitioning(["day"])):
            change()
            table.append(rows(1))
            with pytest.raises(LakeMismatchError, match=r"partitioned by \[day\(ts\), bucket\[2\]\(id\), identity"):
                tier(table)

    def test_upkeep_writes_older_files_by_the_newest_and_never_mixes_them(self, table):
        for number in range(4):
            table.append(rows(number, number + 4))
            tier(table)
        table.set_partitioning(["region"])
        for number in range(8, 16, 2):
            table.append(rows(number, number + 1))
            tier(table)
        groups = [{file.partition[0] for file in group.stored} for group in planned(table, files_min=2)]
        assert sorted(map(sorted, groups)) == sorted([[spec_id] for found in groups for spec_id in found])
        table.delete(where=[("id", "<", 3)])
        tier(table)
        assert {file.spec_id for file in files_of(table)} == {0, 1}
        table.lake.rewrite_manifests()
        check_lake(table, list(range(3, 16)))
        assert table.lake.compact(purge=True).purged_rows == 3, "the deleted rows of older files go, too"
        check_lake(table, list(range(3, 16)))
        table.lake.optimize("ts")
        assert all(file.spec_id == 1 for file in files_of(table) if "_ts" in file.file_path)
        table.maintain()
        check_lake(table, list(range(3, 16)))

    def test_a_lake_that_is_built_anew_has_the_newest_alone(self, table):
        table.append(rows(0, 1))
        tier(table)
        table.set_partitioning(["region"])
        table.retier()
        tier(table)
        metadata = table.open_lake().binding.require().metadata
        assert [[f.name for f in spec.fields] for spec in metadata.partition_specs] == [["region", "id_bucket"]]
        assert ids(table.lake.to_arrow()) == [0, 1]


class TestTheLog:
    def test_writers_that_staged_before_are_taken_and_their_partitions_are_those_of_then(self, wh):
        table = wh.create_table("d.p", DDL, partition_by=["region"])
        table.append(rows(0))
        staged = table.log_writer.stager().stage(pa.Table.from_pylist(rows(1, 2), schema=table.schema))
        table.set_partitioning(["day"])
        table.log_writer.commit(staged)
        table.append(rows(3))
        check_reads(table, [0, 1, 2, 3])
        assert [s.schema_id for s in table.state.live_segments()] == [1, 1, 2]
        compact_inline_rows(table)
        found = {s.schema_id: s.partitions for s in table.state.live_segments()}
        assert found[1] is not None
        assert {values for (values,) in found[1]} == {"eu", "us", None}, "merged rows keep the columns of then"
        assert found[2] == (((row(3)["day"] - dt.date(1970, 1, 1)).days,),)
        check_reads(table, [0, 1, 2, 3])

    def test_rows_leave_it_by_the_partitions_that_they_have(self, wh, clock):
        rule = {"table.auto-partition.enabled": "true", "table.auto-partition.num-retention": "1"}
        table = wh.create_table(
            "d.a", "id INT, day DATE, land STRING", partition_by=["land", "day"],
            properties=rule | {"table.auto-partition.key": "day", "table.log.ttl": "0"},
        )  # fmt: skip
        now = dt.datetime.fromtimestamp(table.storage.now_ms() / 1000, dt.UTC).date()
        table.append([{"id": 1, "day": now - dt.timedelta(days=9), "land": "de"}])
        table.set_partitioning(["day"])
        table.append([{"id": 2, "day": now, "land": "1970-01-01"}])
        tier(table)

        def trimmed() -> dict[int, int]:
            state = table.refresh()
            how = {"lake_enabled": True, "auto_partition": state.parsed.auto_partition}
            return plan_trim(state, table.storage.now_ms(), 0, **how)

        assert trimmed() == {0: 1}, "the first row is old, whatever the place of its day is"
        table.alter(set_properties={"table.auto-partition.enabled": "false"})
        table.set_partitioning(["land"])
        table.set_partitioning(["day"])
        table.alter(set_properties={"table.auto-partition.enabled": "true"})
        table.append([{"id": 3, "day": now, "land": "de"}])
        assert trimmed() == {0: 1}

    def test_a_partition_that_was_unknown_then_does_not_expire(self, wh):
        table = wh.create_table("d.u", "id INT, day DATE, land STRING", partition_by=["land"])
        table.append([{"id": 1, "day": dt.date(1970, 1, 1), "land": "19700101"}])
        table.set_partitioning(["day"])
        table.alter(set_properties={"table.auto-partition.enabled": "true", "table.log.ttl": "0"})
        tier(table)
        state = table.refresh()
        rule = state.parsed.auto_partition
        assert plan_trim(state, table.storage.now_ms(), 0, lake_enabled=True, auto_partition=rule) == {}


class TestColumns:
    def test_what_lies_by_a_column_keeps_it(self, wh):
        table = wh.create_table("d.c", "id INT, n INT, ts TIMESTAMP", partition_by=["n", "days(ts)"])
        table.append([{"id": 1, "n": 1, "ts": START}])
        tier(table)
        table.set_partitioning(["id"])
        for change in (
            {"drop_columns": ["n"]}, {"rename_columns": {"n": "m"}}, {"widen_columns": {"n": "bigint"}},
            {"drop_columns": ["ts"]},
        ):  # fmt: skip
            with pytest.raises(InvalidOptionError, match="older lake files are partitioned by it"):
                table.alter(**change)
        table.alter(rename_columns={"ts": "at"})
        with pytest.raises(SchemaMismatchError, match="bucket or transform partition"):
            table.alter(add_columns="ts_day INT")
        table.append([{"id": 2, "n": 2, "at": START}])
        tier(table)
        table.set_partitioning(["days(at)"])
        table.append([{"id": 3, "n": 3, "at": START}])
        tier(table)
        assert [name for _, name, _ in fields_of(table)[2]] == ["ts_day"], "the field of before, with its name"
        assert ids(table.lake.to_arrow()) == [1, 2, 3]
        without = wh.create_table("d.without", "id INT", partition_by=[])
        without.append(table.to_arrow(columns=["id"]))
        assert ids(without.to_arrow()) == [1, 2, 3]

    def test_the_property_is_not_set_by_hand(self, table):
        with pytest.raises(InvalidOptionError, match="set_partitioning"):
            table.alter(set_properties={"partition.fields": "hours(ts)"})
        table.alter(set_properties={"partition.fields": "days(TS)"})


class TestParts:
    @pytest.fixture
    def table(self, wh) -> Table:
        """Rows 0 to 5 lie by region in the lake, 6 and 7 by day, and 8 and 9 are in the log."""
        table = wh.create_table("d.p", DDL, partition_by=["region"], **BUCKETS)
        table.append(rows(*range(6)))
        tier(table)
        table.set_partitioning(["day"])
        table.append(rows(6, 7))
        tier(table)
        table.append(rows(8, 9))
        return table

    def test_a_partition_is_dropped_row_by_row(self, table):
        day = row(5)["day"]
        gone = [n for n in range(10) if row(n)["day"] == day]
        assert gone == [4, 5, 6, 7]
        assert table.drop_partition({"day": day}, dry_run=True).rows == 4
        assert table.drop_partition({"day": day}).rows == 4
        left = [0, 1, 2, 3, 8, 9]
        check_reads(table, left)
        tier(table)
        check_lake(table, left)
        with pytest.raises(InvalidOptionError, match="'region' is not a partition column"):
            table.drop_partition({"region": "eu"})

    def test_partitions_of_new_rows_are_replaced(self, table):
        table.overwrite_partitions([row(4) | {"id": 104}])
        left = [0, 1, 2, 3, 8, 9]
        assert ids(table.to_arrow()) == [*left, 104]
        tier(table)
        assert ids(table.lake.to_arrow()) == [*left, 104]
        table.set_partitioning(["region"])
        table.overwrite_partitions([row(0) | {"id": 200}])
        assert ids(table.to_arrow()) == sorted([n for n in left if n % 3 != 0] + [104, 200])

    def test_partitions_that_are_others_by_then_are_chosen_again(self, table, other_process, monkeypatch):
        another, looked = other_process().table("d.p"), OverwriteTarget.locate

        def look(chosen: OverwriteTarget) -> None:
            looked(chosen)
            if len(another.refresh().former_partitionings) == 1:
                another.set_partitioning(["region"])

        monkeypatch.setattr(OverwriteTarget, "locate", look)
        table.overwrite_partitions([row(0) | {"id": 300}])
        assert ids(table.to_arrow()) == [n for n in range(10) if n % 3 != 0] + [300]

    def test_the_partitions_table_counts_rows_of_all_partitionings(self, table):
        found = {r["day"]: r for r in table.inspect.partitions().to_pylist()}
        days = [row(n)["day"] for n in (0, 4, 8)]
        counts = {day: (found[day]["hot_rows"], found[day]["lake_rows"]) for day in found}
        assert counts == {days[0]: (0, 4), days[1]: (0, 4), days[2]: (2, 0)}
        assert all((r["lake_files"] > 0) == (r["lake_size_bytes"] > 0) for r in found.values())
        table.set_partitioning(["region"])
        shown = {r["region"]: r["hot_rows"] + r["lake_rows"] for r in table.inspect.partitions().to_pylist()}
        assert shown == {"eu": 4, "us": 3, None: 3}


class TestVersions:
    def test_older_ones_are_read_and_not_gone_back_to(self, wh, table):
        table.append(rows(0, 1))
        tier(table)
        version = table.refresh().version
        table.create_tag("before")
        table.set_partitioning(["region"])
        table.append(rows(2))
        tier(table)
        assert ids(table.read_version(version)) == [0, 1]
        assert ids(table.read_version("before")) == [0, 1]
        with pytest.raises(InvalidOptionError, match="its partitioning was changed since"):
            table.rollback_to_version(version)
        with pytest.raises(InvalidOptionError, match="was changed after commit"):
            wh.clone_table("d.t", "d.old", version="before")
        after = table.refresh().version
        table.append(rows(3))
        table.rollback_to_version(after)
        check_reads(table, [0, 1, 2])
        table.set_partitioning(["days(ts)"])
        table.overwrite(table.read_version(version))
        tier(table)
        check_lake(table, [0, 1])

    def test_a_clone_has_it(self, wh, table):
        table.append(rows(0, 1))
        tier(table)
        table.set_partitioning(["region"])
        table.append(rows(2))
        wh.clone_table("d.t", "d.c")  # of a lake that is not partitioned so yet
        tier(table)
        table.append(rows(3))
        wh.clone_table("d.t", "d.d")
        for name, numbers in (("d.c", [0, 1, 2]), ("d.d", [0, 1, 2, 3])):
            clone = wh.table(name)
            clone.append(rows(9))
            tier(clone)
            check_reads(clone, [*numbers, 9])
            lake = clone.open_lake().binding.require()
            assert [f.name for f in lake.spec().fields] == ["region", "id_bucket"]
            assert ids(lake.scan().to_arrow()) == [*numbers, 9]

    def test_a_branch_is_published_behind_it(self, table):
        table.append(rows(0))
        table.create_branch("audit")
        table.branch("audit").append(rows(1))
        table.set_partitioning(["region"])
        table.fast_forward("audit")
        table.append(rows(2))
        tier(table)
        check_lake(table, [0, 1, 2])

    def test_a_tail_continues_over_a_change_of_partitioning(self, table):
        table.append(rows(0))
        table.set_partitioning(["region"])
        table.append(rows(1))
        tail = table.tail("earliest", poll_ms=1, until_ms=1)
        assert sorted(n for batch in tail for n in batch.column("id").to_pylist()) == [0, 1]


class TestKeys:
    @pytest.fixture
    def table(self, wh, own_cache) -> Table:
        return wh.create_table("d.k", DDL, primary_key=["id", "region", "day"], partition_by=["region"], buckets=2)

    def test_a_key_is_changed_where_it_lies(self, table):
        given = [row(n) | {"region": row(n)["region"] or "xx"} for n in range(6)]
        table.upsert(given)
        tier(table)
        table.set_partitioning(["day"])
        table.upsert([given[1] | {"ts": START}, row(9) | {"region": "eu"}])
        table.delete([(2, "xx", row(2)["day"])])
        expected = sorted([(n, START if n == 1 else row(n)["ts"]) for n in (0, 1, 3, 4, 5)] + [(9, row(9)["ts"])])

        def check(found: pa.Table) -> None:
            assert sorted((r["id"], r["ts"]) for r in found.to_pylist()) == expected

        check(table.to_arrow())
        tier(table)
        assert {file.spec_id for file in files_of(table)} == {0, 1}
        for found in (table.to_arrow(), table.lake.to_arrow(), lake_of(table).scan().to_arrow()):
            check(found)
        assert ids(table.to_arrow(filter=[("day", "=", row(0)["day"])])) == [0, 1, 3]
        table.lake.compact()
        table.maintain()
        check(table.to_arrow())
        table.overwrite_partitions([row(9) | {"region": "us"}])
        assert table.drop_partition({"day": row(0)["day"]}).rows == 3
        tier(table)
        assert ids(table.lake.to_arrow()) == [4, 5, 9]


def test_records_are_as_small_as_they_can_be(wh):
    table = wh.create_table("d.r", DDL)
    table.set_partitioning(["day", "hours(ts)"])
    record, _ = read_record(table.storage, table.uuid, 2)
    (action,) = record.actions
    assert (action.schema_id, action.columns, action.fields) == (2, ("day",), "day, hours(ts)")
    table.set_partitioning(["day"])
    again = open_warehouse(table.storage, 9).table("d.r")
    assert again.state.former_partitionings == table.state.former_partitionings
    assert again.state.parsed.partitioned_by == ("day",)
