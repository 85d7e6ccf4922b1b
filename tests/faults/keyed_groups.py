"""Tables with a primary key that several threads write at the same time, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from unittest import mock

from faults.turns import in_turns
from streamhouse_spark import StorageError, StreamhouseError, Table, Transaction, Warehouse
from streamhouse_spark.errors import StorageRefusedError
from streamhouse_spark.log.group_commit import CommitQueue, PendingCommit
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.storage.memory import MemoryStorage

KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "last_row": {},
    "wal": {"table.changelog.image": "wal"},
    "first_row": {"table.merge-engine": "first_row"},
    "versioned": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "n"},
    "aggregation": {"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
}
Call = tuple[str, Sequence[Mapping[str, Any]]]
"""``upsert``, ``delete``, or the column of a partial update; and the rows."""


def made_table(kind: str, name: str, buckets: int = 1) -> Table:
    warehouse = Warehouse(name, storage=MemoryStorage())
    return warehouse.create_table(
        "d.t", "id BIGINT, name STRING, n BIGINT", primary_key=["id"], buckets=buckets, properties=dict(KINDS[kind])
    )


def called(table: Table, call: Call, transaction: Transaction | None) -> Any:
    what, rows = call
    if what == "delete":
        return table.delete([row["id"] for row in rows], transaction=transaction)
    if what == "upsert":
        return table.upsert(list(rows), transaction=transaction)
    return table.upsert(
        [{"id": row["id"], what: row[what]} for row in rows], columns=["id", what], transaction=transaction
    )


def together(table: Table, calls: Sequence[Call], number: int, **turns: Any) -> list[Any]:
    """Make all calls at the same time, each with a transaction that names its place."""
    return in_turns(
        [lambda at=at, c=c: called(table, c, Transaction(f"call {at}", number)) for at, c in enumerate(calls)], **turns
    )


def alone(table: Table, call: Call, number: int, at: int) -> Any:
    try:
        return called(table, call, Transaction(f"call {at}", number))
    except StreamhouseError as error:
        return error


def attempts_since(table: Table, version: int) -> list[int]:
    """Return the places of the calls in the order of the log."""
    found = []
    for number in range(version + 1, table.refresh().version + 1):
        record, _ = read_record(table.storage, table.uuid, number)
        found += [int(a.transaction.app_id.split()[1]) for a in record.attempts if a.transaction is not None]
    return found


def num_attempts(table: Table, number: int) -> int:
    return len(read_record(table.storage, table.uuid, number)[0].attempts)


def changelog(table: Table) -> list[tuple[Any, ...]]:
    """Return bucket, offset, kind of change and row of each change."""
    state, found = table.refresh(), []
    for bucket, log in state.buckets.items():
        split = plan_range(state, bucket, log.offsets)
        for part in read_split(table.storage, split, state.written_schema(state.schema_id)):
            rows = zip(*(column.to_pylist() for column in part.batch.columns), strict=True)
            found += [(bucket, part.base_offset + place, *row) for place, row in enumerate(rows)]
    return found


def current_rows(table: Table) -> list[Mapping[str, Any]]:
    """Return the rows by the tablets of this host, found by their keys."""
    keys = sorted({change[3] for change in changelog(table)})
    found: list[Mapping[str, Any]] = table.lookup(keys, max_staleness_ms=0).to_pylist() if keys else []
    return found


def changes_and_rows(table: Table) -> tuple[list[Any], list[Any]]:
    return changelog(table), current_rows(table)


# -- histories that find planted bugs ---------------------------------------------------------------------------------


def upsert(number: int) -> Call:
    return "upsert", [{"id": 1, "name": "a", "n": number}, {"id": number, "name": "b", "n": 0}]


def check_same_as_alone(table: Table, calls: Sequence[Call], order: Sequence[int]) -> None:
    """Check that the table holds what the ``calls``, made alone in this ``order``, leave behind the first row."""
    for found, right in zip(changes_and_rows(table), changes_and_rows_alone(calls, order), strict=True):
        assert found == right, f"found {found}, expected {right}"


def changes_and_rows_alone(calls: Sequence[Call], order: Sequence[int]) -> tuple[list[Any], list[Any]]:
    expected = started("expected")
    for at in order:
        alone(expected, calls[at], 1, at)
    return changes_and_rows(expected)


def started(name: str) -> Table:
    table = made_table("last_row", name)
    table.upsert([{"id": 1, "name": "first", "n": 0}])
    return table


def writes_together() -> None:
    calls = [upsert(2), upsert(3), ("delete", [{"id": 1}]), ("n", [{"id": 3, "n": 9}])]
    table = started("together")
    answers = together(table, calls, 1)
    assert num_attempts(table, table.refresh().version) == len(calls)
    check_same_as_alone(table, calls, range(len(calls)))
    ranges = [answer[0] for answer in answers]
    assert [r.start for r in ranges[1:]] == [r.end for r in ranges[:-1]], ranges


def the_same_transaction_twice() -> None:
    table = started("twice")
    again = Transaction("app", 1)
    calls = [upsert(2), upsert(3), upsert(3)]
    transactions = [None, again, again]
    answers = in_turns([lambda c=c, t=t: called(table, c, t) for c, t in zip(calls, transactions, strict=True)])
    assert answers[1] == answers[2], answers
    check_same_as_alone(table, calls, [0, 1])


def a_refused_write_among_others() -> None:
    table = started("refused")
    calls = [upsert(2), upsert(4), upsert(3)]
    table.upsert([{"id": 1, "name": "first", "n": 0}], transaction=Transaction("mine", 1, "another"))
    owners = [None, Transaction("mine", 2, "query"), None]
    answers = in_turns([lambda c=c, t=t: called(table, c, t) for c, t in zip(calls, owners, strict=True)])
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds == ["BucketOffsets", "TransactionConflictError", "BucketOffsets"], kinds
    check_same_as_alone(table, calls, [0, 2])


def other_neighbours_behind_a_refusal() -> None:
    """The store refuses the record of the first three; the second is then behind the third, at the same offsets."""
    table, calls = started("others"), [upsert(2), upsert(3), upsert(4)]
    put, refusals = table.storage.put_if_absent, [StorageRefusedError("no")]

    def refusing(key: str, data: Any) -> None:
        if refusals and "/commits/" in key:
            raise refusals.pop()
        put(key, data)

    with mock.patch.object(table.storage, "put_if_absent", refusing):
        answers = together(table, calls, 1, order=(0, 2, 1))
    assert isinstance(answers[0], StorageRefusedError)
    check_same_as_alone(table, calls, [2, 1])


def a_record_that_lands_late() -> None:
    """A put fails, its neighbours stand in another order the next time, and then the first request arrives."""
    table, calls = started("late"), [upsert(2), upsert(3), upsert(4)]
    put, late = table.storage.put_if_absent, []
    led_by = CommitQueue.eligible_for

    def failing(key: str, data: Any) -> None:
        if "/commits/" not in key:
            put(key, data)
        elif not late:
            late.append((key, data))
            raise StorageError("reset")
        else:
            if len(late) == 1:
                late.append(None)
                put(*late[0])
            put(key, data)

    def reordered(waiting: CommitQueue, leader: PendingCommit) -> list[PendingCommit]:
        first, *others = led_by(waiting, leader)
        return [first, *(reversed(others) if late else others)]

    with (
        mock.patch.object(table.storage, "put_if_absent", failing),
        mock.patch.object(CommitQueue, "eligible_for", reordered),
    ):
        together(table, calls, 1)
    assert len(late) == 2
    check_same_as_alone(table, calls, [0, 1, 2])
