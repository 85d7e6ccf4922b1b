"""The queue of a writer: when a batch is due, what is in it, and what an interrupt at any line leaves."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from streamhouse_spark import InvalidOptionError, WriterFullError, WriterStoppedError
from streamhouse_spark.write.producer.accumulator import COLUMN_BYTES, SEND_BYTES, BatchLimits, RecordAccumulator

ONE_BYTES = SEND_BYTES + COLUMN_BYTES + 8


def one(value: int = 1, name: str = "id") -> pa.Table:
    return pa.table({name: pa.array([value], pa.int64())})


def outbox(
    clock, *, flush_ms=10, flush_bytes=3 * ONE_BYTES, in_flight_bytes_max=6 * ONE_BYTES, stored=None
) -> RecordAccumulator:
    return RecordAccumulator(clock, "sales.events", BatchLimits(flush_ms, flush_bytes, in_flight_bytes_max), stored)


def put(box, rows=None, sequence=None, *, is_numbered=False, timeout_ms=0):
    given = one() if rows is None else rows
    return box.put(given, given.nbytes, sequence, is_numbered=is_numbered, timeout_ms=timeout_ms)


def taken(box) -> list[int]:
    batch = box.next_batch(is_waiting=False)
    box.complete(batch)
    return [send.rows.column(0)[0].as_py() for send in batch]


def test_a_batch_is_due_when_its_first_rows_have_waited(clock):
    box = outbox(clock)
    assert box._wait_ms() is None
    put(box, one(1))
    clock.advance(6)
    put(box, one(2))
    assert box._wait_ms() == 4
    assert taken(box) == []
    clock.advance(4)
    assert taken(box) == [1, 2]
    assert box._wait_ms() is None


def test_a_batch_is_due_when_it_is_full_and_no_larger(clock):
    box = outbox(clock)
    for value in range(5):
        put(box, one(value))
    assert taken(box) == [0, 1, 2]
    assert taken(box) == []
    box.end()
    assert taken(box) == [3, 4]
    assert box._wait_ms() == 0
    assert box.next_batch() == []


def test_rows_that_are_more_than_a_batch_go_alone(clock):
    box = outbox(clock, in_flight_bytes_max=1 << 20)
    put(box, one(1))
    put(box, pa.table({"id": pa.array(range(2000), pa.int64())}))
    put(box, one(3))
    box.end()
    assert [taken(box), taken(box), taken(box)] == [[1], [0], [3]]


def test_a_batch_ends_where_the_columns_change(clock):
    box = outbox(clock)
    for value, name in enumerate(["id", "id", "n", "id"]):
        put(box, one(value, name))
    box.end()
    assert [taken(box), taken(box), taken(box)] == [[0, 1], [2], [3]]


@pytest.mark.parametrize(("both", "batches"), [(True, [[1, 2, 3], [4, 5]]), (False, [[1], [2], [3], [4], [5]])])
def test_rows_and_deletions_go_together_where_the_table_takes_both(clock, both, batches):
    box = RecordAccumulator(clock, "sales.events", BatchLimits(0, 1 << 20, 1 << 30), None, lambda: both)
    for value, name, is_deletion in [
        (1, "id", False),
        (2, "id", True),
        (3, "id", False),
        (4, "n", False),
        (5, "id", True),
    ]:
        box.put(one(value, name), 8, None, is_numbered=False, timeout_ms=0, is_deletion=is_deletion)
    box.end()
    assert [taken(box) for _ in batches] == batches
    assert taken(box) == []


def test_what_is_being_written_counts_as_in_flight(clock):
    box = outbox(clock)
    for _ in range(6):
        put(box)
    batch = box.next_batch(is_waiting=False)
    with pytest.raises(WriterFullError):
        put(box)
    box.complete(batch)
    put(box)


def test_rows_that_are_more_than_all_room_wait_until_it_is_empty(clock):
    box = outbox(clock, in_flight_bytes_max=1)
    put(box, one(1))
    with pytest.raises(WriterFullError):
        put(box, one(2))
    box.end()
    assert taken(box) == [1]


def test_sequences_follow_the_stored_one_and_what_was_taken(clock):
    box = outbox(clock, stored=4, flush_ms=0)
    put(box, is_numbered=True)
    put(box, sequence=9, is_numbered=True)
    with pytest.raises(InvalidOptionError, match="9"):
        put(box, sequence=9, is_numbered=True)
    assert [send.sequence for send in box.next_batch()] == [5, 9]
    box.complete(box.next_batch())
    put(box, is_numbered=True)
    assert [send.sequence for send in box.next_batch()] == [10]


def test_stopping_refuses_rows_for_its_reason(clock):
    box = outbox(clock)
    put(box)
    left = box.stop("why")
    with pytest.raises(WriterStoppedError, match="why"):
        put(box)
    box.complete(left, ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        box.flush()
    box.flush()


def interrupted_at(line: int, call) -> bool:
    """Run a call, with a KeyboardInterrupt before its line of that number. Returns whether there was such a line."""
    met = 0

    def trace(frame, event, _):
        nonlocal met
        if not frame.f_code.co_filename.endswith("accumulator.py"):
            return None
        if event == "line":
            met += 1
            if met == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_line_leaves_the_rows_in_or_out(clock):
    line, outcomes = 1, set()
    while True:
        box = outbox(clock, flush_ms=0, flush_bytes=1 << 20)
        put(box, one(1), is_numbered=True)
        was_there = interrupted_at(line, lambda box=box: put(box, one(2), is_numbered=True))
        put(box, one(3), is_numbered=True)
        batch = box.next_batch(is_waiting=False)
        values = [send.rows.column(0)[0].as_py() for send in batch]
        assert values in ([1, 3], [1, 2, 3])
        assert [send.sequence for send in batch] == list(range(len(values)))
        box.complete(batch)
        assert box._end_bytes == box._done_bytes
        box.flush()
        if not was_there:
            break
        outcomes.add(len(values))
        line += 1
    assert outcomes == {2, 3}
