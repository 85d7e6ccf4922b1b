"""Two statements at once, and a statement beside a writer by key: who is in conflict, at whatever call they meet."""

from __future__ import annotations

import pytest

from faults.row_level import Statement, Write, beside_a_writer, delete, merge, side_by_side, update

ROWS = {1: 10, 2: 20, 3: 30}
CALLS = 3
"""Of a commit that nobody disturbs: looking for news before it, looking again, and the record."""


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
def test_statements_that_meet(first: Statement, second: Statement):
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
def test_statements_about_other_rows(first: Statement, second: Statement):
    assert side_by_side(ROWS, first, second) == 0


def test_segments_that_are_merged_remember_the_statements_in_them():
    conflicts = side_by_side(ROWS, update(10, 10, 10), update(20, 20, -10), lambda table: table.merge_inline())
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
