"""Appends of several threads that wait for one log at the same time, as a scenario of the sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from faults.faulty_storage import Crash
from faults.history import Batch, Told
from faults.scenarios import LARGE, Run, Scenario
from faults.turns import in_turns
from streamhouse_spark import CommitStateUnknownError, StorageError, Transaction, TransactionConflictError
from streamhouse_spark.log import record
from streamhouse_spark.log.record import read_record


def appends(run: Run, batches: list[Batch], **turns: Any) -> list[Any]:
    """Append the batches at the same time; each has its own answer, which the run's history notes."""
    table = run.open()
    calls = [lambda batch=batch: run.history.append(table, batch) for batch in batches]
    answers = in_turns(calls, **turns)
    for batch, answer in zip(batches, answers, strict=True):
        told = run.history.batches[batch.number].told
        assert not isinstance(answer, AssertionError), answer
        assert isinstance(answer, BaseException) == (told is not Told.ACKNOWLEDGED) or batch.transaction, answer
    return answers


class AppendTogether(Scenario):
    """Three new batches wait together with one that is refused and one that is stored already."""

    name = "append together"
    row_chars = 4
    order: tuple[int, ...] = (0, 1, 2, 3, 4)
    expected: tuple[type[Exception], ...] = (StorageError, CommitStateUnknownError)
    """The errors that any of them may be told."""

    def setup(self, run: Run) -> None:
        super().setup(run)
        history = run.history
        known = run.append(transaction=Transaction("known", 3, "query"))
        self.batches = [
            history.new_batch(3, row_chars=self.row_chars),
            history.new_batch(2, transaction=Transaction("known", 4, "another")),
            history.new_batch(4, transaction=Transaction("new", 0), row_chars=self.row_chars),
            known,
            history.new_batch(1),
        ]

    def work(self, run: Run) -> None:
        answers = appends(run, self.batches, order=self.order)
        if any(isinstance(answer, Crash) for answer in answers):
            raise next(answer for answer in answers if isinstance(answer, Crash))
        for number, answer in enumerate(answers):
            refused = (TransactionConflictError,) if number == 1 else ()
            assert not isinstance(answer, Exception) or isinstance(answer, (*refused, *self.expected)), answer
        assert isinstance(answers[1], Exception), answers[1]

    def recover(self, run: Run) -> None:
        for batch in (self.batches[2], self.batches[3]):
            run.history.append(run.open(), batch)
        run.append()


class AppendTogetherObjects(AppendTogether):
    name = "append together, objects"
    row_chars = LARGE

    @contextmanager
    def limits(self) -> Iterator[None]:
        with mock.patch.object(record, "RECORD_BYTES_MAX", 200):
            yield


def num_attempts(run: Run) -> list[int]:
    """Return the number of attempts of each record of the table but the first."""
    table = run.open()
    records = (read_record(run.memory, table.uuid, n + 1)[0] for n in range(1, table.refresh().version))
    return [len(found.attempts) for found in records]


def the_same_transaction_twice() -> Run:
    """A driver that was thought dead sends its batch again while the first is on its way."""
    run = Run()
    run.create()
    run.append()
    batch = run.history.new_batch(3, transaction=Transaction("app", 1, "query"))
    first, again, _ = appends(run, [batch, batch, run.history.new_batch(2)])
    run.check()
    assert first == again
    return run
