"""Two statements at once, and a statement beside a writer by key: who is in conflict, at whatever call they meet."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage, sweep
from faults.row_level import (
    NAME,
    Begun,
    Statement,
    Write,
    another,
    beside_a_writer,
    changelog_rows,
    delete,
    merge,
    new_table,
    own_tablets,
    read,
    side_by_side,
    update,
)
from faults.sim import sim_world
from streamhouse_spark import CommitConflictError, Warehouse
from streamhouse_spark.kv import change_staging, conflict_detection
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows

ROWS = {1: 10, 2: 20, 3: 30}
CALLS = 2
"""Of a commit that nobody disturbs: looking for news before it, and the record."""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (update(0, 99, 1), update(0, 99, 1)),
        (update(10, 10, 10), update(20, 20, -10)),  # each makes a row that the other is about
        (update(20, 30, 1), delete(30, 30)),
        (delete(10, 10), merge({1: 5})),
        (merge({7: 1}), merge({7: 2})),  # neither saw the other's row
        (update(10, 10, 80), delete(30, 90)),
    ],
    ids=lambda one: one.text,
)
def test_two_statements_at_once_conflict_only_over_shared_rows(first: Statement, second: Statement):
    assert side_by_side(ROWS, first, second) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (update(10, 10, 1), update(30, 30, 1)),
        (update(10, 10, 1), delete(20, 20)),
        (merge({1: 5, 7: 1}), merge({2: 5, 8: 1})),
        (delete(10, 10), merge({2: 5})),
    ],
    ids=lambda one: one.text,
)
def test_statements_about_other_rows_do_not_conflict(first: Statement, second: Statement):
    assert side_by_side(ROWS, first, second) == 0


def test_segments_that_are_merged_remember_the_statements_in_them():
    conflicts = side_by_side(ROWS, update(10, 10, 10), update(20, 20, -10), compact_inline_rows)
    assert conflicts == 1


@pytest.mark.parametrize("statement", [update(10, 10, 5), delete(10, 10), merge({1: 5, 7: 1})], ids=lambda s: s.text)
@pytest.mark.parametrize(
    "write", [Write({2: 0}), Write({9: 10}), Write({3: None})], ids=["another row", "a row like it", "a deletion"]
)
def test_writes_of_other_keys_pass(statement: Statement, write: Write):
    conflicts = beside_a_writer(ROWS, statement, write)
    assert conflicts == [False] * CALLS


@pytest.mark.parametrize(
    ("statement", "write"),
    [
        (update(10, 10, 5), Write({1: 0})),
        (update(10, 10, 5), Write({1: None})),
        (delete(10, 10), Write({1: 0, 5: 5})),
        (merge({7: 1}), Write({7: 5})),
    ],
    ids=["updated", "deleted", "deleted by the statement", "inserted"],
)
def test_writes_of_the_same_key_are_conflicts(statement: Statement, write: Write):
    assert beside_a_writer(ROWS, statement, write) == [True] * CALLS


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "objects"])
def test_a_fault_at_every_call_of_a_statement_that_is_rebased(inline, monkeypatch, tmp_path, own_cache, share):
    """Committing it again with what it had read makes it happen once, whatever the first run was told."""
    if not inline:
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
    begun: list[Begun] = []
    hosts = itertools.count()

    def on_new_host():
        close_tablets()
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / str(next(hosts))))

    def new_store():
        on_new_host()
        table = new_table(ROWS)
        begun[:] = [update(10, 20, 5).began(opened(table.storage, 5))]
        Write({3: 31, 4: 40}).run(opened(table.storage, 6))
        return table.storage

    def opened(storage, seed=7):
        return Warehouse("wh", storage=storage, world=sim_world(seed)).table(NAME)

    after = {1: 15, 2: 25, 3: 31, 4: 40}
    outcomes: Counter[tuple[bool, bool]] = Counter()
    for attempt in sweep(new_store, lambda storage: begun[0].commits(opened(storage)), share=share):
        on_new_host()
        table = another(opened(attempt.store))
        happened = read(table) == after
        assert happened or (attempt.raised and read(table) == {**ROWS, 3: 31, 4: 40}), attempt
        if happened:
            with pytest.raises(CommitConflictError):
                begun[0].commits(table)
        else:
            begun[0].commits(table)
        assert read(table) == after == changelog_rows(table), attempt
        outcomes[bool(attempt.raised), happened] += 1
    assert set(outcomes) <= {(False, True), (True, True), (True, False)}
    assert outcomes[True, False] or not share.is_rest  # a share may lack the few calls behind the commit


# -- what it costs -----------------------------------------------------------------------------------------------------


def calls_of_a_commit(writes, buckets=1):
    """Storage calls of a statement's commit beside writes since it read."""
    with own_tablets():
        table = new_table(ROWS, buckets)
        storage = FaultyStorage(table.storage)
        process = another(table, storage)
        begun = update(10, 10, 5).began(process)
        for write in writes:
            write.run(another(table))
        before = len(storage.trace)
        begun.commits(process)
        return len(storage.trace) - before


