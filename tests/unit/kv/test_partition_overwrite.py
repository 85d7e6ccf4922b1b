"""Replacing partitions of tables with a primary key: net changes by key, and none of the old rows is left."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from kit.tables import tier
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, Table, Transaction
from streamhouse_spark.kv.partition_overwrite import PartitionOverwriteStager

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
DDL = "id BIGINT, day INT, n BIGINT"
DAY_1 = [("day", "=", 1)]


def make(wh, name="d.t", **properties):
    texts = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    return wh.create_table(name, DDL, primary_key=["id", "day"], partition_by=["day"], buckets=2, properties=texts)


@pytest.fixture(params=["iceberg", "paimon"])
def table(request, wh):
    return make(wh, table__datalake__format=request.param)


def rows(*numbers, n=0):
    return [{"id": number, "day": number % 3, "n": n} for number in numbers]


def there(found):
    return sorted((row["id"], row["n"]) for row in found.to_pylist())


def changes(table: Table):
    found = []
    for batch in table.tail("earliest", until_ms=0, poll_ms=0):
        found += [(row["_change_type"], row["id"], row["n"]) for row in batch.to_pylist()]
    return found


def test_the_changelog_has_the_net_changes(table):
    table.upsert(rows(*range(9)))
    starts = table.refresh().ends
    table.overwrite([*rows(1), *rows(4, n=5), *rows(10)], where=DAY_1)
    assert there(table.to_arrow()) == [*((i, 0) for i in (0, 1, 2, 3)), (4, 5), (5, 0), (6, 0), (8, 0), (10, 0)]
    news = [row for batch in table.tail(starts, until_ms=0, poll_ms=0) for row in batch.to_pylist()]
    assert sorted((row["_change_type"], row["id"], row["n"]) for row in news) == [
        ("delete", 7, 0),
        ("insert", 10, 0),
        ("update_after", 4, 5),
        ("update_before", 4, 0),
    ]
    tier(table)
    assert there(table.lake.to_arrow()) == there(table.to_arrow())


def test_keyed_partitions_of_the_new_rows_are_replaced(table):
    table.upsert(rows(*range(9)))
    tier(table)
    table.overwrite_partitions(rows(1, 11, n=1))
    assert there(table.to_arrow()) == [(0, 0), (1, 1), (3, 0), (6, 0), (11, 1)]
    tier(table)
    assert there(table.lake.to_arrow()) == [(0, 0), (1, 1), (3, 0), (6, 0), (11, 1)]


def test_of_a_key_in_the_rows_twice_the_last_counts(table):
    table.upsert(rows(1))
    table.overwrite_partitions([*rows(4, n=1), *rows(4, n=2)])
    assert there(table.to_arrow()) == [(4, 2)]


def test_an_overwrite_without_rows_empties_a_keyed_partition(table):
    table.upsert(rows(*range(6)))
    table.overwrite([], where=pc.field("day") == 1)
    assert there(table.to_arrow()) == [(0, 0), (2, 0), (3, 0), (5, 0)]
    version = table.refresh().version
    table.overwrite([], where=DAY_1)
    table.overwrite_partitions([])
    assert table.refresh().version == version


def test_a_transaction_counts_once(table, other_process):
    table.upsert(rows(1, 4))
    table.overwrite(rows(7), where=DAY_1, transaction=Transaction("job", 1))
    table.upsert(rows(10))
    other_process().table("d.t").overwrite(rows(7), where=DAY_1, transaction=Transaction("job", 1))
    assert there(table.to_arrow()) == [(7, 0), (10, 0)]


@pytest.mark.parametrize("times", [1, 5])
def test_rows_written_while_it_looked_go_too(table, other_process, monkeypatch, times):
    table.upsert(rows(*range(6)))
    right, left = PartitionOverwriteStager.stage, iter(range(times))

    def staged(self, *given):
        found = right(self, *given)
        if (number := next(left, None)) is not None:
            other_process().table("d.t").upsert(rows(31 + 3 * number, 33 + 3 * number))
        return found

    monkeypatch.setattr(PartitionOverwriteStager, "stage", staged)
    table.overwrite(rows(1, n=7), where=DAY_1)
    mine = [pair for pair in there(table.to_arrow()) if pair[0] % 3 == 1]
    assert mine == [(1, 7)]


def test_without_images_before_updates_later_rows_go_too(wh, other_process, monkeypatch):
    table = make(wh, table__changelog__image="wal")
    right, left = PartitionOverwriteStager.stage, iter(range(1))

    def staged(self, *given):
        found = right(self, *given)
        for _ in left:
            other_process().table("d.t").upsert(rows(*range(30, 42)))
        return found

    monkeypatch.setattr(PartitionOverwriteStager, "stage", staged)
    table.overwrite(rows(1), where=DAY_1)
    assert [pair for pair in there(table.to_arrow()) if pair[0] % 3 == 1] == [(1, 0)]


def test_what_was_there_is_not_added_to(wh):
    table = wh.create_table(
        "d.sums",
        DDL,
        primary_key=["id", "day"],
        partition_by=["day"],
        properties={"table.merge-engine": "aggregation", "fields.n.agg": "sum", "table.delete.behavior": "allow"},
    )
    table.upsert(rows(1, 2, n=10))
    table.overwrite([*rows(1, n=3), *rows(1, n=4)], where=DAY_1)
    assert there(table.to_arrow()) == [(1, 7), (2, 10)]


def test_a_keyed_overwrite_by_other_columns_is_rejected(wh):
    table = make(wh)
    table.upsert(rows(1, 2))
    with pytest.raises(InvalidOptionError, match="may use only its partition columns day"):
        table.overwrite(rows(1), where=[("id", "=", 1)])
    with pytest.raises(InvalidOptionError, match="may use only its partition columns day"):
        table.overwrite(rows(1), where=(pc.field("day") == 1) & (pc.field("n") == 1))
    with pytest.raises(SchemaMismatchError, match="1 of 2 new rows"):
        table.overwrite(rows(1, 2), where=DAY_1)
    plain = wh.create_table("d.plain", DDL, primary_key=["id"])
    with pytest.raises(InvalidOptionError, match="not partitioned"):
        plain.overwrite_partitions(rows(1))
    with pytest.raises(InvalidOptionError, match="not partitioned"):
        plain.overwrite(rows(1), where=DAY_1)
    first = make(wh, "d.first", table__delete__behavior="disable")
    first.upsert(rows(1))
    with pytest.raises(InvalidOptionError, match="does not support deletes"):
        first.overwrite_partitions(rows(1))
    assert there(table.to_arrow()) == [(1, 0), (2, 0)]
