"""A model of the commit protocol, explored exhaustively: two writers, a cleaner, and a store that may answer wrongly.

The model has the steps of docs/internals/commit-protocol.md and nothing else: put, read back, read forward,
compare with the low watermark, decide. Every interleaving is visited, so a writer may sleep between any two steps for
as long as it takes to raise the watermark and to delete records. A put may be applied and acknowledged, applied and
reported as an error, not applied, or applied later. Each rule is then left out once, and a violated invariant must be
found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import pytest

RECORDS_MAX = 4
OTHERS_MAX = 3
"""Records up to which other processes commit."""
TRIES_MAX = 1


class Rule(Enum):
    WATERMARK_AFTER_READ = "what was read counts only if the low watermark permits it"
    WATERMARK_AFTER_WIN = "a record above which the low watermark was raised is compared with its successor"
    UNKNOWN_AFTER_FAILURE = "a writer with a failed put never reports that nothing was written"
    UNKNOWN_AFTER_VOID_RACE = "a race that was lost below the low watermark has an unknown outcome"
    WATERMARK_FIRST = "records are deleted only below a low watermark"


class Step(Enum):
    READ = "read the next record"
    CHECK = "compare with the low watermark"
    PUT = "put the next record if absent"
    READ_BACK = "read the number back"
    WON = "confirm the own record"


class Result(Enum):
    COMMITTED = "committed"
    NOTHING_WRITTEN = "nothing was written"
    UNKNOWN = "the outcome is unknown"


@dataclass(frozen=True, slots=True)
class Record:
    attempt: str
    after: str


@dataclass(frozen=True, slots=True)
class Writer:
    attempt: str
    step: Step = Step.READ
    version: int = 0
    """The number of the last record that was read."""
    last: str = ""
    """The attempt of that record."""
    checked: int = 0
    """The number of the last record that was read when the low watermark was last compared."""
    has_landed: bool = False
    """Whether the own record was met while reading forward."""
    num_failures: int = 0
    num_conflicts: int = 0
    has_unchecked_race: bool = False
    """Whether another writer's record was read back, and not yet compared with the low watermark."""
    result: Result | None = None


@dataclass(frozen=True, slots=True)
class World:
    history: tuple[Record, ...]
    """Every record of the log, deleted ones too."""
    num_deleted: int = 0
    watermark: int = 1
    """Records below this number are void."""
    void: tuple[tuple[int, Record], ...] = ()
    """Records that filled the number of a deleted one."""
    delayed: tuple[tuple[int, Record], ...] = ()
    """Puts that were reported as failed and are applied later, or never."""
    writers: tuple[Writer, ...] = (Writer("a"), Writer("b"))

    def stored(self, number: int) -> Record | None:
        if number <= self.num_deleted:
            return dict(self.void).get(number)
        return self.history[number - 1] if number <= len(self.history) else None

    def put(self, number: int, record: Record) -> World:
        """Put a record if its number is free."""
        if self.stored(number) is not None:
            return self
        if number <= self.num_deleted:
            return replace(self, void=(*self.void, (number, record)))
        assert number == len(self.history) + 1, "a hole in the log"
        return replace(self, history=(*self.history, record))

    def with_writer(self, index: int, **changes: object) -> World:
        writers = list(self.writers)
        writers[index] = replace(writers[index], **changes)  # type: ignore[arg-type]
        return replace(self, writers=tuple(writers))


def next_worlds(world: World, left_out: Rule | None) -> Iterator[World]:
    for index, writer in enumerate(world.writers):
        if writer.result is None:
            yield from writer_steps(world, index, writer, left_out)
    for number, record in world.delayed:
        rest = tuple(entry for entry in world.delayed if entry != (number, record))
        yield replace(world.put(number, record), delayed=rest)
    if len(world.history) < OTHERS_MAX:
        yield replace(world, history=(*world.history, Record("other", world.history[-1].attempt)))
    if world.watermark <= len(world.history) - 1:  # the last record is never deleted
        yield replace(world, watermark=world.watermark + 1)
    deletable = world.watermark - 1 if left_out is not Rule.WATERMARK_FIRST else len(world.history) - 1
    if world.num_deleted < deletable:
        yield replace(world, num_deleted=world.num_deleted + 1)


def writer_steps(world: World, index: int, writer: Writer, left_out: Rule | None) -> Iterator[World]:
    match writer.step:
        case Step.READ:
            yield read_on(world, index, writer)
        case Step.CHECK:
            yield from check(world, index, writer, left_out)
        case Step.PUT:
            yield from put(world, index, writer, left_out)
        case Step.READ_BACK:
            yield from read_back(world, index, writer)
        case Step.WON:
            yield from confirm(world, index, writer, left_out)


def read_on(world: World, index: int, writer: Writer) -> World:
    stored = world.stored(writer.version + 1)
    if stored is None:
        return world.with_writer(index, step=Step.CHECK)
    has_landed = writer.has_landed or stored.attempt == writer.attempt
    return world.with_writer(index, version=writer.version + 1, last=stored.attempt, has_landed=has_landed)


