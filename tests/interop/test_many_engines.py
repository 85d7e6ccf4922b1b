"""Engines beside each other while rows stream in and are tiered, as `make serve-engines` runs them for ten minutes; and
the checks of that run, which have to find an answer that is no state.
"""

from __future__ import annotations

import random

import pytest

from many_engines.checks import Acknowledged, Checks, WrongAnswerError
from many_engines.engines import answer_of
from many_engines.figures import Figures, as_table
from many_engines.processes import write_accounts, write_events
from many_engines.run import run
from many_engines.written import (
    ACCOUNTS,
    ACCOUNTS_COLUMNS,
    BATCH_ROWS,
    EVENTS,
    EVENTS_COLUMNS,
    AccountsState,
    accounts_write,
    deleted_batch,
    events_answer,
)
from streamhouse_spark import Warehouse

OF_THE_TESTS = ["DuckDB", "DuckDB, the lake's folder", "pyiceberg", "polars", "Arrow Flight", "HTTP"]
"""Engines of which nothing has to be fetched."""


def test_each_state_of_the_tables_is_what_the_checks_expect(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    events = warehouse.create_table(EVENTS, EVENTS_COLUMNS, buckets=3)
    accounts = warehouse.create_table(ACCOUNTS, ACCOUNTS_COLUMNS, primary_key=["id"], buckets=2)
    state = AccountsState()
    for number in range(45):
        write_events(events, number)
        write_accounts(accounts, state)
        if number % 9 == 8:
            rows, since = events.to_arrow(), number - 12
            assert answer_of(EVENTS, rows) == events_answer(number + 1, 0)
            recent = events.to_arrow(filter=[("batch", ">=", since)])
            assert answer_of(EVENTS, recent) == events_answer(number + 1, since)
            rows = accounts.to_arrow()
            assert answer_of(ACCOUNTS, rows) == state.answer(0)
            assert rows.num_rows == 200 + sum(i >= 200 for i in state.rows)
    kinds = {accounts_write(number)[0] for number in range(45)}
    assert kinds == {"load", "move", "open", "delete"}
    assert {deleted_batch(number) for number in (9, 19, 29, 39)} == {5, 0, 20}


def the_accounts(writes: int) -> AccountsState:
    state = AccountsState()
    while state.writes < writes:
        state.advance()
    return state


def test_answers_that_are_states_pass():
    checks, seen = Checks(), random.Random(1)
    for writes in range(2, 200, 3):
        for table in (EVENTS, ACCOUNTS):
            since = seen.choice([0, max(1, writes - 20)])
            answer = events_answer(writes, since) if table == EVENTS else the_accounts(writes).answer(since)
            found = checks.check(table, answer, since, at_least=writes - 1, at_most=writes)
            assert writes - 1 <= found <= writes, "of two states with one answer the older one"


def test_states_that_nobody_acknowledged_yet_and_those_of_the_lake_pass():
    checks = Checks()
    assert checks.check(EVENTS, events_answer(31, 0), 0, at_least=29, at_most=30) == 31
    lake = Checks()
    assert lake.check(EVENTS, events_answer(12, 0), 0, at_least=0, at_most=300) == 12
    assert lake.check(ACCOUNTS, the_accounts(40).answer(0), 0, at_least=0, at_most=300) == 40


@pytest.mark.parametrize("table", [EVENTS, ACCOUNTS])
@pytest.mark.parametrize("measure", range(4))
def test_an_answer_that_is_off_by_one_is_torn(table, measure):
    right = events_answer(50, 0) if table == EVENTS else the_accounts(50).answer(0)
    wrong = tuple(value + (place == measure) for place, value in enumerate(right))
    with pytest.raises(WrongAnswerError, match="torn"):
        Checks().check(table, wrong, 0, at_least=48, at_most=60)


def test_half_a_commit_is_torn():
    """A bucket of a batch is missing, and one half of a transfer."""
    rows, total, least, most = events_answer(48, 0)
    last = [most - place for place in range(BATCH_ROWS // 2)]
    half = (rows - len(last), total - sum(last), least, most - len(last))
    with pytest.raises(WrongAnswerError, match="torn"):
        Checks().check(EVENTS, half, 0, at_least=40, at_most=60)
    before, after = the_accounts(50), the_accounts(51)
    moved = next(i for i in after.rows if after.rows[i] != before.rows.get(i))
    before.rows[moved] = after.rows[moved]
    with pytest.raises(WrongAnswerError, match="torn"):
        Checks().check(ACCOUNTS, before.answer(0), 0, at_least=40, at_most=60)


@pytest.mark.parametrize("table", [EVENTS, ACCOUNTS])
def test_an_older_state_than_was_promised(table):
    answer = events_answer(50, 0) if table == EVENTS else the_accounts(50).answer(0)
    with pytest.raises(WrongAnswerError, match="misses acknowledged writes"):
        Checks().check(table, answer, 0, at_least=52, at_most=60)
    checks = Checks()
    checks.check(table, answer, 0, at_least=50, at_most=60)
    older = events_answer(48, 0) if table == EVENTS else the_accounts(48).answer(0)
    with pytest.raises(WrongAnswerError, match="went back"):
        checks.check(table, older, 0, at_least=0, at_most=60)
    later = events_answer(70, 0) if table == EVENTS else the_accounts(70).answer(0)
    with pytest.raises(WrongAnswerError, match="torn"):  # nobody wrote so much yet
        checks.check(table, later, 0, at_least=50, at_most=60)


def test_numbers_of_acknowledged_writes_are_seen_by_others(tmp_path):
    Acknowledged(tmp_path / "numbers").put(ACCOUNTS, 7)
    found = Acknowledged(tmp_path / "numbers")
    assert (found.get(EVENTS), found.get(ACCOUNTS)) == (0, 7)


def test_figures_of_a_reader_need_answers_to_be_right():
    found = Figures("an engine")
    assert not found.is_right, "it never opened"
    found.take({"opened": "an engine"})
    assert not found.is_right, "it has no answer"
    for number in range(100):
        found.take({"ms": float(number), "table": EVENTS, "state": number})
    assert found.is_right
    assert found.row() == ["an engine", "100", "100", "0", "0", "50", "98"]
    found.take({"ms": 1.0, "table": EVENTS, "wrong": "torn: …"})
    found.take({"table": EVENTS, "error": "IOError: there is no file"})
    assert not found.is_right
    assert found.row()[3:5] == ["1", "IOError 1"]
    head, line, row = as_table([found]).splitlines()
    assert len(head) == len(line) == len(row)


@pytest.mark.long
def test_concurrent_engines_answer_rightly_while_rows_arrive(tmp_path):
    told: list[str] = []
    found = run(tmp_path, OF_THE_TESTS, 40, tell=told.append)
    wrong = [text for one in found.figures for text in (*one.wrong, *one.errors)]
    assert found.is_right, (wrong, found.failures, told)
    assert min(found.writes.values()) > 50
    assert found.rounds > 4
