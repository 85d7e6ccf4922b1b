"""The contract of primary-key tables: writes, lookups, union reads and changelogs."""

from __future__ import annotations

import random
import shutil

import pytest

from contract.house import in_order, rows
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.kv.tablet import close_tablets

pytestmark = pytest.mark.always

COLUMNS = "id BIGINT, name STRING, n INT"


def row(key, name=None, n=None) -> dict:
    return {"id": key, "name": name, "n": n}


@pytest.fixture
def table(house):
    return house.table("t", COLUMNS, primary_key=["id"], buckets=2)


class TestWrites:
    @pytest.mark.also_on_s3
    def test_upserts_are_insertions_and_updates_in_the_changelog(self, house):
        table = house.table("t", COLUMNS, primary_key=["id"])
        table.upsert([row(1, "a")])
        table.upsert([row(1, "b")])
        changes = house.wh.view("t$changelog").to_arrow()
        assert changes["_change_type"].to_pylist() == ["insert", "update_before", "update_after"]
        assert changes["_log_offset"].to_pylist() == [0, 1, 2]
        house.tier(table)
        house.agree(table, [row(1, "b")])

    def test_deletions_of_absent_keys_change_nothing(self, house, table):
        table.upsert([row(1, "a"), row(2, "b")])
        house.tier(table)
        assert table.delete([1]).num_rows == 1
        assert table.delete([1, 99]).num_rows == 0
        assert rows(table.to_arrow()) == [row(2, "b")]
        house.tier(table)
        house.agree(table, [row(2, "b")])

    def test_partial_updates_of_two_writers_are_combined(self, house, table):
        table.upsert([{"id": 1, "name": "a"}], columns=["name"])
        house.tier(table)
        house.other_process().table("t").upsert([{"id": 1, "n": 5}], columns=["n"])
        assert rows(table.to_arrow()) == [row(1, "a", 5)]
        house.tier(table)
        house.agree(table, [row(1, "a", 5)])

    def test_the_first_row_engine_keeps_the_first_row(self, house):
        table = house.table("t", COLUMNS, primary_key=["id"], properties={"table.merge-engine": "first_row"})
        table.upsert([row(1, "a"), row(1, "b")])
        house.tier(table)
        table.upsert([row(1, "c"), row(2, "d")])
        table.delete([1])
        assert house.wh.view("t$changelog").to_arrow().num_rows == 2
        house.tier(table)
        house.agree(table, [row(1, "a"), row(2, "d")])

    def test_the_versioned_engine_keeps_the_highest_version(self, house):
        table = house.table(
            "t",
            "id BIGINT, name STRING, ts BIGINT",
            primary_key=["id"],
            properties={"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "ts"},
        )
        for name, ts in (("first", 1000), ("older", 999), ("none", None), ("same", 1000), ("newer", 2000)):
            table.upsert([{"id": 1, "name": name, "ts": ts}])
            assert table.lookup_one(1)["name"] == {"older": "first", "none": "first"}.get(name, name)
            house.tier(table)
        house.agree(table, [{"id": 1, "name": "newer", "ts": 2000}])

    def test_the_aggregation_engine_folds_the_values_of_a_key(self, house):
        table = house.table(
            "t",
            "id INT, total BIGINT, most INT, words STRING, seen BOOLEAN, any_value STRING",
            primary_key=["id"],
            properties={
                "table.merge-engine": "aggregation",
                "fields.total.agg": "sum",
                "fields.most.agg": "max",
                "fields.words.agg": "listagg",
                "fields.seen.agg": "bool_or",
                "fields.any_value.agg": "last_value_ignore_nulls",
            },
        )
        table.upsert([{"id": 1, "total": 1, "most": 5, "words": "a", "seen": False, "any_value": "x"}])
        house.tier(table)
        table.upsert([{"id": 1, "total": 2, "most": 3, "words": "b", "seen": True, "any_value": None}])
        house.other_process().table("t").upsert([{"id": 1, "total": 4, "most": None, "words": None, "seen": None}])
        wanted = {"id": 1, "total": 7, "most": 5, "words": "a,b", "seen": True, "any_value": "x"}
        assert rows(table.to_arrow()) == [wanted]
        house.tier(table)
        house.agree(table, [wanted])

    @pytest.mark.parametrize("behavior", ["allow", "ignore", "disable"])
    def test_deletions_follow_the_delete_behavior(self, house, behavior):
        table = house.table("t", COLUMNS, primary_key=["id"], properties={"table.delete.behavior": behavior})
        table.upsert([row(1, "a")])
        if behavior == "disable":
            with pytest.raises(InvalidOptionError, match="does not support deletes"):
                table.delete([1])
        else:
            table.delete([1])
        house.tier(table)
        house.agree(table, [] if behavior == "allow" else [row(1, "a")])

    def test_a_changelog_without_before_images_folds_to_the_table(self, house):
        table = house.table("t", COLUMNS, primary_key=["id"], properties={"table.changelog.image": "wal"})
        for name in "ab":
            table.upsert([row(1, name)])
            house.tier(table)
        table.delete([1])
        assert house.wh.view("t$changelog").to_arrow()["_change_type"].to_pylist() == [
            "update_after",
            "update_after",
            "delete",
        ]
        house.tier(table)
        house.agree(table, [])


class TestLookups:
    def test_lookups_find_keys_and_prefixes_and_no_absent_ones(self, house):
        table = house.table(
            "t", "a STRING, b INT, v INT", primary_key=["a", "b"], buckets=3, properties={"bucket.key": "a"}
        )
        table.upsert([{"a": a, "b": b, "v": 10 * b} for a in ("x", "y") for b in (2, 1)])
        house.tier(table)
        assert table.lookup([{"a": "y", "b": 2}, {"a": "z", "b": 1}])["_found"].to_pylist() == [True, False]
        assert table.prefix_lookup("x")["v"].to_pylist() == [10, 20]
        for _ in range(2):
            found = table.lookup([{"a": "z", "b": 1}], insert_if_absent=True)
            assert found.to_pylist() == [{"a": "z", "b": 1, "v": None, "_found": True}]
        assert house.wh.view("t$changelog").to_arrow().num_rows == 5

    @pytest.mark.also_on_s3
    def test_a_tiered_and_trimmed_row_is_found_on_a_new_host(self, house, own_cache):
        table = house.table("t", COLUMNS, primary_key=["id"], buckets=2, properties={"table.log.ttl": "1s"})
        table.upsert([row(i, f"n{i}") for i in range(20)])
        house.tier(table)
        house.age()
        table.upsert([row(99)])
        house.tier(table)
        table.maintain()
        house.age()
        table.maintain()
        close_tablets()
        shutil.rmtree(own_cache)
        assert house.other_process().table("t").lookup([7, 99, 55])["_found"].to_pylist() == [True, True, False]


class TestUnionReads:
    def test_before_the_first_round_rows_come_from_the_log(self, house, table):
        table.upsert([row(1, "a"), row(2, "b")])
        table.delete([2])
        assert rows(table.to_arrow()) == [row(1, "a")]
        assert table.lake.to_arrow().num_rows == 0

    def test_after_a_round_rows_come_from_the_lake(self, house, table):
        table.upsert([row(i, f"n{i}", i) for i in range(50)])
        house.tier(table)
        house.agree(table, [row(i, f"n{i}", i) for i in range(50)])

    @pytest.mark.also_on_s3
    def test_rows_of_the_log_replace_those_of_the_lake(self, house, table):
        table.upsert([row(i, "old", i) for i in range(10)])
        house.tier(table)
        table.upsert([row(3, "new", 30), row(20, "added", 20)])
        table.delete([4])
        wanted = [row(i, "old", i) for i in range(10) if i not in (3, 4)] + [row(3, "new", 30), row(20, "added", 20)]
        assert rows(table.to_arrow()) == in_order(wanted)
        assert rows(table.lake.to_arrow()) == in_order(row(i, "old", i) for i in range(10))
        house.tier(table)
        house.agree(table, wanted)

    def test_untiered_buckets_and_partitions_are_read(self, house):
        table = house.table("t", "d STRING, id INT, n INT", primary_key=["d", "id"], partition_by=["d"], buckets=4)
        first = [{"d": "a", "id": 1, "n": 1}]
        table.upsert(first)
        house.tier(table)
        more = [{"d": d, "id": i, "n": 0} for d in "ab" for i in range(10, 20)]
        table.upsert(more)
        assert rows(table.to_arrow()) == in_order([*first, *more])
        assert rows(table.to_arrow(filter=[("d", "=", "b")])) == in_order(r for r in more if r["d"] == "b")
        assert rows(table.to_arrow(filter=[("d", "=", "a"), ("n", "=", 1)])) == first

    def test_a_filter_sees_the_latest_value_of_a_column(self, house, table):
        table.upsert([row(1, "old", 1), row(2, "old", 2)])
        house.tier(table)
        table.upsert([row(1, "new", 100)])
        assert rows(table.to_arrow(filter=[("name", "=", "old")])) == [row(2, "old", 2)]
        assert rows(table.to_arrow(filter=[("n", "<", 50)])) == [row(2, "old", 2)]
        house.tier(table)
        assert rows(table.to_arrow(filter=[("n", "<", 50)])) == [row(2, "old", 2)]
        assert rows(table.lake.to_arrow(filter=[("name", "=", "old")])) == [row(2, "old", 2)]

    def test_columns_are_read_without_the_key(self, house, table):
        table.upsert([row(1, "a", 1), row(2, "b", 2)])
        house.tier(table)
        table.upsert([row(2, "c", 3)])
        assert rows(table.to_arrow(columns=["name"])) == [{"name": "a"}, {"name": "c"}]
        assert rows(table.to_arrow(columns=["name"], filter=[("n", ">", 2)])) == [{"name": "c"}]
        assert table.to_arrow(columns=[]).num_rows == 2

    @pytest.mark.parametrize("key", [["a", "b"], ["b", "a"]])
    def test_a_bucket_key_may_be_a_part_of_the_key(self, house, key):
        table = house.table("t", "a INT, b STRING, v INT", primary_key=key, buckets=3, properties={"bucket.key": "a"})
        table.upsert([{"a": i % 5, "b": f"b{i}", "v": i} for i in range(30)])
        house.tier(table)
        table.upsert([{"a": 1, "b": "b1", "v": -1}])
        table.delete([{"a": 2, "b": "b2"}])
        wanted = [{"a": i % 5, "b": f"b{i}", "v": -1 if i == 1 else i} for i in range(30) if i != 2]
        assert rows(table.to_arrow()) == in_order(wanted)
        assert table.lookup([{"a": 1, "b": "b1"}])["v"].to_pylist() == [-1]
        house.tier(table)
        house.agree(table, wanted)

    @pytest.mark.parametrize("key", [["d", "id"], ["id", "d"]])
    def test_a_partition_column_may_be_a_part_of_the_key(self, house, key):
        table = house.table("t", "id INT, d STRING, v INT", primary_key=key, partition_by=["d"], buckets=2)
        for number in range(3):
            table.upsert([{"id": i, "d": d, "v": number} for d in "xy" for i in range(number, 10)])
            house.tier(table)
        table.delete([{"id": 9, "d": "x"}])
        wanted = [{"id": i, "d": d, "v": min(i, 2)} for d in "xy" for i in range(10) if (i, d) != (9, "x")]
        assert rows(table.to_arrow()) == in_order(wanted)
        house.tier(table)
        house.agree(table, wanted)


class TestChanges:
    def test_changelog_and_binlog_have_each_change(self, house):
        table = house.table("t", COLUMNS, primary_key=["id"])
        table.upsert([row(1, "a")])
        table.upsert([row(1, "b")])
        house.tier(table)
        table.delete([1])
        found = house.wh.view("t$binlog").to_arrow().to_pylist()
        assert [(r["_change_type"], r["before"], r["after"]) for r in found] == [
            ("insert", None, row(1, "a")),
            ("update", row(1, "a"), row(1, "b")),
            ("delete", row(1, "b"), None),
        ]
        assert house.wh.view("t$changelog").to_arrow(columns=["name", "_log_offset"])["name"].to_pylist() == list(
            "aabb"
        )

    def test_the_changelog_folds_to_the_table(self, house):
        rng = random.Random(f"{house.lake_format} folds")
        table = house.table("t", COLUMNS, primary_key=["id"], buckets=3)
        for _ in range(8):
            table.upsert([row(rng.randrange(12), rng.choice("abc"), rng.randrange(5)) for _ in range(6)])
            table.delete([rng.randrange(12) for _ in range(2)])
            if rng.random() < 0.4:
                house.tier(table)
            folded: dict[int, dict] = {}
            for change in house.wh.view("t$changelog").to_arrow().to_pylist():
                kind, key = change["_change_type"], change["id"]
                if kind in ("insert", "update_after"):
                    folded[key] = {name: change[name] for name in ("id", "name", "n")}
                elif kind == "delete":
                    del folded[key]
                else:
                    assert folded[key] == {name: change[name] for name in ("id", "name", "n")}
            assert rows(table.to_arrow()) == in_order(folded.values())
        house.tier(table)
        house.agree(table, folded.values())


class TestSchemas:
    def test_columns_added_between_rounds_are_null_in_older_rows(self, house, table):
        table.upsert([row(1, "a", 1), row(2, "b", 2)])
        house.tier(table)
        table.add_columns("more STRING")
        table.upsert([{**row(1, "a", 1), "more": "x"}])
        wanted = [{**row(1, "a", 1), "more": "x"}, {**row(2, "b", 2), "more": None}]
        assert rows(table.to_arrow()) == in_order(wanted)
        assert table.lookup([1, 2], columns=["more"])["more"].to_pylist() == ["x", None]
        house.tier(table)
        house.agree(table, wanted)