def check(world: World, index: int, writer: Writer, left_out: Rule | None) -> Iterator[World]:
    if world.watermark > writer.checked + 1 and left_out is not Rule.WATERMARK_AFTER_READ:
        yield from reopen(world, index, writer, left_out)
    elif writer.has_landed:
        yield world.with_writer(index, result=Result.COMMITTED)
    else:
        yield world.with_writer(index, step=Step.PUT, has_unchecked_race=False, checked=writer.version)


def put(world: World, index: int, writer: Writer, left_out: Rule | None) -> Iterator[World]:
    number, record = writer.version + 1, Record(writer.attempt, writer.last)
    if number > RECORDS_MAX or writer.num_failures + writer.num_conflicts > TRIES_MAX:
        is_sure = not writer.num_failures or left_out is Rule.UNKNOWN_AFTER_FAILURE
        yield world.with_writer(index, result=Result.NOTHING_WRITTEN if is_sure else Result.UNKNOWN)
        return
    applied = world.put(number, record)
    if applied is not world:
        yield applied.with_writer(index, step=Step.WON)  # acknowledged
    # All errors are alike, and so is "exists": a client that retries reports it for its own record.
    yield applied.with_writer(index, step=Step.READ_BACK)
    yield world.with_writer(index, step=Step.READ_BACK)
    if (number, record) not in world.delayed:
        delayed = replace(world, delayed=(*world.delayed, (number, record)))
        yield delayed.with_writer(index, step=Step.READ_BACK)


def read_back(world: World, index: int, writer: Writer) -> Iterator[World]:
    stored = world.stored(writer.version + 1)
    yield world.with_writer(index, result=Result.UNKNOWN)  # the store does not answer
    if stored is None:
        yield world.with_writer(index, step=Step.PUT, num_failures=writer.num_failures + 1)
    elif stored.attempt == writer.attempt:
        yield world.with_writer(index, step=Step.WON)
    else:
        conflicts = writer.num_conflicts + 1
        yield world.with_writer(index, step=Step.READ, num_conflicts=conflicts, has_unchecked_race=True)


def confirm(world: World, index: int, writer: Writer, left_out: Rule | None) -> Iterator[World]:
    number = writer.version + 1
    following = world.stored(number + 1)
    if world.watermark <= number or left_out is Rule.WATERMARK_AFTER_WIN:
        yield world.with_writer(index, result=Result.COMMITTED)
    elif following is None:
        yield world.with_writer(index, result=Result.UNKNOWN)
    elif following.after == writer.attempt:
        yield world.with_writer(index, result=Result.COMMITTED)
    else:  # the own record is void: its rows are written by a new attempt
        yield from reopen(world.with_writer(index, attempt=f"{writer.attempt}'"), index, writer, left_out)


def reopen(world: World, index: int, writer: Writer, left_out: Rule | None) -> Iterator[World]:
    """Start again at a checkpoint at or above the low watermark. An attempt that may be among records that were deleted
    unread has an unknown outcome. So has one that lost a race below the watermark: the record that was read back may be
    a void one in the place of its own.
    """
    is_unchecked = writer.has_unchecked_race and left_out is not Rule.UNKNOWN_AFTER_VOID_RACE
    if writer.num_failures or writer.has_landed or is_unchecked:
        yield world.with_writer(index, result=Result.UNKNOWN)
        return
    for version in range(world.watermark, len(world.history) + 1):
        last = world.history[version - 1].attempt
        yield world.with_writer(index, step=Step.READ, version=version, last=last, checked=version)


def violation(world: World) -> str | None:
    attempts = [record.attempt for record in world.history]
    if any(record.after != attempts[n - 1] for n, record in enumerate(world.history) if n):
        return "a record follows another one than the one before it"
    for writer in world.writers:
        count = sum(attempt.rstrip("'") == writer.attempt.rstrip("'") for attempt in attempts)
        if count > 1:
            return "rows are stored twice"
        if writer.result is Result.COMMITTED and count == 0:
            return "acknowledged rows are missing"
        if writer.result is Result.NOTHING_WRITTEN and count:
            return "rows are stored although nothing was written"
    return None


def explore(left_out: Rule | None = None) -> tuple[int, str | None]:
    """Return the number of states visited, and the first violated invariant."""
    start = World((Record("created", ""),))
    seen, waiting = {start}, deque([start])
    while waiting:
        world = waiting.popleft()
        try:
            following = list(next_worlds(world, left_out))
        except AssertionError as error:
            return len(seen), str(error)
        for after in following:
            if after not in seen:
                if (text := violation(after)) is not None:
                    return len(seen), text
                seen.add(after)
                waiting.append(after)
    return len(seen), None


def test_no_interleaving_violates_an_invariant():
    num_states, text = explore()
    assert text is None
    assert num_states > 10_000


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_is_necessary(rule):
    assert explore(rule)[1] is not None
