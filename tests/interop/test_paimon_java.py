"""Paimon's own Java library reads, expires, cleans and appends to our Paimon lakes. `make interop` runs this.

Spark's package manager fetches the library, and its Hadoop classes serve it; no session reads the tables, because
Paimon's connector of this version of Spark is not to be had from Maven Central.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from interop.lake_cases import EVENTS, EVERY_TYPE, PLAIN, event_rows, every_type_rows, sorted_rows
from kit.tables import tier
from kit.variants import readable_rows
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.lake.paimon import compaction as paimon_maintain
from streamhouse_spark.lake.paimon import snapshot_commit as paimon_commit
from streamhouse_spark.storage.local import LocalStorage

LIBRARY = "org.apache.paimon:paimon-bundle:1.4.2"
PAIMON = {"table.datalake.format": "paimon"}
SOURCE = Path(__file__).with_name("PaimonProbe.java")
FETCH = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.jars.packages", sys.argv[1]).config(
    "spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").config(
    "spark.driver.bindAddress", "127.0.0.1").getOrCreate()
print(session.conf.get("spark.jars"))
session.stop()
"""
"""Another process, because jars are chosen when a JVM starts, and this one's may run already."""

pytestmark = pytest.mark.engines


class Probe:
    """Asks the Java program; one for all tests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, verb: str, table: Table, *fields: object) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = [verb, f"{table.storage.url}/lake", table.name, *map(str, fields)]
        self._process.stdin.write("\t".join(asked) + "\n")
        self._process.stdin.flush()
        answer = []
        while line := self._process.stdout.readline().rstrip("\n"):
            answer.append(json.loads(line))
            assert not str(answer[-1]).startswith("failed: "), answer[-1]
        assert self._process.poll() is None, "the program ended"
        return answer

    def read(self, table: Table, option: str = "", *where: object) -> pa.Table:
        """The rows, in the table's types; those whose column has a value, or with the column alone, those without."""
        schema = table.schema
        rows = self.ask("read", table, option, *where)
        values = [[_value(value, field.type) for value, field in zip(row, schema, strict=True)] for row in rows]
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema=schema)


def _value(value: Any, of: pa.DataType) -> Any:
    """What the program wrote as JSON, as Arrow takes it."""
    is_type, epoch = pa.types, dt.datetime(1970, 1, 1)
    if value is None or is_type.is_boolean(of) or is_type.is_integer(of) or is_type.is_string(of):
        return value
    if is_type.is_struct(of):
        return {field.name: _value(part, field.type) for part, field in zip(value, of, strict=True)}
    if is_type.is_map(of):
        return [(_value(k, of.key_type), _value(v, of.item_type)) for k, v in zip(*value, strict=True)]
    if is_type.is_list(of):
        return [_value(part, of.value_type) for part in value]
    if is_type.is_decimal(of):
        return decimal.Decimal(value)
    if is_type.is_binary(of):
        return bytes.fromhex(value)
    if is_type.is_date(of):
        return epoch.date() + dt.timedelta(days=value)
    if is_type.is_timestamp(of):
        return (epoch + dt.timedelta(microseconds=value)).replace(tzinfo=dt.UTC if of.tz else None)
    assert is_type.is_floating(of), of
    return float(value)


