"""A writer of a table with a primary key: upserts and deletions in their order, few commits, each stored once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kit.rows import rows_by_id
from streamhouse_spark import (
    ConstraintViolatedError,
    InvalidOptionError,
    ProducerFencedError,
    SchemaMismatchError,
    Warehouse,
)
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.memory import MemoryStorage

LONG_MS = 3_600_000


@pytest.fixture
def real(own_cache) -> Warehouse:
    """A warehouse whose time passes: writers have threads."""
    return Warehouse("wh", storage=MemoryStorage(World()))


@pytest.fixture
def table(real):
    return real.create_table("a.users", "id BIGINT NOT NULL, name STRING DEFAULT 'new', n INT", primary_key=["id"])


@pytest.fixture
def sums(real):
    return real.create_table(
        "a.sums",
        "id BIGINT NOT NULL, total BIGINT",
        primary_key=["id"],
        buckets=2,
        properties={"table.merge-engine": "aggregation", "fields.total.agg": "sum"},
    )


def test_sends_and_deletions_count_in_their_order_and_are_few_commits(table):
    table.upsert([{"id": 9, "name": "old", "n": 0}])
    before = table.refresh().version
    with table.writer(flush_ms=LONG_MS) as writer:
        futures = [
            writer.send({"id": 1, "name": "a", "n": 1}),
            writer.send({"id": 1, "name": "b", "n": 2}),
            writer.send(pa.table({"id": [2, 3], "name": ["c", "d"], "n": pa.array([3, 4], pa.int32())})),
            writer.delete(9),
            writer.delete([2]),
            writer.send({"id": 2, "name": "again", "n": 5}),
        ]
        writer.flush()
    assert rows_by_id(table) == [
        {"id": 1, "name": "b", "n": 2},
        {"id": 2, "name": "again", "n": 5},
        {"id": 3, "name": "d", "n": 4},
    ]
    assert table.refresh().version == before + 1
    answers = [future.result() for future in futures]
    assert {answer.num_rows for answer in answers} == {4}, "one change of each key, and 9 went"


def test_turns_of_rows_with_other_columns_are_a_commit_each(table):
    before = table.refresh().version
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send([{"id": 1, "n": 1}, {"id": 2, "n": 1}])
        writer.delete(1)
        writer.send({"id": 1, "name": "whole", "n": 2})
        writer.delete(2)
    assert rows_by_id(table) == [{"id": 1, "name": "whole", "n": 2}]
    assert table.refresh().version == before + 2


def test_turns_of_an_identity_column_are_a_commit_each(real):
    """In one record the row would keep its number, and nobody would see that it was gone."""
    numbered = {"table.identity.n": "ALWAYS"}
    table = real.create_table("a.numbered", "id INT, n BIGINT", primary_key=["id"], properties=numbered)
    table.upsert([{"id": 1}])
    before = table.refresh().version
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.delete(1)
        writer.send({"id": 1})
    assert rows_by_id(table)[0]["n"] != 1
    assert table.refresh().version >= before + 2


def test_mixed_calls_are_one_commit_if_a_table_ignores_deletions(real):
    ignoring = {"table.merge-engine": "first_row", "table.delete.behavior": "ignore"}
    generated = {"table.generated.twice": "v * 2"}
    for name, properties in (("a.first", ignoring), ("a.twice", generated)):
        table = real.create_table(name, "id INT, v INT, twice INT", primary_key=["id"], properties=properties)
        with table.writer(flush_ms=LONG_MS) as writer:
            writer.send({"id": 1, "v": 1})
            writer.delete([1])
            writer.send({"id": 1, "v": 2})
            writer.send({"id": 2, "v": 3})
            writer.delete([2])
        assert table.refresh().version == 2
    twice = [{"id": 1, "v": 2, "twice": 4}]
    first = [{"id": 1, "v": 1, "twice": None}, {"id": 2, "v": 3, "twice": None}]
    assert (rows_by_id(real.table("a.first")), rows_by_id(real.table("a.twice"))) == (first, twice)


def test_columns_that_change_between_turns(table):
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send({"id": 1, "name": "a", "n": 1})
        writer.delete(2)
        table.add_columns("more INT", defaults={"more": 3})
        table.rename_column("more", "other")
    assert table.to_arrow().to_pylist() == [{"id": 1, "name": "a", "n": 1, "other": 3}]


def test_an_answer_makes_the_row_visible_to_a_lookup_that_waits_for_it(table):
    with table.writer() as writer:
        offsets = writer.send({"id": 5, "name": "e"}).result()
    assert table.lookup_one(5, at_least=offsets) == {"id": 5, "name": "e", "n": None}


def test_columns_that_a_row_lacks_have_the_default_of_the_commit(table):
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send({"id": 1})
        table.set_default("name", "later")
        writer.flush()
    assert rows_by_id(table) == [{"id": 1, "name": "later", "n": None}]


def test_bad_rows_and_keys_are_refused_where_they_are_sent(table):
    with table.writer(flush_ms=LONG_MS) as writer:
        for bad in ({"id": None}, {"id": 1, "x": 2}, {"name": "no key"}, [{"id": "1"}]):
            with pytest.raises(SchemaMismatchError):
                writer.send(bad)
        for key in ("1", None, {"n": 1}, [(1, 2)]):
            with pytest.raises(SchemaMismatchError):
                writer.delete(key)
        writer.send({"id": 1})
    assert [row["id"] for row in rows_by_id(table)] == [1]


def test_a_table_that_takes_no_deletions_refuses_them_where_they_are_sent(real):
    table = real.create_table("a.kept", "id INT", primary_key=["id"], properties={"table.delete.behavior": "disable"})
    with table.writer() as writer, pytest.raises(InvalidOptionError, match=r"table.delete.behavior is disable"):
        writer.delete(1)


def test_a_table_without_a_primary_key_names_the_deletion_by_a_filter(real):
    table = real.create_table("a.log", "id INT")
    with table.writer() as writer, pytest.raises(InvalidOptionError, match=r"delete\(where=...\)"):
        writer.delete(1)


def test_a_check_is_looked_at_where_a_row_is_sent_if_the_row_stays_as_it_is(real):
    small = {"table.constraint.small": "v < 9"}
    table = real.create_table("a.checked", "id INT, v INT", primary_key=["id"], properties=small)
    with table.writer(flush_ms=LONG_MS) as writer, pytest.raises(ConstraintViolatedError):
        writer.send({"id": 1, "v": 9})
    merged = {"table.merge-engine": "aggregation", "fields.v.agg": "sum", **small}
    table = real.create_table("a.merged", "id INT, v INT", primary_key=["id"], properties=merged)
    table.upsert([{"id": 1, "v": -5}])
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send({"id": 1, "v": 10})
    assert rows_by_id(table) == [{"id": 1, "v": 5}]


def test_a_producer_that_comes_back_writes_nothing_twice(sums):
    with sums.writer(producer_id="till") as writer:
        for sequence in range(4):
            writer.send({"id": sequence % 2, "total": 1 << sequence}, sequence=sequence)
    with sums.writer(producer_id="till") as writer:
        assert writer.last_sequence == 3
        for sequence in range(6):
            writer.send([{"id": sequence % 2, "total": 1 << sequence}], sequence=sequence)
    assert rows_by_id(sums) == [{"id": 0, "total": 0b010101}, {"id": 1, "total": 0b101010}]


def test_an_older_writer_of_the_id_writes_nothing_more(sums):
    with sums.writer(producer_id="till", flush_ms=LONG_MS) as old:
        answer = old.send({"id": 1, "total": 1})
        with sums.writer(producer_id="till") as new:
            new.send({"id": 1, "total": 10})
        with pytest.raises(ProducerFencedError):
            old.flush()
        with pytest.raises(ProducerFencedError):
            answer.result()
    assert rows_by_id(sums) == [{"id": 1, "total": 10}]


def test_an_older_writer_that_repeats_what_is_stored_hears_of_the_newer_one(sums):
    with sums.writer(producer_id="till", flush_ms=LONG_MS) as old:
        answer = old.send({"id": 1, "total": 1}, sequence=0)
        with sums.writer(producer_id="till") as new:
            new.send({"id": 1, "total": 10}, sequence=3)
        with pytest.raises(ProducerFencedError):
            old.flush()
        with pytest.raises(ProducerFencedError):
            answer.result()
    assert rows_by_id(sums) == [{"id": 1, "total": 10}]


def test_columns_that_change_meanwhile(table):
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send({"id": 1, "name": "a"})
        table.add_columns("more INT", defaults={"more": 3})
        writer.flush()
        table.rename_column("id", "key")
        writer.delete(1)
    assert table.to_arrow().to_pylist() == []
