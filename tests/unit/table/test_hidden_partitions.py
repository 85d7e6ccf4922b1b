"""Tables that are partitioned by transforms of columns: `days(ts)`, `truncate(2, name)`."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.rows import ids
from kit.tables import TableCase, tier
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, Table
from streamhouse_spark.lake.iceberg.catalog import FileCatalog

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
DDL = "id BIGINT, ts TIMESTAMP, region STRING"
START = dt.datetime(1969, 12, 30, tzinfo=dt.UTC)
FIELDS = ["days(ts)", "region"]


def row(number: int) -> dict:
    """Every six hours a row, from before 1970 on."""
    return {"id": number, "ts": START + dt.timedelta(hours=6 * number), "region": ["eu", None][number % 2]}


def rows(*numbers: int) -> list[dict]:
    return [row(number) for number in numbers]


TABLE = TableCase("d.t", DDL, partition_by=FIELDS, buckets=2, properties={"bucket.key": "id"})


def lake_of(table: Table):
    return FileCatalog(table.storage, world=table.world).load_table(str(table.path))


class TestCreation:
    def test_the_fields_are_kept_in_their_order(self, table, other_process):
        for state in (table.state, other_process().table("d.t").state):
            assert state.partition_by == ("region",)
            assert state.properties["partition.fields"] == "days(ts), region"
            assert [str(field) for field in state.parsed.partition_fields] == FIELDS
            assert "ts" in state.parsed.statistics_columns

    def test_columns_alone_need_no_property(self, wh):
        made = wh.create_table("d.plain", DDL, partition_by=["region"])
        assert "partition.fields" not in made.state.properties

    def test_the_property_alone_says_it_too(self, wh):
        made = wh.create_table("d.said", DDL, properties={"partition.fields": "days(ts), REGION"})
        assert made.state.partition_by == ("region",)
        assert made.state.properties["partition.fields"] == "days(ts), region"

    @pytest.mark.parametrize(
        ("fields", "given", "says"),
        [
            (["days(ts)"], {"partition.fields": "hours(ts)"}, "leave one out"),
            (["days(region)"], {}, "expected a date or a timestamp"),
            (["days(ts)", "ts"], {}, "'ts' occurs twice"),
            (["days(ts)"], {"table.datalake.format": "paimon"}, "found a transform and a Paimon lake"),
            (["days(ts)"], {"primary.key": "id"}, "'ts' is not in primary.key"),
            (["days(ts)"], {"table.auto-partition.enabled": "true"}, "has no partition columns"),
        ],
    )
    def test_partition_fields_that_cannot_be_are_rejected(self, wh, fields, given, says):
        ddl = DDL.replace("id BIGINT", "id BIGINT NOT NULL")
        with pytest.raises(InvalidOptionError, match=says):
            wh.create_table("d.bad", ddl, partition_by=fields, properties=given)
        assert wh.create_table("d.bad", ddl).state.partition_by == ()

    def test_the_property_is_not_set(self, table):
        with pytest.raises(InvalidOptionError, match=r"change the partitioning with set_partitioning\(…\)"):
            table.alter(set_properties={"partition.fields": "hours(ts), region"})


class TestLake:
    def test_other_engines_find_the_partitions(self, table):
        table.append(rows(*range(16)))
        tier(table)
        lake = lake_of(table)
        assert [str(field.name) for field in lake.spec().fields] == ["ts_day", "region", "id_bucket"]
        partitions = {task.file.partition[0] for task in lake.scan().plan_files()}
        assert partitions == {-2, -1, 0, 1}
        of_a_day = lake.scan(row_filter="ts >= '1970-01-01T00:00:00+00:00' and ts < '1970-01-02T00:00:00+00:00'")
        assert {task.file.partition[0] for task in of_a_day.plan_files()} == {0}
        assert ids(of_a_day.to_arrow()) == [8, 9, 10, 11]

    def test_reads_find_the_rows_of_a_filter(self, table):
        table.append(rows(*range(16)))
        tier(table)
        table.append(rows(*range(16, 20)))
        for number in range(20):
            moment = pa.scalar(row(number)["ts"], pa.timestamp("us", "UTC"))
            assert ids(table.to_arrow(filter=pc.field("ts") == moment)) == [number]
            assert ids(table.to_arrow(filter=pc.field("ts") >= moment)) == list(range(number, 20))

    def test_nulls_have_a_partition(self, table):
        table.append([{"id": 1, "ts": None, "region": "eu"}, row(2)])
        tier(table)
        table.append([{"id": 3, "ts": None, "region": None}])
        assert ids(table.to_arrow(filter=pc.field("ts").is_null())) == [1, 3]
        assert ids(table.to_arrow(filter=pc.field("ts").is_valid())) == [2]

    def test_compaction_and_a_new_lake_keep_them(self, table):
        for start in range(0, 16, 4):
            table.append(rows(*range(start, start + 4)))
            tier(table)
        table.maintain()
        assert ids(table.to_arrow()) == list(range(16))
        table.retier()
        tier(table)
        assert ids(table.lake.to_arrow()) == list(range(16))
        assert lake_of(table).spec().fields[0].name == "ts_day"

    def test_a_column_of_a_transform_is_renamed(self, table):
        table.append(rows(0, 1))
        tier(table)
        table.alter(rename_columns={"ts": "at, then"})
        assert table.state.properties["partition.fields"] == "days(`at, then`), region"
        table.append([{"id": 5, "at, then": START, "region": "eu"}])
        tier(table)
        assert ids(table.lake.to_arrow()) == [0, 1, 5]
        table.overwrite_partitions([{"id": 6, "at, then": START, "region": "eu"}])
        assert ids(table.to_arrow()) == [1, 6]
        with pytest.raises(InvalidOptionError, match="it is the source of a partition field"):
            table.alter(drop_columns=["at, then"])
        for name in ("ts_day", "at, then_day"):
            with pytest.raises(SchemaMismatchError, match="bucket or transform partition"):
                table.alter(add_columns=f"`{name}` INT")


class TestReplacing:
    @pytest.mark.parametrize("is_tiered", [False, True])
    def test_hidden_partitions_of_new_rows_are_replaced(self, table, is_tiered):
        table.append(rows(*range(8)))
        if is_tiered:
            tier(table)
        table.overwrite_partitions([{"id": 100, "ts": START + dt.timedelta(hours=23), "region": None}])
        assert ids(table.to_arrow()) == [0, 2, 4, 5, 6, 7, 100]
        tier(table)
        assert ids(table.lake.to_arrow()) == [0, 2, 4, 5, 6, 7, 100]

    @pytest.mark.parametrize("is_tiered", [False, True])
    def test_hidden_partitions_of_a_keyed_table_are_replaced(self, wh, is_tiered):
        table = wh.create_table("d.k", DDL, primary_key=["ts", "id"], partition_by=["days(ts)"], buckets=2)
        table.upsert(rows(*range(8)))
        if is_tiered:
            tier(table)
        table.overwrite_partitions([row(3) | {"region": "x"}, {"id": 100, "ts": START, "region": "y"}])
        assert ids(table.to_arrow()) == [3, 4, 5, 6, 7, 100]
        table.overwrite(rows(4), where=[("ts", ">=", row(4)["ts"])])
        assert ids(table.to_arrow()) == [3, 4, 100]
        with pytest.raises(InvalidOptionError, match="only its partition columns ts"):
            table.overwrite(rows(4), where=[("region", "=", "eu")])
        table.delete([(row(4)["ts"], 4)])
        tier(table)
        assert ids(table.lake.to_arrow()) == [3, 100]

    def test_a_table_with_transforms_alone_has_no_partition_to_drop(self, wh):
        table = wh.create_table("d.only", DDL, partition_by=["days(ts)"])
        with pytest.raises(InvalidOptionError, match="delete rows with DELETE"):
            table.drop_partition({"ts": START})