@pytest.fixture(scope="module")
def java() -> Iterator[Probe]:
    import pyspark

    fetched = subprocess.run(
        [sys.executable, "-c", FETCH, LIBRARY], stdout=subprocess.PIPE, text=True, check=True, timeout=600
    ).stdout
    jars = [jar.removeprefix("file://") for jar in fetched.strip().splitlines()[-1].split(",")]
    classes = ":".join([*jars, f"{Path(pyspark.__file__).parent}/jars/*"])
    command = ["java", "-cp", classes, str(SOURCE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Probe(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(240) == 0


@pytest.fixture
def wh(tmp_path) -> Warehouse:
    return Warehouse("wh", storage=LocalStorage(str(tmp_path), fsync=False))


def _tier(table: Table, rows: pa.Table | None = None) -> None:
    if rows is not None:
        table.append(rows)
    tier(table)


def _create(wh: Warehouse, schema: pa.Schema, properties: Mapping[str, str], **shape: Any) -> Table:
    return wh.create_table("sales.orders", schema, properties={**PAIMON, **properties}, **shape)


@pytest.mark.parametrize("num_buckets", [1, 3])
def test_paimon_java_reads_every_type_before_and_after_maintenance(wh, java, num_buckets, monkeypatch):
    monkeypatch.setattr(paimon_maintain, "COMPACT_FILES_MIN", 2)
    monkeypatch.setattr(paimon_commit, "MANIFESTS_MIN_TO_MERGE", 3)
    key = {"bucket.key": "id"} if num_buckets > 1 else {}
    table = _create(wh, EVERY_TYPE.arrow, key, buckets=num_buckets)
    rounds = [every_type_rows(30, seed=i) for i in range(6)]
    for rows in rounds:
        _tier(table, rows)
    everything = sorted_rows(pa.concat_tables(rounds))
    assert sorted_rows(java.read(table)) == everything
    lake = table.open_lake()
    assert lake.compact().files_removed
    assert sorted_rows(java.read(table)) == everything
    assert sorted_rows(java.read(table, "scan.snapshot-id=2")) == sorted_rows(pa.concat_tables(rounds[:2]))
    assert len(lake.expire(keep_last=2, keep_ms=0).snapshots) == 5
    assert sorted_rows(java.read(table)) == sorted_rows(java.read(table, "scan.snapshot-id=6")) == everything
    rows = pa.concat_tables(rounds)
    for name in ("id", "a_byte", "a_short", "an_int", "a_string", "a_date"):
        for value in {row for row in rows[name].to_pylist()[:6] if row != ""}:
            found = java.read(table, "", name, *([] if value is None else [value]))
            same = pc.is_null(rows[name]) if value is None else pc.equal(rows[name], pa.scalar(value, rows[name].type))
            assert sorted_rows(found) == sorted_rows(rows.filter(same)), (name, value)


def test_partitions_also_those_that_no_folder_can_have(wh, java):
    properties = {"bucket.num": "4", "bucket.key": "id"}
    table = _create(wh, EVENTS.arrow, properties, partition_by=["day", "region"])
    rounds = [event_rows(40, seed=i, null_keys=True) for i in range(3)]
    odd = event_rows(3, seed=9).set_column(2, "region", pa.array(["x" * 500, "a/b=c%2F", "漢" * 90]))
    rounds.append(odd.cast(EVENTS.arrow))
    for rows in rounds:
        _tier(table, rows)
    rows = pa.concat_tables(rounds)
    assert sorted_rows(java.read(table)) == sorted_rows(rows)
    day = dt.date(2026, 1, 2)
    assert sorted_rows(java.read(table, "", "day", day)) == sorted_rows(rows.filter(pc.equal(rows["day"], day)))
    assert java.read(table, "", "region").num_rows == rows["region"].null_count
    for region in ("us/ca", "x" * 500):
        assert java.read(table, "", "region", region).num_rows == rows["region"].to_pylist().count(region)


def test_paimon_java_reads_truncated_widened_and_tagged_tables(wh, java):
    table = _create(wh, PLAIN.arrow, {})
    rounds = [pa.table({"id": [i], "name": [f"n{i}"]}, schema=PLAIN.arrow) for i in range(4)]
    for rows in rounds[:3]:
        _tier(table, rows)
    location = table.state.lake_location
    table.storage.put(f"{location}/tag/tag-before", table.storage.read(f"{location}/snapshot/snapshot-2"))
    table.truncate()
    _tier(table)
    assert java.read(table).num_rows == 0
    table.alter(add_columns="note string")
    _tier(table, pa.table({"id": [3], "name": ["n3"], "note": ["new"]}))
    assert java.read(table).to_pylist() == [{"id": 3, "name": "n3", "note": "new"}]
    assert len(table.open_lake().expire(keep_last=1, keep_ms=0).snapshots) == 4
    (rows,) = (java.ask("read", table, "scan.tag-name=before"),)
    assert sorted(row[0] for row in rows) == [0, 1]
    assert java.read(table)["id"].to_pylist() == [3]


def test_its_expiry_and_its_cleaning_take_nothing_that_we_need(wh, java):
    table = _create(wh, EVENTS.arrow, {"bucket.num": "2", "bucket.key": "id"}, partition_by=["region"])
    rounds = [event_rows(20, seed=i) for i in range(3)]
    long = event_rows(2, seed=9).set_column(2, "region", pa.array(["y" * 400] * 2)).cast(EVENTS.arrow)
    for rows in (*rounds, long):
        _tier(table, rows)
    assert java.ask("expire", table, 2) == [2]
    everything = sorted_rows(pa.concat_tables([*rounds, long]))
    lake = table.open_lake()
    assert lake.binding.snapshots.ids() == [3, 4]
    assert sorted_rows(table.lake.to_arrow()) == sorted_rows(java.read(table)) == everything
    lost = f"{table.state.lake_location}/manifest/manifest-lost-0"
    table.storage.put(lost, b"x")
    time.sleep(1.5)
    (deleted,) = java.ask("clean", table)
    assert deleted >= 1, "the file that nobody names"
    assert "manifest-lost-0" not in table.storage.list_names(f"{table.state.lake_location}/manifest/")
    assert sorted_rows(table.lake.to_arrow()) == sorted_rows(java.read(table)) == everything
    _tier(table, rounds[0])
    assert lake.newest().offsets == table.refresh().lake.offsets


def test_paimon_java_reads_no_deleted_row_and_expires_its_file(wh, java):
    """Of files in the lake and of rows that were not there yet; its expiry takes the files that went."""
    table = _create(wh, EVENTS.arrow, {"bucket.num": "2", "bucket.key": "id"}, partition_by=["region"])
    rounds, half = [event_rows(20, seed=i) for i in range(3)], 500_000_000
    for rows in rounds[:2]:
        _tier(table, rows)
    table.append(rounds[2])
    assert table.delete(where=pc.field("id") < half) > 0
    _tier(table)
    rows = pa.concat_tables(rounds)
    left = sorted_rows(rows.filter(pc.greater_equal(rows["id"], half)))
    assert sorted_rows(java.read(table)) == sorted_rows(table.lake.to_arrow()) == left
    for number in rows["id"].to_pylist()[:6]:
        assert java.read(table, "", "id", number).num_rows == (number >= half)
    assert sorted_rows(java.read(table, "scan.snapshot-id=2")) == sorted_rows(pa.concat_tables(rounds[:2]))
    java.ask("expire", table, 1)
    assert sorted_rows(java.read(table)) == sorted_rows(table.lake.to_arrow()) == left
    table.delete(where=pc.field("id") >= half)
    _tier(table)
    assert (java.read(table).num_rows, table.lake.to_arrow().num_rows) == (0, 0)


def test_what_it_appends_is_read_and_left_alone(wh, java, monkeypatch):
    monkeypatch.setattr(paimon_maintain, "COMPACT_FILES_MIN", 2)
    table = _create(wh, PLAIN.arrow, {})
    for i in range(3):
        _tier(table, pa.table({"id": [i], "name": ["ours"]}, schema=PLAIN.arrow))
        java.ask("append", table, 100 + i, "theirs")
    lake = table.open_lake()
    assert lake.compact().files_removed == 3
    assert len(table.lake.files()) == 4
    assert len(lake.expire(keep_last=1, keep_ms=0).snapshots) == 6
    expected = [*range(3), *range(100, 103)]
    for found in (table.lake.to_arrow(), table.to_arrow(), java.read(table)):
        assert sorted(found["id"].to_pylist()) == expected
    java.ask("append", table, 103, "theirs")
    _tier(table, pa.table({"id": [3], "name": ["ours"]}, schema=PLAIN.arrow))
    assert sorted(java.read(table)["id"].to_pylist()) == [*range(4), *range(100, 104)]


def test_paimon_java_reads_renamed_dropped_and_wider_columns(wh, java):
    """Before and behind its own rows, and by values that only the newer schema can have."""
    schema = "id bigint, a string, b string, n int, f float, gone string"
    table = _create(wh, schema, {"bucket.key": "id", "table.statistics.columns": "*"}, buckets=2)
    old = {"a": "a", "b": "b", "n": 1, "f": 0.5, "gone": "x"}
    table.append([{"id": i, **old} for i in range(4)])
    _tier(table)
    table.alter(
        rename_columns={"id": "key", "a": "b", "b": "a"},
        drop_columns=["gone"],
        widen_columns={"n": "bigint", "f": "double"},
        add_columns="m int",
    )
    table.add_columns("gone int")
    table.append([{"key": 9, "b": "b9", "a": "a9", "n": 2**40, "f": 0.1, "m": 5, "gone": 7}])
    _tier(table)
    assert sorted_rows(java.read(table)) == sorted_rows(table.lake.to_arrow()) == sorted_rows(table.to_arrow())
    for name, value, count in (
        ("n", 1, 4),
        ("n", 2**40, 1),
        ("b", "a", 4),
        ("a", "a", 0),
        ("gone", 7, 1),
        ("key", 2, 1),
    ):
        assert java.read(table, "", name, value).num_rows == count, (name, value)
    assert java.read(table, "", "gone").num_rows == 4


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
def test_paimon_java_reads_columns_that_changed_inside(wh, java, own_cache, key):
    schema = "id bigint not null, s struct<a:int,gone:string>, items array<struct<x:int,y:string>>"
    schema += ", m map<string,struct<v:int>>"
    table = _create(wh, schema, {}, primary_key=key, buckets=1)
    write = table.upsert if key else table.append
    old = {"s": {"a": 1, "gone": "x"}, "items": [{"x": 1, "y": "y"}, None], "m": {"k": {"v": 1}}}
    write([{"id": 1, **old}, {"id": 2, "s": None, "items": None, "m": {}}])
    _tier(table)
    table.alter(
        rename_columns={"s.a": "b", "items.element.x": "y", "items.element.y": "x"},
        drop_columns=["s.gone"],
        widen_columns={"s.a": "bigint", "m.value.v": "bigint"},
        add_columns="s.gone int, items.element.z string, m.value.w int",
    )
    write([{"id": 9, "s": {"b": 2**40, "gone": 1}, "items": [{"y": 2, "x": "x", "z": "z"}], "m": {"k": {"v": 2**40}}}])
    _tier(table)
    assert _by_id(java.read(table)) == _by_id(table.lake.to_arrow()) == _by_id(table.to_arrow())
    assert table.to_arrow().num_rows == 3


def test_paimon_java_reads_rows_under_a_renamed_key(wh, java, own_cache):
    table = _create(wh, "id int not null, a string, n int", {}, primary_key=["id"], buckets=1)
    table.upsert([{"id": i, "a": f"a{i}", "n": i} for i in range(4)])
    _tier(table)
    table.alter(rename_columns={"id": "a", "a": "id"}, widen_columns={"n": "bigint"})
    table.upsert([{"a": 1, "id": "new", "n": 2**40}])
    table.delete([{"a": 2}])
    _tier(table)
    assert sorted_rows(java.read(table)) == sorted_rows(table.lake.to_arrow()) == sorted_rows(table.to_arrow())
    assert table.to_arrow().num_rows == 3


def test_dropped_partitions_are_gone(wh, java):
    table = _create(wh, EVENTS.arrow, {"bucket.num": "2", "bucket.key": "id"}, partition_by=["region"])
    _tier(table, event_rows(40))
    left = table.to_arrow().num_rows - table.drop_partition({"region": "eu"}).rows
    assert sorted_rows(java.read(table)) == sorted_rows(table.to_arrow())
    assert java.read(table).num_rows == left
    assert 0 < left < 40


def _made_by_java(wh: Warehouse, java: Probe, key: str, partitions: str, options: str) -> Any:
    """What names a table for the Java program, before there is one of ours."""
    named = SimpleNamespace(storage=wh.storage, name="sales.orders")
    java.ask("make", named, key, partitions, options)
    return named


_DAYS = (dt.date(2026, 1, 1), dt.date(2026, 1, 2))
_SINCE_1970 = [(day - dt.date(1970, 1, 1)).days for day in _DAYS]


def _by_id(found: pa.Table) -> list[dict[str, Any]]:
    return found.sort_by("id").to_pylist()


@pytest.mark.parametrize(("partitions", "options"), [("", ""), ("day", ""), ("", "bucket=3,bucket-key=id")])
def test_a_log_that_it_made_is_adopted(wh, java, partitions, options):
    named = _made_by_java(wh, java, "", partitions, options)
    java.ask("write", named, "+I", "old", _SINCE_1970[0], "1,2,3")
    java.ask("write", named, "+I", "old", _SINCE_1970[1], "4,5")
    assert wh.adopt_table("sales.orders").rows == 5
    table = wh.table("sales.orders")
    assert table.properties.bucket_key == (("id",) if options else ())
    expected = [{"id": i, "name": "old", "day": _DAYS[i > 3]} for i in range(1, 6)]
    for _ in range(3):
        assert _by_id(java.read(table)) == _by_id(table.lake.to_arrow()) == expected
        new = {"id": 10 + len(expected), "name": "new", "day": _DAYS[0]}
        expected.append(new)
        _tier(table, pa.Table.from_pylist([new], schema=table.schema))
    java.ask("write", table, "+I", "theirs", _SINCE_1970[0], "99")
    expected.append({"id": 99, "name": "theirs", "day": _DAYS[0]})
    for found in (java.read(table), table.lake.to_arrow()):
        assert _by_id(found) == expected
    if options:
        assert java.read(table, "", "id", 2)["name"].to_pylist() == ["old"], "in the bucket where it looks"
    wh.drop_table("sales.orders")
    wh.adopt_table("sales.orders")
    assert _by_id(wh.table("sales.orders").to_arrow()) == expected


@pytest.mark.parametrize(("key", "partitions"), [("id", ""), ("day,id", "day")])
def test_rows_by_key_that_it_made_merged_and_deleted_are_adopted(wh, java, own_cache, key, partitions):
    named = _made_by_java(wh, java, key, partitions, "bucket=2")
    java.ask("write", named, "+I", "first", _SINCE_1970[0], "1,2,3,4,5,6")
    java.ask("write", named, "+I", "merged", _SINCE_1970[0], "1,2,3", "compact")
    java.ask("write", named, "-D", "gone", _SINCE_1970[0], "4")
    java.ask("write", named, "+I", "last", _SINCE_1970[0], "2")
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    names = {1: "merged", 2: "last", 3: "merged", 5: "first", 6: "first"}

    def agree() -> None:
        for found in (java.read(table), table.lake.to_arrow(), table.to_arrow()):
            assert dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True)) == names
            assert found.num_rows == len(names)

    agree()
    for n in range(2):
        table.upsert([{"id": i, "name": f"round {n}", "day": _DAYS[0]} for i in (2, 3, 4)])
        table.delete([{k: v for k, v in (("id", 5 + n), ("day", _DAYS[0])) if k in key.split(",")}])
        _tier(table)
        names |= dict.fromkeys((2, 3, 4), f"round {n}")
        del names[5 + n]
        agree()
    table.lake.compact()
    agree()
    java.ask("write", table, "+I", "theirs", _SINCE_1970[0], "1,7")
    names |= {1: "theirs", 7: "theirs"}
    for found in (java.read(table), table.lake.to_arrow()):
        assert dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True)) == names
    table.upsert([{"id": 7, "name": "ours", "day": _DAYS[0]}])
    _tier(table)
    names[7] = "ours"
    agree()


