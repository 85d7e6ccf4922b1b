"""A Paimon table with a primary key that was there: changes, lookups, streams and later rounds know its rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from interop.paimon_cases import Stock
from streamhouse_spark.config.spark_options import StreamReadOptions
from streamhouse_spark.datasource.read.start_rows import begins_with_rows, initial_offset, start_files
from streamhouse_spark.errors import LakeMismatchError, OffsetsTrimmedError
from streamhouse_spark.kv.tablets import close_tablets
from streamhouse_spark.lake.paimon import adoption as paimon_adopt
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.table.tiering import tier_table
from streamhouse_spark.table.views import open_view

OLD = {i: f"old {i}" for i in range(8)}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("part", pa.string()), ("text", pa.string())])
LAYOUTS = {
    "one bucket": {"primary_key": ["id"], "bucket": "1"},
    "three buckets": {"primary_key": ["id"], "bucket": "3"},
    "a key of buckets": {"primary_key": ["id", "part"], "bucket": "3", "bucket_key": "part,id"},
    "partitions": {"primary_key": ["part", "id"], "partition_by": ["part"], "bucket": "2"},
}
HOUR_MS = 3600 * 1000


def some(texts: dict[int, str]) -> list[dict]:
    return [{"id": i, "part": f"p{i % 2}", "text": text} for i, text in texts.items()]


@pytest.fixture
def store(memory):
    """The contract has a case on a disk."""
    return memory


@pytest.fixture
def stock(store, tmp_path) -> Stock:
    return Stock(store, tmp_path / "stock")


@pytest.fixture(params=["three buckets", "partitions"])
def lake(request, stock) -> Stock:
    """A Paimon table of `OLD` that is nobody's, most rows of it in several versions."""
    rounds = [{i: f"v{n} {i}" for i in range(n, 8)} for n in range(3)]
    stock.make("sales.orders", SCHEMA, *map(some, rounds), some(OLD), **LAYOUTS[request.param])
    return stock


@pytest.fixture
def table(own_cache, wh, lake):
    report = wh.adopt_table("sales.orders")
    assert (report.rows, report.snapshot_id) == (8 + 7 + 6 + 8, 4)
    assert set(report.primary_key) <= {"id", "part"}
    return wh.table("sales.orders")


def rows_of(found: list[dict]) -> dict[int, str]:
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["text"] for row in found}


def agree(table, stock: Stock, expected: dict[int, str]) -> None:
    assert rows_of(table.to_arrow().to_pylist()) == expected
    assert rows_of(table.lake.to_arrow().to_pylist()) == expected
    assert rows_of(stock.read("sales.orders")) == expected


def keys(table, *ids: int) -> list[dict]:
    return [{name: row[name] for name in table.state.primary_key} for row in some(dict.fromkeys(ids, ""))]


def found(table, *ids: int) -> list[str | None]:
    return table.lookup(keys(table, *ids))["text"].to_pylist()


def tier(table):
    return tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))


def binlog(table) -> list[dict]:
    return open_view(table, "binlog").to_arrow().select(["before", "after"]).to_pylist()


def sequences(table) -> list[tuple[int, int, int]]:
    """Bucket, smallest and largest sequence number of the live files."""
    files = table.lake.files().select(["bucket", "min_sequence_number", "max_sequence_number"]).to_pylist()
    return [tuple(file.values()) for file in files]


@pytest.mark.parametrize("lake", LAYOUTS, indirect=True)
def test_changes_and_lookups_know_the_adopted_rows(table, lake, other_process, monkeypatch, tmp_path):
    agree(table, lake, OLD)
    assert found(table, 3, 99) == ["old 3", None]
    table.upsert(some({3: "new 3", 99: "new 99"}))
    table.delete(keys(table, 5, 77))
    changes = {(row["after"] or row["before"])["id"]: row for row in binlog(table)}
    assert len(changes) == 3
    assert (changes[3]["before"], changes[99]["before"], changes[5]["after"]) == (*some({3: "old 3"}), None, None)
    assert changes[5]["before"] == some({5: "old 5"})[0]
    expected = {**OLD, 3: "new 3", 99: "new 99"}
    del expected[5]
    assert rows_of(table.to_arrow().to_pylist()) == expected
    assert rows_of(table.lake.to_arrow().to_pylist()) == OLD
    close_tablets()
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "another host"))
    assert found(other_process().table("sales.orders"), 3, 5, 7) == ["new 3", None, "old 7"]
    close_tablets()
    tier(table)
    agree(table, lake, expected)
    assert table.lake.compact().rows == len(expected)
    agree(table, lake, expected)
    table.upsert(some({5: "back"}))
    tier(table)
    agree(table, lake, {**expected, 5: "back"})


