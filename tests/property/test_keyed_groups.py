"""Upserts and deletes that wait together leave the changelog, the rows and the answers of one after another."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.keyed_groups import KINDS, alone, attempts_since, changelog, current_rows, made_table, together
from streamhouse_spark import StreamhouseError
from streamhouse_spark.kv.tablet import close_tablets

ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(0, 5), "name": st.none() | st.sampled_from("ab"), "n": st.none() | st.integers(0, 3)}
    ),
    min_size=1,
    max_size=5,
)
CALLS = st.lists(st.tuples(st.sampled_from(["upsert", "delete", "name", "n"]), ROWS), min_size=2, max_size=5)
ROUNDS = st.lists(CALLS, min_size=1, max_size=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_examples", [15, pytest.param(150, marks=pytest.mark.long)])
def test_they_are_as_one_after_another(kind, num_examples, own_cache):
    @settings(max_examples=num_examples)
    @given(rounds=ROUNDS, buckets=st.sampled_from([1, 2]))
    def any_rounds(rounds, buckets):
        check(kind, rounds, buckets)

    any_rounds()


def check(kind: str, rounds: list[list[tuple[str, list[dict[str, object]]]]], buckets: int) -> None:
    grouped, single = made_table(kind, "grouped", buckets), made_table(kind, "single", buckets)
    known = grouped.refresh().version
    for number, calls in enumerate(rounds):
        answers = together(grouped, calls, number)
        order = attempts_since(grouped, known)
        known = grouped.refresh().version
        for at in [*order, *(n for n in range(len(calls)) if n not in order)]:
            expected = alone(single, calls[at], number, at)
            assert type(answers[at]) is type(expected), (answers[at], expected)
            if not isinstance(expected, StreamhouseError):
                assert answers[at] == expected
    assert changelog(grouped) == changelog(single)
    rows = current_rows(grouped)
    assert rows == current_rows(single)
    close_tablets()  # and by a new cache, from the log
    assert current_rows(grouped) == rows
    assert isinstance(grouped.to_arrow(), pa.Table)
