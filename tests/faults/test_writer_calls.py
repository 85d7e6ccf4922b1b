"""A writer's every storage call meets every fault, and its producer restarts: nothing lost, nothing twice, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from faults.faulty_storage import WRITES, Fault, FaultyStorage
from faults.producing import (
    SENDS,
    Process,
    check_answers,
    check_whole,
    new_store,
    one_life,
    restarted,
    survive,
    unknown_at,
)
from streamhouse_spark import BucketOffsets, Transaction
from streamhouse_spark.errors import (
    CommitStateUnknownError,
    ProducerFencedError,
    StorageError,
    StorageRefusedError,
    WriterStoppedError,
)
from streamhouse_spark.write.producer import sender
from streamhouse_spark.write.producer.accumulator import PendingSend, RecordAccumulator
from streamhouse_spark.write.producer.sender import BatchSender, Producer
from streamhouse_spark.write.producer.writer import SenderThread


def calls(methods: frozenset[str] | None = None) -> list[int]:
    probe = FaultyStorage(new_store())
    one_life(probe)
    return [number for number, method, _ in probe.trace if methods is None or method in methods]


@pytest.mark.parametrize("fault", list(Fault))
def test_a_producer_survives_every_fault_at_every_call(fault):
    numbers = calls()
    assert len(numbers) > 10
    for number in numbers:
        assert survive({number: fault}).faults_fired


def test_a_batch_of_unknown_outcome_is_repeated_until_it_is_known():
    for number in calls(WRITES):
        survive(unknown_at(number))


def test_all_sends_are_answered_although_a_batch_was_of_unknown_outcome():
    commit = calls(WRITES)[1]  # the first is that of the epoch
    storage = FaultyStorage(new_store(), unknown_at(commit))
    process = Process(storage, 2, sends_each=2)
    with mock.patch.object(CommitStateUnknownError, "__init__", autospec=True, side_effect=_init) as told:
        process.run()
    assert told.called
    assert len(process.acknowledged()) == SENDS
    check_answers(storage.inner, process.acknowledged())
    check_whole(storage.inner)


_made = CommitStateUnknownError.__init__


def _init(self: CommitStateUnknownError, message: str, **given: str) -> None:
    _made(self, message, **given)


def two_lives_at_once() -> None:
    """The older producer still has rows to write when the newer one takes the id, and the newer one sends fewer."""
    store = new_store()
    old = Process(store, 2, sends_each=4)
    for sequence in range(4):
        old.send(sequence)
    new = Process(store, 3, sends_each=2)
    assert new.writer.last_sequence is None
    new.run(end=2)
    old.deliver()
    restarted(store)
    for sequence in range(4):
        with pytest.raises(ProducerFencedError):
            old.answers[sequence].result()
    with pytest.raises(WriterStoppedError):
        old.send(4)


def an_older_life_that_repeats_what_is_stored() -> None:
    """Its version is at or below the stored one: that says nothing about its own rows."""
    store = new_store()
    old = Process(store, 2, sends_each=2)
    old.send(0)
    Process(store, 3, sends_each=2).run(end=3)
    old.deliver()
    with pytest.raises(ProducerFencedError):
        old.answers[0].result()


def a_refused_batch() -> None:
    """The store refuses one batch for good, and not the next: the rows behind it wait for the next life."""
    store = new_store()
    process = Process(store, 2, sends_each=2)
    append = process.flusher.sender._log_writer.append
    outcomes = iter([None, StorageRefusedError("no right to write there"), None])

    def sometimes(*given, **named):
        if (error := next(outcomes, None)) is not None:
            raise error
        return append(*given, **named)

    with mock.patch.object(process.flusher.sender._log_writer, "append", sometimes):
        process.run()
    check_answers(store, process.acknowledged())
    restarted(store)
    assert list(process.acknowledged()) == [0, 1]
    with pytest.raises(StorageRefusedError):
        process.answers[2].result()
    with pytest.raises(WriterStoppedError, match="no right to write there"):
        process.answers[4].result()


def every_crash() -> None:
    for number in calls(WRITES):
        survive({number: Fault.CRASH_BEFORE})


def every_unknown_outcome() -> None:
    for number in calls(WRITES):
        survive(unknown_at(number))


def batches_of_three() -> None:
    store = new_store()
    process = Process(store, 2, sends_each=3)
    process.run()
    assert len(process.acknowledged()) == SENDS
    check_answers(store, process.acknowledged())
    check_whole(store)


@pytest.mark.parametrize(
    "story", [batches_of_three, two_lives_at_once, an_older_life_that_repeats_what_is_stored, a_refused_batch]
)
def test_every_acknowledged_row_of_a_writer_is_stored_once(story):
    story()


def test_without_a_producer_an_unknown_outcome_is_told_and_not_repeated():
    store = new_store()
    process = Process(store, 2, sends_each=1, producer_id=None)
    answers = [process.writer.send([{"id": n}]) for n in range(3)]
    append = process.flusher.sender._log_writer.append
    outcomes = iter([CommitStateUnknownError("who knows"), StorageError("not there"), None, None])

    def sometimes(*given, **named):
        if (error := next(outcomes)) is not None:
            raise error
        return append(*given, **named)

    with mock.patch.object(process.flusher.sender._log_writer, "append", sometimes):
        process.deliver()
    with pytest.raises(CommitStateUnknownError, match="who knows"):
        answers[0].result()
    assert [answer.result().num_rows for answer in answers[1:]] == [1, 1]
    with pytest.raises(CommitStateUnknownError, match="who knows"):
        process.writer.flush()
    process.writer.flush()


def test_a_store_that_stays_away_is_told_after_the_timeout():
    storage = FaultyStorage(new_store())
    process = Process(storage, 2, sends_each=2)
    storage._plan = lambda _number, method, _key: Fault.ERROR_BEFORE if method in WRITES else None
    process.run()
    with pytest.raises((StorageError, CommitStateUnknownError)):
        process.answers[0].result()
    storage._plan = {}
    restarted(storage.inner)


# -- planted bugs: each takes one decision away, and one of the stories above finds it --------------------------------


@contextmanager
def an_answer_before_durability() -> Iterator[None]:
    def step(self: SenderThread, *, is_waiting: bool = False) -> bool:
        batch = self.accumulator.next_batch(is_waiting=is_waiting)
        for send in batch:
            send.answer.set_result(BucketOffsets({}))
        if batch:
            self.sender.deliver(batch)
            self.accumulator.complete(batch)
        return bool(batch)

    with mock.patch.object(SenderThread, "step", step):
        yield


@contextmanager
def a_batch_is_repeated_under_another_transaction() -> Iterator[None]:
    def appended(self: BatchSender, rows, nums_rows, sequence):
        for attempt in range(10):
            transaction = Transaction(self.producer.producer_id, sequence * 10 + attempt)
            try:
                offsets = self._log_writer.append(rows, transaction, require=self.producer.require_newest)
                return self._count_rows_of_calls(rows, nums_rows), offsets
            except StorageError:
                continue
            except CommitStateUnknownError:
                continue
        raise AssertionError

    with mock.patch.object(BatchSender, "_write_with_retries", appended):
        yield


@contextmanager
def rows_leave_in_another_order() -> Iterator[None]:
    original = RecordAccumulator._take_batch

    def batch(self: RecordAccumulator, *, mixes_deletions: bool) -> list[PendingSend]:
        first, *others = original(self, mixes_deletions=mixes_deletions)
        return [*others[:-1], first, *others[-1:]]

    with mock.patch.object(RecordAccumulator, "_take_batch", batch):
        yield


@contextmanager
def answers_are_swapped() -> Iterator[None]:
    original = sender._split_offsets
    with mock.patch.object(sender, "_split_offsets", lambda *given: original(*given)[::-1]):
        yield


@contextmanager
def nobody_looks_whose_epoch_it_is() -> Iterator[None]:
    with mock.patch.object(Producer, "require_newest", return_value=None):
        yield


@contextmanager
def rows_behind_a_failure_are_written() -> Iterator[None]:
    def fail(self: SenderThread, batch: list[PendingSend], error: Exception) -> None:
        for send in batch:
            send.answer.set_exception(error)
        self.accumulator.complete(batch, error)

    with mock.patch.object(SenderThread, "_fail", fail):
        yield


@pytest.mark.parametrize(
    ("bug", "story"),
    [
        (an_answer_before_durability, every_crash),
        (a_batch_is_repeated_under_another_transaction, every_unknown_outcome),
        (rows_leave_in_another_order, batches_of_three),
        (answers_are_swapped, batches_of_three),
        (nobody_looks_whose_epoch_it_is, two_lives_at_once),
        (nobody_looks_whose_epoch_it_is, an_older_life_that_repeats_what_is_stored),
        (rows_behind_a_failure_are_written, a_refused_batch),
    ],
)
def test_a_planted_bug_is_found(bug: Callable[[], object], story: Callable[[], None]):
    story()
    with bug(), pytest.raises((AssertionError, pytest.fail.Exception)):
        story()