def test_rows_of_rounds_are_newer_than_all_that_were_adopted(table, lake):
    """Sequence numbers of few changes would be below those of many adopted versions, and the changes be lost."""
    adopted = {bucket: max(high for b, _, high in sequences(table) if b == bucket) for bucket, *_ in sequences(table)}
    assert max(adopted.values()) > 5
    before = set(sequences(table))
    expected = dict(OLD)
    for n in range(3):
        expected |= dict.fromkeys(range(n, 8), f"round {n}")
        table.upsert(some(dict.fromkeys(range(n, 8), f"round {n}")))
        tier(table)
        agree(table, lake, expected)
    written = set(sequences(table)) - before
    assert written
    assert all(low > adopted[bucket] for bucket, low, _ in written)


def test_numbers_stay_above_where_the_newest_rows_were_deleted_and_compacted_away(table, lake):
    """What is left then has smaller numbers than were given; a writer of another engine counts from those too."""
    table.delete(keys(table, *range(4, 8)))
    tier(table)
    table.lake.compact()
    expected = {i: OLD[i] for i in range(4)}
    agree(table, lake, expected)
    lake.append("sales.orders", some({2: "theirs", 6: "theirs"}))
    table.upsert(some({6: "ours", 7: "ours"}))
    tier(table)
    expected |= {2: "theirs", 6: "ours", 7: "ours"}
    agree(table, lake, expected)


def test_streams_from_the_beginning_begin_with_the_adopted_rows(table):
    table.upsert(some({0: "new 0"}))
    state = table.refresh()
    options = StreamReadOptions(read_change_feed=True)
    assert begins_with_rows(state, options)
    begin = initial_offset(state, options)
    files = start_files(table, table.state, begin)
    assert sum(segment.num_rows for file in files for segment in file.segments) == 8
    assert {begin.offsets[bucket] for bucket, *_ in sequences(table)} == {1}


def test_upkeep_trims_publishes_and_expires_as_ever(table, lake, clock):
    for i in range(6):
        table.upsert(some({i: f"round {i}"}))
        tier(table)
    clock.advance(10 * 24 * HOUR_MS)
    table.maintain()
    table.lake.expire_snapshots(retain_last=1)
    table.lake.remove_orphan_files()
    expected = {**OLD, **{i: f"round {i}" for i in range(6)}}
    agree(table, lake, expected)
    assert found(table, 7) == ["old 7"]
    table.lake.compact()
    clock.advance(10 * 24 * HOUR_MS)
    table.lake.expire_snapshots(retain_last=1)
    agree(table, lake, expected)


def test_it_can_be_truncated_at_once(table, lake):
    table.truncate()
    assert table.to_arrow().num_rows == 0
    assert found(table, 3) == [None]
    table.upsert(some({3: "again"}))
    assert binlog(table) == [{"before": None, "after": some({3: "again"})[0]}]
    tier(table)
    agree(table, lake, {3: "again"})


def test_columns_change_and_partitions_go(table, lake):
    table.alter(rename_columns={"text": "words"}, add_columns="text STRING")
    table.upsert([{**some({1: "x"})[0], "words": "new words"}])
    tier(table)
    words = {row["id"]: row["words"] for row in lake.read("sales.orders")}
    assert words == {**OLD, 1: "new words"} == {row["id"]: row["words"] for row in table.to_arrow().to_pylist()}
    assert [row["text"] for row in lake.read("sales.orders") if row["id"] != 1] == [None] * 7
    if table.partition_by:
        table.drop_partition({"part": "p1"})
        tier(table)
        assert sorted(row["id"] for row in lake.read("sales.orders")) == [0, 2, 4, 6]


def test_time_travel(table, clock):
    clock.advance(60_000)
    table.upsert(some({1: "later"}))
    tier(table)
    assert rows_of(table.lake.to_arrow(as_of_snapshot=4).to_pylist()) == OLD
    assert table.lake.to_arrow(as_of_snapshot=1).num_rows == 8
    with pytest.raises(OffsetsTrimmedError, match="was made of a lake table later"):
        table.to_arrow(as_of_timestamp_ms=table.state.created_ms - 1)


def test_a_table_that_had_been_ours_is_adopted_with_its_deletions(table, lake, wh):
    table.upsert(some({3: "new 3", 99: "new 99"}))
    table.delete(keys(table, 5))
    tier(table)
    expected = {**OLD, 3: "new 3", 99: "new 99"}
    del expected[5]
    wh.drop_table("sales.orders")
    wh.adopt_table("sales.orders", primary_key=list(table.state.primary_key))
    again = wh.table("sales.orders")
    agree(again, lake, expected)
    assert found(again, 3, 5, 99) == ["new 3", None, "new 99"]
    again.upsert(some({5: "back", 3: "newest"}))
    again.delete(keys(again, 99))
    tier(again)
    del expected[99]
    agree(again, lake, {**expected, 5: "back", 3: "newest"})


