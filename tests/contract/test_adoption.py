"""A lake table that was there becomes the history of a table: the same over both lakes, made by another library."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from contract.house import rows
from interop.paimon_cases import Stock
from streamhouse_spark import LakeMismatchError, TableExistsError
from streamhouse_spark.lake.iceberg.catalog import FileCatalog

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
OLD = [{"id": i, "name": f"old {i}"} for i in range(6)]


def plain(*ids: int, name: str = "new") -> list[dict]:
    return [{"id": i, "name": name} for i in ids]


@pytest.fixture
def made(house, tmp_path):
    """Makes ``default.t`` of `OLD`, in two commits, with a library that knows nothing of us."""

    def make(*key: str, partition_by: Sequence[str] = ()) -> None:
        house.wh.create_database("default")
        if house.lake_format == "iceberg":
            fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType())]
            schema = Schema(*fields, identifier_field_ids=[1] if key else [])
            parts = [PartitionField(2, 1000, IdentityTransform(), "name")] if partition_by else []
            lake = FileCatalog(house.wh.storage).create_table(
                "default.t", schema, partition_spec=PartitionSpec(*parts), properties={"format-version": "2"}
            )
            for part in (OLD[:3], OLD[3:]):
                lake.append(pa.Table.from_pylist(part, schema=SCHEMA))
            return
        options = {"primary_key": key, "bucket": "1"} if key else {"partition_by": partition_by}
        Stock(house.wh.storage, tmp_path / "stock").make("default.t", SCHEMA, OLD[:3], OLD[3:], **options)

    return make


class TestAdoption:
    def test_adopted_rows_are_the_history_and_rounds_continue(self, house, made):
        made()
        assert house.wh.adopt_table("default.t", dry_run=True) == house.wh.adopt_table("default.t")
        table = house.wh.table("default.t")
        house.agree(table, OLD)
        table.append(plain(6))
        assert rows(table.to_arrow()) == [*OLD, *plain(6)]
        house.tier(table)
        house.agree(table, [*OLD, *plain(6)])
        assert rows(house.other_process().table("default.t").to_arrow()) == [*OLD, *plain(6)]

    def test_an_adopted_table_is_maintained_and_truncated(self, house, made):
        made()
        house.wh.adopt_table("default.t", properties={"table.log.ttl": "1s"})
        table = house.wh.table("default.t")
        for i in range(6, 14):
            table.append(plain(i))
            house.tier(table)
        table.lake.compact()
        house.age()
        table.maintain()
        table.lake.expire_snapshots(retain_last=1)
        house.agree(table, [*OLD, *plain(*range(6, 14))])
        table.truncate()
        house.tier(table)
        house.agree(table, [])

    @pytest.mark.also_on_s3
    def test_an_adopted_keyed_table_takes_upserts_and_deletions_of_old_rows(self, house, made):
        made("id")
        house.wh.adopt_table("default.t", primary_key=["id"])
        table = house.wh.table("default.t")
        house.agree(table, OLD)
        table.upsert(plain(0, 7))
        table.delete([5])
        changes = house.wh.view("default.t$binlog").to_arrow().to_pylist()
        assert sorted((c["before"] or {"name": "none"})["name"] for c in changes) == ["none", "old 0", "old 5"]
        house.tier(table)
        house.agree(table, [*plain(0, 7), *OLD[1:5]])
        assert table.lookup([1, 5])["name"].to_pylist() == ["old 1", None]
        table.lake.compact()
        house.agree(table, [*plain(0, 7), *OLD[1:5]])

    def test_a_lake_is_adopted_by_one_table_alone(self, house, made):
        made()
        house.wh.adopt_table("default.t")
        with pytest.raises(TableExistsError):
            house.wh.adopt_table("default.t")
        with pytest.raises(LakeMismatchError, match=r"is the lake of table default\.t"):
            house.wh.adopt_table("default.other", "default.t")

    def test_an_adopted_table_is_truncated_before_its_first_row(self, house, made):
        made()
        house.wh.adopt_table("default.t")
        table = house.wh.table("default.t")
        table.truncate()
        assert table.to_arrow().num_rows == 0
        house.tier(table)
        house.agree(table, [])
        table.append(plain(6))
        house.tier(table)
        house.agree(table, plain(6))

    def test_the_lake_of_a_dropped_table_is_adopted_with_its_past(self, house, made):
        made()
        house.wh.adopt_table("default.t")
        table = house.wh.table("default.t")
        table.append(plain(6))
        house.tier(table)
        tiered = table.lake.newest().id
        house.wh.drop_table("default.t")
        house.wh.adopt_table("default.other", "default.t")
        other = house.wh.table("default.other")
        house.agree(other, [*OLD, *plain(6)])
        other.append(plain(7))
        house.tier(other)
        house.agree(other, [*OLD, *plain(6, 7)])
        assert rows(other.lake.to_arrow(as_of_snapshot=tiered)) == [*OLD, *plain(6)]
        with pytest.raises(LakeMismatchError):
            table.lake.newest()

    def test_partitions_of_an_adopted_lake_of_a_dropped_table_are_dropped(self, house, made):
        """Its files have our names, with offsets that say nothing of the new table's."""
        made(partition_by=["name"])
        house.wh.adopt_table("default.t")
        table = house.wh.table("default.t")
        table.append([*plain(6, 7), *plain(8, name="old 1")])
        house.tier(table)
        house.wh.drop_table("default.t")
        house.wh.adopt_table("default.other", "default.t")
        other = house.wh.table("default.other")
        assert other.drop_partition({"name": "new"}).rows == 2
        house.agree(other, [*OLD, *plain(8, name="old 1")])
        other.append(plain(9))
        assert other.drop_partition({"name": "old 1"}).rows == 2
        house.agree(other, [OLD[0], *OLD[2:], *plain(9)])

    def test_an_undropped_table_has_lost_its_lake_to_its_adopter(self, house, made):
        """It says so before its rows could go where they are another table's."""
        made()
        house.wh.adopt_table("default.t")
        house.wh.drop_table("default.t")
        house.wh.adopt_table("default.other", "default.t")
        back = house.wh.undrop_table("default.t")
        assert rows(back.to_arrow()) == OLD
        back.append(plain(6))
        with pytest.raises(LakeMismatchError, match="belongs to"):
            house.tier(back)
        assert rows(back.to_arrow()) == [*OLD, *plain(6)]
        other = house.wh.table("default.other")
        other.append(plain(7))
        house.tier(other)
        house.agree(other, [*OLD, *plain(7)])
