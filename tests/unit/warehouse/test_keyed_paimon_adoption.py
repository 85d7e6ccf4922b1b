"""A Paimon table with a primary key that was there: changes, lookups, streams and later rounds know its rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from interop.paimon_cases import Stock
from kit.tables import tier
from streamhouse_spark import LakeMismatchError, OffsetsTrimmedError
from streamhouse_spark.lake.paimon import adoption as paimon_adopt
from unit.warehouse.adopted_lakes import KEYED_COLUMNS, KEYED_OLD, keyed_rows
from unit.warehouse.test_keyed_adoption import agree, found, keys, lake, on, rows_of, table, texts_of

__all__ = ["lake", "table"]
on_paimon = on(("paimon", "three buckets"), ("paimon", "partitions"))


@pytest.fixture
def store(memory):
    """The contract has a case on a disk."""
    return memory


@pytest.fixture
def stock(store, tmp_path) -> Stock:
    return Stock(store, tmp_path / "stock")


def sequences(table) -> list[tuple[int, int, int]]:
    """Bucket, smallest and largest sequence number of the live files."""
    files = table.lake.files().select(["bucket", "min_sequence_number", "max_sequence_number"]).to_pylist()
    return [tuple(file.values()) for file in files]


@on_paimon
def test_rows_of_rounds_are_newer_than_all_that_were_adopted(table, lake):
    """Sequence numbers of few changes would be below those of many adopted versions, and the changes be lost."""
    adopted = {bucket: max(high for b, _, high in sequences(table) if b == bucket) for bucket, *_ in sequences(table)}
    assert max(adopted.values()) > 5
    before = set(sequences(table))
    expected = dict(KEYED_OLD)
    for n in range(3):
        expected |= dict.fromkeys(range(n, 8), f"round {n}")
        table.upsert(keyed_rows(dict.fromkeys(range(n, 8), f"round {n}")))
        tier(table)
        agree(table, lake, expected)
    written = set(sequences(table)) - before
    assert written
    assert all(low > adopted[bucket] for bucket, low, _ in written)


@on_paimon
def test_numbers_stay_above_where_the_newest_rows_were_deleted_and_compacted_away(table, lake):
    """What is left then has smaller numbers than were given; a writer of another engine counts from those too."""
    table.delete(keys(table, *range(4, 8)))
    tier(table)
    table.lake.compact()
    expected = {i: KEYED_OLD[i] for i in range(4)}
    agree(table, lake, expected)
    lake.append(keyed_rows({2: "theirs", 6: "theirs"}))
    table.upsert(keyed_rows({6: "ours", 7: "ours"}))
    tier(table)
    expected |= {2: "theirs", 6: "ours", 7: "ours"}
    agree(table, lake, expected)


@on_paimon
def test_columns_change_and_partitions_go(table, lake):
    table.alter(rename_columns={"text": "words"}, add_columns="text STRING")
    table.upsert([{**keyed_rows({1: "x"})[0], "words": "new words"}])
    tier(table)
    words = {row["id"]: row["words"] for row in lake.rows()}
    assert words == {**KEYED_OLD, 1: "new words"} == {row["id"]: row["words"] for row in table.to_arrow().to_pylist()}
    assert [row["text"] for row in lake.rows() if row["id"] != 1] == [None] * 7
    if table.partition_by:
        table.drop_partition({"part": "p1"})
        tier(table)
        assert sorted(row["id"] for row in lake.rows()) == [0, 2, 4, 6]


@on_paimon
def test_an_adopted_paimon_lake_is_read_at_older_snapshots(table, clock):
    clock.advance(60_000)
    table.upsert(keyed_rows({1: "later"}))
    tier(table)
    assert rows_of(table.lake.to_arrow(as_of_snapshot=4)) == KEYED_OLD
    assert table.lake.to_arrow(as_of_snapshot=1).num_rows == 8
    with pytest.raises(OffsetsTrimmedError, match="was created from a lake table later"):
        table.to_arrow(as_of_timestamp_ms=table.state.created_ms - 1)


@on_paimon
def test_a_table_that_had_been_ours_is_adopted_with_its_deletions(table, lake, wh):
    table.upsert(keyed_rows({3: "new 3", 99: "new 99"}))
    table.delete(keys(table, 5))
    tier(table)
    expected = {**KEYED_OLD, 3: "new 3", 99: "new 99"}
    del expected[5]
    wh.drop_table("sales.orders")
    wh.adopt_table("sales.orders", primary_key=list(table.state.primary_key))
    again = wh.table("sales.orders")
    agree(again, lake, expected)
    assert found(again, 3, 5, 99) == ["new 3", None, "new 99"]
    again.upsert(keyed_rows({5: "back", 3: "newest"}))
    again.delete(keys(again, 99))
    tier(again)
    del expected[99]
    agree(again, lake, {**expected, 5: "back", 3: "newest"})


def test_its_own_key_is_the_key(own_cache, wh, stock):
    stock.make("sales.orders", KEYED_COLUMNS, keyed_rows(KEYED_OLD), primary_key=["id", "part"], bucket="2")
    with pytest.raises(LakeMismatchError, match="has the primary key id, part, but primary_key is part, id; omit"):
        wh.adopt_table("sales.orders", primary_key=["part", "id"])
    with pytest.raises(LakeMismatchError, match="primary_key is part, id;"):
        wh.adopt_table("sales.orders", properties={"primary.key": "part, id"})
    assert wh.adopt_table("sales.orders").bucket_key == "id, part"


def test_rows_whose_order_is_not_told_are_refused(own_cache, wh, stock, store):
    """As two writers give them the same numbers that do not see each other."""
    stock.make("sales.orders", KEYED_COLUMNS, keyed_rows(KEYED_OLD), primary_key=["id"], bucket="1")
    before = {info.key: store.read(info.key) for info in store.list("lake/")}
    stock.append("sales.orders", keyed_rows({3: "a", 4: "a"}))
    newest = "lake/sales.db/orders/snapshot/snapshot-2"
    first = store.read(newest)
    for key in ("lake/sales.db/orders/snapshot/LATEST", newest):
        store.delete(key)
    store.put("lake/sales.db/orders/snapshot/LATEST", before["lake/sales.db/orders/snapshot/LATEST"])
    _append_beside(stock, store, first)
    with pytest.raises(LakeMismatchError, match="bucket 0 has 1 row with the key and sequence number of another"):
        wh.adopt_table("sales.orders")
    assert not wh.exists("sales.orders")
    stock.append("sales.orders", keyed_rows({3: "told"}))
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    expected = {**KEYED_OLD, 3: "told", 4: "a", 5: "b"}
    assert (
        rows_of(table.to_arrow()) == rows_of(table.lake.to_arrow()) == texts_of(stock.read("sales.orders")) == expected
    )


def _append_beside(stock: Stock, store, first: bytes) -> None:
    """Rows that a writer wrote who saw the first snapshot alone, committed behind another's."""
    stock.pull()
    table = stock._catalog.get_table("sales.orders")
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.Table.from_pylist(keyed_rows({3: "b", 5: "b"}), schema=KEYED_COLUMNS))
    messages = write.prepare_commit()
    store.put("lake/sales.db/orders/snapshot/snapshot-2", first)
    (stock._folder / "lake/sales.db/orders/snapshot/snapshot-2").write_bytes(first)
    (stock._folder / "lake/sales.db/orders/snapshot/LATEST").write_bytes(b"2")
    commit.commit(messages)
    stock._push()


