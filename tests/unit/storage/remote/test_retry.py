"""How long requests are sent again, by setting."""

from __future__ import annotations

import pickle

import pytest

from faults.sim import SimClock, SimIds
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.storage.remote.retry import PATIENCE_SETTING, USUAL, FailureKind, RetryPolicy, send_with_retries

URLS = ["s3://bucket/wh", "gs://bucket/wh", "abfss://box@account.dfs.core.windows.net/wh", "hdfs://host/wh"]


class Away(Exception):  # noqa: N818
    """The store does not answer."""


def seconds_until_the_answer(patience: RetryPolicy, kind: FailureKind, away_seconds: float, **options: bool) -> float:
    """Return the time until a request is answered. Raises `Away` where it is given up before."""
    clock = SimClock()
    begin_ms = clock.boot_ms()

    def request() -> None:
        if clock.boot_ms() < begin_ms + away_seconds * 1000:
            raise Away

    send_with_retries(request, World(clock, SimIds(1)), (Away,), lambda _: kind, patience=patience, **options)
    return (clock.boot_ms() - begin_ms) / 1000


@pytest.mark.parametrize("kind", [FailureKind.THROTTLED, FailureKind.TRANSIENT])
@pytest.mark.parametrize("retry_unknown_outcome", [True, False])
def test_a_store_that_is_away_for_a_minute_is_waited_for_by_setting(kind, retry_unknown_outcome):
    patience = RetryPolicy.parse({PATIENCE_SETTING: "120"})
    took = seconds_until_the_answer(patience, kind, 60, retry_unknown_outcome=retry_unknown_outcome)
    assert 60 <= took <= 66


def test_without_the_setting_a_store_that_is_away_is_said_to_be_soon():
    with pytest.raises(Away):
        seconds_until_the_answer(USUAL, FailureKind.TRANSIENT, 10)
    with pytest.raises(Away):
        seconds_until_the_answer(USUAL, FailureKind.TRANSIENT, 0.01, retry_unknown_outcome=False)
    assert seconds_until_the_answer(USUAL, FailureKind.THROTTLED, 50) >= 50


@pytest.mark.parametrize("kind", [FailureKind.THROTTLED, FailureKind.TRANSIENT])
def test_a_patience_of_zero_fails_at_once(kind):
    with pytest.raises(Away):
        seconds_until_the_answer(RetryPolicy.parse({PATIENCE_SETTING: "0"}), kind, 0.001)


def test_a_patience_of_hours_is_kept():
    patience = RetryPolicy.parse({PATIENCE_SETTING: "36000"})
    assert seconds_until_the_answer(patience, FailureKind.TRANSIENT, 35_000) < 35_006


@pytest.mark.parametrize("url", URLS)
def test_each_store_has_the_setting(url):
    with pytest.raises(InvalidOptionError, match=r"storage.patience-seconds: found 'long', expected a number"):
        open_storage(url, {PATIENCE_SETTING: "long"})
    for text in ("-1", "inf", "nan"):
        with pytest.raises(InvalidOptionError, match="at least 0"):
            open_storage(url, {PATIENCE_SETTING: text})
    made = open_storage(url, {PATIENCE_SETTING: "5"})
    again = pickle.loads(pickle.dumps(made))
    for one in (made, again):
        found = one._patience
        assert found == RetryPolicy(5_000, waits_for_answers=True)
