"""Whatever another process does between any two storage calls of an operation, nothing is lost, doubled or torn."""

from __future__ import annotations

from collections import Counter

import pytest

from faults import interleave as il
from faults.checkers import check_all
from faults.history import Told
from faults.ledger import Ledger
from faults.scenarios import LARGE, NAME, Run
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.model import Transaction

TRANSACTION = Transaction("app", 1, "query")

WORK = {
    "append inline": lambda run: run.send_batch(),
    "append objects": lambda run: run.send_batch(),
    "append with a transaction": lambda run: run.send_batch(),
    "merge": lambda run: run.open().merge_small(),
    "maintain": lambda run: run.open().maintain(),
    "read": lambda run: run.reader.saw(run.open().to_arrow(columns=["id"]).column("id").to_pylist()),
}
BETWEEN = {
    "appends": il.rival_appends,
    "merges": il.rival_merges,
    "sleeps for days": il.a_day_passes_with_cleaning,
    "sleeps while others clean": il.a_day_passes_with_cleaning_alone,
}


def base_for(work: str) -> Run:
    base = il.prepared_table({"table.log.ttl": "30h"} if work == "maintain" else None)
    if work == "append objects":
        base.prepare_batch(num_rows=4, row_chars=LARGE)
    elif work == "append with a transaction":
        base.prepare_batch(transaction=TRANSACTION)
    elif work == "append inline":
        base.prepare_batch()
    return base


@pytest.mark.slow
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("work", WORK)
def test_another_process_between_any_two_calls(work, between):
    outcomes: Counter[str] = Counter()
    with il.small_limits():
        base = base_for(work)
        for at in range(il.calls_of(base, WORK[work])):
            run, error = il.run_interleaved(base, WORK[work], BETWEEN[between], at)
            outcomes[type(error).__name__ if error else "success"] += 1
            what = f"{work}, another process acts ({between}) before call {at}: {error}"
            try:
                if error is not None:
                    assert_expected(work, between, error)
                run.append()
                run.check()
            except (AssertionError, StreamhouseError) as broken:
                raise AssertionError(f"{what}: {broken}") from broken
    print(f"{work} / {between}: {dict(outcomes)}")  # noqa: T201
    assert outcomes["success"]


def assert_expected(work: str, between: str, error: StreamhouseError) -> None:
    """Only a process that slept past the grace may fail, and it says so; nobody else notices the others."""
    assert between.startswith("sleeps"), error
    expected = CommitConflictError if work.startswith("append") else CorruptDataError
    assert isinstance(error, expected), error


@pytest.mark.parametrize("work", ["append inline", "append objects", "merge", "maintain"])
def test_a_table_dropped_and_created_again_between_any_two_calls(work):
    with il.small_limits():
        base = base_for(work)
        old_ids = sorted(base.observe().all_ids())
        for at in range(il.calls_of(base, WORK[work])):
            run, error = il.run_interleaved(base, WORK[work], il.rival_drops_and_creates, at)
            new = il.rival(run)
            assert run.ledger is not None
            old, run.ledger = run.ledger, None
            stored = sorted(i for ids in (old.observe(), old.all_ids())[1:] for i in ids)
            sent = list(run.batch.ids) if run.batch else []
            if new.uuid == old.table_uuid:
                assert stored == sorted(old_ids + sent)
                continue
            rows_of_new = sorted(new.to_arrow().column("id").to_pylist())
            if error is not None:
                assert isinstance(error, TableNotFoundError | CommitConflictError), error
                assert stored == old_ids, f"call {at}: the dropped table got rows: {error}"
                assert rows_of_new == [], f"call {at}: the new table got the old one's rows"
            elif run.batch is not None:
                assert sorted(stored + rows_of_new) == sorted(old_ids + sent), f"call {at}"


@pytest.mark.parametrize("slow_commit_ms", [0, 61_000])
def test_the_same_transaction_from_two_drivers_is_stored_once(slow_commit_ms):
    base = base_for("append with a transaction")
    for at in range(il.calls_of(base, WORK["append with a transaction"])):

        def rival(run: Run) -> None:
            il.rival_sends_the_same(run)
            run.clock.advance(slow_commit_ms)

        run, error = il.run_interleaved(base, WORK["append with a transaction"], rival, at)
        assert error is None
        assert il.told_of(run) is Told.ACKNOWLEDGED
        run.check()


def test_two_processes_create_one_table():
    base = Run()
    for at in range(il.calls_of(base, lambda run: run.create())):
        run, error = il.run_interleaved(base, lambda run: run.create(), il.rival_creates, at)
        assert error is None or error.condition == "TABLE_EXISTS", error
        run.table = None
        run.append()
        ledger = Ledger(run.memory, run.open().uuid)
        check_all(run.memory, NAME, run.history, ledger)