def test_rows_in_other_buckets_than_their_keys_are_refused(own_cache, wh, stock, monkeypatch):
    stock.make("sales.orders", KEYED_COLUMNS, keyed_rows(KEYED_OLD), primary_key=["id"], bucket="3")
    buckets_of = paimon_adopt.row_buckets
    monkeypatch.setattr(paimon_adopt, "row_buckets", lambda *asked: (buckets_of(*asked) + 1) % 3)
    with pytest.raises(LakeMismatchError, match=r"bucket 0 has \d rows of other buckets, for example .'id': \d. of"):
        wh.adopt_table("sales.orders")


def test_rescaled_partitions_are_refused(own_cache, wh, stock, store):
    stock.make("sales.orders", KEYED_COLUMNS, keyed_rows(KEYED_OLD), primary_key=["id"], bucket="2")
    key = "lake/sales.db/orders/schema/schema-0"
    store.put(key, store.read(key).replace(b'"bucket": "2"', b'"bucket": "4"'))
    with pytest.raises(LakeMismatchError, match="files of 2 buckets in addition to 4: rewrite the partitions"):
        wh.adopt_table("sales.orders")


def test_rows_behind_whose_numbers_there_are_no_more_are_refused(own_cache, wh, stock, monkeypatch):
    stock.make("sales.orders", KEYED_COLUMNS, keyed_rows(KEYED_OLD), primary_key=["id"], bucket="1")
    monkeypatch.setattr(paimon_adopt, "SEQUENCE_MAX", 6)
    with pytest.raises(LakeMismatchError, match="sequence numbers up to 7, expected at most 6"):
        wh.adopt_table("sales.orders")
    monkeypatch.setattr(paimon_adopt, "SEQUENCE_MAX", 7)
    assert wh.adopt_table("sales.orders").rows == 8


@on_paimon
def test_a_branch_of_an_adopted_paimon_table_is_published(table, lake, other_process):
    """The table moves on beside it, by other keys."""
    table.create_branch("fix")
    branch = table.branch("fix")
    branch.upsert(keyed_rows({3: "of the branch", 20: "new"}))
    branch.delete(keys(branch, 5))
    table.upsert(keyed_rows({0: "of the table"}))
    tier(table)
    of_branch = {i: text for i, text in KEYED_OLD.items() if i != 5} | {3: "of the branch", 20: "new"}
    assert rows_of(branch.to_arrow()) == of_branch
    assert found(branch, 3, 5, 0) == ["of the branch", None, KEYED_OLD[0]]
    assert found(table, 3, 5, 0) == [KEYED_OLD[3], KEYED_OLD[5], "of the table"]
    done = table.fast_forward("fix")
    assert (done.rows_written, done.rows_deleted) == (2, 1)
    expected = of_branch | {0: "of the table"}
    assert rows_of(other_process().table("sales.orders").to_arrow()) == expected
    tier(table)
    agree(table, lake, expected)
