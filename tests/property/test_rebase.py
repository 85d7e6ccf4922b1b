"""Random statements beside random writes by key: what is left is what some serial order of them leaves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.row_level import (
    Begun,
    Statement,
    Write,
    changelog_rows,
    delete,
    is_serial,
    merge,
    new_table,
    own_tablets,
    read,
    update,
)
from streamhouse_spark import CommitConflictError
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.write.auto_compaction import compact_inline_rows

KEYS = st.integers(0, 4)
NUMBERS = st.integers(0, 3)
STATEMENTS = (
    st.builds(update, NUMBERS, NUMBERS, st.integers(-2, 2))
    | st.builds(delete, NUMBERS, NUMBERS)
    | st.builds(merge, st.dictionaries(KEYS, NUMBERS, min_size=1, max_size=2))
)
UPSERTS = st.dictionaries(KEYS, NUMBERS, min_size=1, max_size=3).map(Write)
DELETES = st.lists(KEYS, min_size=1, max_size=2).map(lambda keys: Write(dict.fromkeys(keys)))
STEPS = st.lists(
    st.tuples(st.just("begin"), STATEMENTS)
    | st.tuples(st.just("commit"), st.integers(0, 3))
    | st.tuples(st.just("write"), UPSERTS | DELETES)
    | st.tuples(st.just("merge segments"), st.none()),
    max_size=14,
)


def check_history(rows, steps) -> Counter[str]:
    """Statements begin and commit among writes; afterwards the table is what some serial order makes of it."""
    table = new_table(rows, buckets=2)
    begun: list[Begun] = []
    statements: list[Statement] = []
    writes: list[Write] = []
    outcomes: Counter[str] = Counter()
    for step, what in [*steps, *(("commit", 0) for _ in steps)]:
        if step == "begin" and len(begun) < 3:
            begun.append(what.began(table))
        elif step == "write" and len(writes) < 5:
            before = read(table)
            what.run(table)
            # Of a row that it leaves as it is, the log has no change: that part of it is none.
            writes.append(Write({key: n for key, n in what.changes.items() if n != before.get(key)}))
        elif step == "merge segments":
            compact_inline_rows(table)
        elif step == "commit" and what < len(begun):
            one = begun.pop(what)
            if not one.changes:
                continue  # it wrote nothing, so it stands where it read
            moved = ReadVersion.of(table.refresh()) != one.base
            try:
                one.commits(table)
                statements.append(one.statement)
                outcomes["rebased" if moved else "as it was"] += 1
            except CommitConflictError:
                assert moved
                outcomes["conflict"] += 1
    told = ([s.text for s in statements], [w.changes for w in writes])
    found = read(table)
    assert is_serial(rows, found, statements, writes), (rows, told, found)
    assert changelog_rows(table) == found
    return outcomes


@pytest.mark.parametrize("num_examples", [40, pytest.param(150, marks=pytest.mark.long)])
def test_random_statements_and_writes_are_serializable(num_examples):
    @settings(max_examples=num_examples)
    @given(rows=st.dictionaries(KEYS, NUMBERS), steps=STEPS)
    def any_history(rows, steps):
        with own_tablets():
            check_history(rows, steps)

    any_history()