DOCUMENTS = [{"a": {"b": [1, "two", None]}, "c": 2.5}, [1, 2**40], "text", {}, {f"k{i:03}": i for i in range(300)}]


def _variants(rows: list[list[Any]]) -> dict[int, Any]:
    return {number: None if text is None else json.loads(text) for number, text in rows}


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
def test_paimon_java_reads_our_variants(wh, java, own_cache, key):
    """As VARIANT, and parts of it by their paths; of a column that has other ids than places too."""
    table = _create(wh, "id bigint not null, v variant", {}, primary_key=key, buckets=1)
    write = table.upsert if key else table.append
    write([{"id": i, "v": value} for i, value in enumerate([*DOCUMENTS, None])])
    _tier(table)
    assert java.ask("type", table) == ["ROW<`id` BIGINT NOT NULL, `v` VARIANT>"]
    expected = dict(enumerate([*DOCUMENTS, None]))
    assert _variants(java.ask("read", table, "")) == expected
    assert java.ask("get", table, 0, "$.a.b[1]") == ["two"]
    assert [java.ask("get", table, 4, f"$.k{i:03}") for i in (0, 150, 299)] == [["0"], ["150"], ["299"]]
    table.rename_column("v", "w")
    write([{"id": 9, "w": [True]}])
    _tier(table)
    expected[9] = [True]
    assert _variants(java.ask("read", table, "")) == expected
    assert _by_id(table.lake.to_arrow()) == _by_id(table.to_arrow())
    table.open_lake().compact()
    assert _variants(java.ask("read", table, "")) == expected


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
def test_variants_of_paimon_java_are_read(wh, java, own_cache, key):
    """Their files have ids for all columns but this one."""
    table = _create(wh, "id bigint not null, v variant", {}, primary_key=key, buckets=1)
    write = table.upsert if key else table.append
    write([{"id": 0, "v": {"ours": 0}}])
    _tier(table)
    java.ask("variants", table, 1, '{"theirs": [1, null]}', 2, "3")
    expected = {0: {"ours": 0}, 1: {"theirs": [1, None]}, 2: 3}
    assert {row["id"]: row["v"] for row in readable_rows(table.lake.to_arrow())} == expected
    table.rename_column("v", "w")
    write([{"id": 4, "w": "ours"}])
    _tier(table)
    expected[4] = "ours"
    assert {row["id"]: row["w"] for row in readable_rows(table.lake.to_arrow())} == expected
    assert _variants(java.ask("read", table, "")) == expected
