"""The quotes of CSV, checked block by block."""

from __future__ import annotations

import csv
import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.write.file_readers import QuoteCheck


def problem(blocks: list[bytes]) -> str:
    check = QuoteCheck(",")
    try:
        for block in blocks:
            check.check(block)
        check.finish()
    except SchemaMismatchError as error:
        return str(error)
    return ""


def is_rfc_4180(text: str) -> bool:
    """Read the text with the states of RFC 4180's grammar, a character at a time."""
    state = "start"
    for character in text:
        if state == "inside":
            state = "closed" if character == '"' else "inside"
        elif character == '"':
            if state == "plain":
                return False
            state = "inside"
        elif character in ",\r\n":
            state = "start"
        elif state == "closed":
            return False
        else:
            state = "plain"
    return state != "inside"


@given(st.text(st.sampled_from('a",\n\r '), max_size=12), st.lists(st.integers(0, 12)))
def test_quotes_are_judged_as_the_grammar_does_wherever_blocks_end(text, cuts):
    data = text.encode()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    blocks = [data[begin:end] for begin, end in itertools.pairwise(places)]
    assert (problem(blocks) == "") is is_rfc_4180(text), problem(blocks)


@given(st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=3), max_size=4))
def test_what_python_writes_is_accepted(rows):
    sink = io.StringIO()
    csv.writer(sink).writerows(rows)
    assert problem([sink.getvalue().encode()]) == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a\n"b\n\nc\n', "line 2 is not closed"),
        ('a\n\nx"\n', "in line 3"),
        ('"a"x\n', "in line 1"),
        ('"a\nb"x', "line 2"),
    ],
)
def test_the_line_is_named(text, line):
    assert line in problem([text.encode()])
