"""Every error has a kind, a condition, one line of text; and it survives pickling."""

from __future__ import annotations

import pickle

import pytest

from streamhouse_spark import ErrorKind, StreamhouseError, errors

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, StreamhouseError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_error_is_one_line_with_its_condition_first(cls):
    error = cls("what\nhappened\r\nwhere\x0band\u2028what to do")
    assert str(error) == f"{error.condition}: what happened where and what to do"
    assert error.condition.isupper()
    assert isinstance(error.kind, ErrorKind)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_error_survives_pickling(cls):
    error = cls("something", condition="ITS_OWN")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert (str(again), again.condition, again.kind) == ("ITS_OWN: something", "ITS_OWN", cls.kind)
    twice = pickle.loads(pickle.dumps(again))
    assert str(twice) == str(error)


def test_only_the_base_is_internal():
    assert [c.__name__ for c in CLASSES if c.kind is ErrorKind.INTERNAL] == ["StreamhouseError"]


def test_the_condition_is_the_class_in_capitals():
    assert errors.CommitStateUnknownError("x").condition == "COMMIT_STATE_UNKNOWN"
    assert errors.TableNotFoundError("x").condition == "TABLE_NOT_FOUND"


def test_a_message_with_the_condition_is_not_prefixed_again():
    assert str(errors.StorageError("STORAGE: full")) == "STORAGE: full"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "row", "1 row"),
        (0, "row", "0 rows"),
        (2000, "row", "2,000 rows"),
        (2, "query", "2 queries"),
        (2, "day", "2 days"),
        (3, "micro-batch", "3 micro-batches"),
        (1, "lake snapshot", "1 lake snapshot"),
    ],
)
def test_a_count_has_its_noun_in_singular_or_plural(number, noun, text):
    assert errors.count_of(number, noun) == text
