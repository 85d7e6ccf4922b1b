"""Calls that all wait for one log, and get it in an order that a test says: one thread runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest import mock

from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.group_commit import CommitResult, PendingCommit

SECONDS_MAX = 120


def in_turns(
    calls: Sequence[Callable[[], Any]],
    *,
    order: Iterable[int] | None = None,
    when_all_wait: Callable[[], object] = lambda: None,
) -> list[Any]:
    """Let all ``calls`` come to where they wait for the log, in this order, then give it to one after another.

    Returns what each returned or raised. The first to have the log finds the others waiting. No two threads run at the
    same time, so each run is like the other.
    """
    answers: list[Any] = [None] * len(calls)
    waits = [threading.Event() for _ in calls]
    turns = [threading.Event() for _ in calls]
    own = threading.local()
    answer = CommitLog._wait_or_lead

    def in_turn(log: CommitLog, call: PendingCommit) -> CommitResult:
        number, own.number = getattr(own, "number", None), None
        if number is not None:
            waits[number].set()
            assert turns[number].wait(SECONDS_MAX)
        return answer(log, call)

    def run(number: int) -> None:
        own.number = number
        try:
            answers[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001 - told to the test
            answers[number] = error
        finally:
            waits[number].set()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    with mock.patch.object(CommitLog, "_wait_or_lead", in_turn):
        for thread, waiting in zip(threads, waits, strict=True):
            thread.start()
            assert waiting.wait(SECONDS_MAX)
        when_all_wait()
        for number in range(len(calls)) if order is None else order:
            turns[number].set()
            threads[number].join()
    return answers