def test_each_record_of_others_is_read_once_more_and_only_where_its_bucket_is_written():
    buckets = 4
    with own_tablets():
        shape = new_table(ROWS, buckets).keyed.keyed_schema()
        of = {key: int(shape.bucket_numbers([pa.array([key])])[0]) for key in range(1, 40)}
    same = next(key for key in range(4, 40) if of[key] == of[1])
    other = next(key for key in range(4, 40) if of[key] != of[1])
    alone = calls_of_a_commit([], buckets)
    assert alone == CALLS
    number = 10
    elsewhere = calls_of_a_commit([Write({other: n}) for n in range(number)], buckets)
    assert elsewhere == alone + number  # finding the end of the log
    beside = calls_of_a_commit([Write({same: n}) for n in range(number)], buckets)
    assert beside == alone + 2 * number


def test_too_many_changes_are_not_looked_through(monkeypatch):
    monkeypatch.setattr(conflict_detection, "CHANGES_MAX", 3)
    assert calls_of_a_commit([Write({4: 1, 5: 1, 6: 1})])
    with pytest.raises(CommitConflictError, match="4 concurrent changes exceed the limit"):
        calls_of_a_commit([Write({4: 1, 5: 1, 6: 1, 7: 1})])


def test_changes_that_were_trimmed_are_a_conflict():
    with own_tablets():
        table = new_table(ROWS)
        begun = update(10, 10, 5).began(table)
        begun = replace(begun, base=replace(begun.base, buckets={0: (0, 1)}))
        Write({4: 1}).run(table)
        bare = replace(table.refresh().buckets[0], start=2)
        state = replace(table.refresh(), buckets={0: bare})
        judge = conflict_detection.ConflictChecker(begun.base, table.storage, table.keyed.keyed_schema().layout)
        with pytest.raises(CommitConflictError, match="the changes of bucket 0 from offset 1 have expired"):
            judge.check(state, {})


def test_a_log_that_went_back_is_a_conflict():
    with own_tablets():
        table = new_table(ROWS)
        begun = update(10, 10, 5).began(table)
        begun = replace(begun, base=replace(begun.base, buckets={0: (0, 9)}))
        with pytest.raises(CommitConflictError, match="ended at offset 9 and now ends at 3: the table was restored"):
            begun.commits(table)


def test_a_writer_without_pause_starves_no_statement(tmp_path, own_cache):
    """On a local disk, where commits take milliseconds: each loses some races, none too many."""
    url = str(tmp_path / "warehouse")
    table = Warehouse(url, storage=LocalStorage(url, fsync=False)).create_table(
        NAME, "id BIGINT, n BIGINT", primary_key=["id"], properties={"table.datalake.enabled": "false"}
    )
    table.upsert([{"id": key, "n": n} for key, n in ROWS.items()])
    stop = threading.Event()
    written = []

    def write():
        busy = Warehouse(url, storage=LocalStorage(url, fsync=False)).table(NAME)
        while not stop.is_set():
            written.append(1000 + len(written))
            busy.upsert([{"id": 100, "n": written[-1]}])

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            statements = 0
            while statements < 20 or len(written) <= 20:
                update(0, 99, 1).began(table).commits(table)
                statements += 1
        finally:
            stop.set()
        writing.result()
    assert read(table) == {key: n + statements for key, n in ROWS.items()} | {100: written[-1]}