def test_its_own_key_is_the_key(own_cache, wh, stock):
    stock.make("sales.orders", SCHEMA, some(OLD), primary_key=["id", "part"], bucket="2")
    with pytest.raises(LakeMismatchError, match="has the primary key id, part, primary_key is part, id; leave"):
        wh.adopt_table("sales.orders", primary_key=["part", "id"])
    with pytest.raises(LakeMismatchError, match="primary_key is part, id;"):
        wh.adopt_table("sales.orders", properties={"primary.key": "part, id"})
    assert wh.adopt_table("sales.orders").bucket_key == "id, part"


def test_rows_whose_order_is_not_told_are_refused(own_cache, wh, stock, store):
    """As two writers give them the same numbers that do not see each other."""
    stock.make("sales.orders", SCHEMA, some(OLD), primary_key=["id"], bucket="1")
    before = {info.key: store.read(info.key) for info in store.list("lake/")}
    stock.append("sales.orders", some({3: "a", 4: "a"}))
    newest = "lake/sales.db/orders/snapshot/snapshot-2"
    first = store.read(newest)
    for key in ("lake/sales.db/orders/snapshot/LATEST", newest):
        store.delete(key)
    store.put("lake/sales.db/orders/snapshot/LATEST", before["lake/sales.db/orders/snapshot/LATEST"])
    _append_beside(stock, store, first)
    with pytest.raises(LakeMismatchError, match="in bucket 0 1 rows have the key and the sequence number of another"):
        wh.adopt_table("sales.orders")
    assert not wh.exists("sales.orders")
    stock.append("sales.orders", some({3: "told"}))
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    agree(table, stock, {**OLD, 3: "told", 4: "a", 5: "b"})


def _append_beside(stock: Stock, store, first: bytes) -> None:
    """Rows that a writer wrote who saw the first snapshot alone, committed behind another's."""
    stock.pull()
    table = stock._catalog.get_table("sales.orders")
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.Table.from_pylist(some({3: "b", 5: "b"}), schema=_non_null(SCHEMA)))
    messages = write.prepare_commit()
    store.put("lake/sales.db/orders/snapshot/snapshot-2", first)
    (stock._folder / "lake/sales.db/orders/snapshot/snapshot-2").write_bytes(first)
    (stock._folder / "lake/sales.db/orders/snapshot/LATEST").write_bytes(b"2")
    commit.commit(messages)
    stock._push()


def _non_null(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type, field.nullable) for field in schema])


def test_rows_in_other_buckets_than_their_keys_are_refused(own_cache, wh, stock, monkeypatch):
    stock.make("sales.orders", SCHEMA, some(OLD), primary_key=["id"], bucket="3")
    buckets_of = paimon_adopt.row_buckets
    monkeypatch.setattr(paimon_adopt, "row_buckets", lambda *asked: (buckets_of(*asked) + 1) % 3)
    with pytest.raises(LakeMismatchError, match=r"bucket 0 has \d rows of other buckets, for example .'id': \d. of"):
        wh.adopt_table("sales.orders")


def test_rescaled_partitions_are_refused(own_cache, wh, stock, store):
    stock.make("sales.orders", SCHEMA, some(OLD), primary_key=["id"], bucket="2")
    key = "lake/sales.db/orders/schema/schema-0"
    store.put(key, store.read(key).replace(b'"bucket": "2"', b'"bucket": "4"'))
    with pytest.raises(LakeMismatchError, match="files of 2 buckets besides those of 4: rewrite the partitions"):
        wh.adopt_table("sales.orders")


def test_rows_behind_whose_numbers_there_are_no_more_are_refused(own_cache, wh, stock, monkeypatch):
    stock.make("sales.orders", SCHEMA, some(OLD), primary_key=["id"], bucket="1")
    monkeypatch.setattr(paimon_adopt, "SEQUENCE_MAX", 6)
    with pytest.raises(LakeMismatchError, match="sequence numbers up to 7, behind which later rows would have none"):
        wh.adopt_table("sales.orders")
    monkeypatch.setattr(paimon_adopt, "SEQUENCE_MAX", 7)
    assert wh.adopt_table("sales.orders").rows == 8


def test_a_branch(table, lake, other_process):
    """The table moves on beside it, by other keys."""
    table.create_branch("fix")
    branch = table.branch("fix")
    branch.upsert(some({3: "of the branch", 20: "new"}))
    branch.delete(keys(branch, 5))
    table.upsert(some({0: "of the table"}))
    tier(table)
    of_branch = {i: text for i, text in OLD.items() if i != 5} | {3: "of the branch", 20: "new"}
    assert rows_of(branch.to_arrow().to_pylist()) == of_branch
    assert found(branch, 3, 5, 0) == ["of the branch", None, OLD[0]]
    assert found(table, 3, 5, 0) == [OLD[3], OLD[5], "of the table"]
    done = table.fast_forward("fix")
    assert (done.rows_written, done.rows_deleted) == (2, 1)
    expected = of_branch | {0: "of the table"}
    assert rows_of(other_process().table("sales.orders").to_arrow().to_pylist()) == expected
    tier(table)
    agree(table, lake, expected)
