"""Random groups of appends against the same appends one after another: the same rows, offsets, answers and state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from faults.faulty_storage import Fault, FaultyStorage
from faults.history import SCHEMA
from faults.scenarios import NAME, NO_LAKE
from faults.sim import sim_world
from faults.turns import in_turns
from streamhouse_spark import BucketOffsets, StreamhouseError, Table, Transaction, TransactionConflictError, Warehouse
from streamhouse_spark.log.commit_validation import find_stored_transaction
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.memory import MemoryStorage

TRANSACTIONS = st.builds(
    Transaction, st.sampled_from("ab"), st.integers(0, 3), st.sampled_from([None, "query", "another"])
)
APPENDS = st.tuples(st.integers(0, 3), st.none() | TRANSACTIONS)
FAULTS = st.none() | st.sampled_from([Fault.LOST_ACK, Fault.OWN_EXISTS, Fault.ERROR_BEFORE])


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Any], list[int], Fault | None]:
    """Return appends that wait together, the order in which they have the log, and the fault of the first put."""
    appends = draw(st.lists(APPENDS, min_size=1, max_size=6))
    return appends, draw(st.permutations(range(len(appends)))), draw(FAULTS)


@dataclass
class Model:
    """A table that gets, one by one, the appends whose attempts the log has, and each state that it was in."""

    table: Table = field(default_factory=lambda: new_table(MemoryStorage(sim_world(7))))
    states: list[TableState] = field(default_factory=list)

    def store(self, rows: Any, transaction: Transaction | None) -> BucketOffsets:
        offsets = self.table.append(rows, transaction=transaction)
        self.states.append(self.table.refresh())
        return offsets


def new_table(storage: Any) -> Table:
    properties = {**NO_LAKE, "bucket.key": "id"}
    warehouse = Warehouse(storage.url, storage=storage, world=sim_world(8))
    return warehouse.create_table(NAME, SCHEMA, buckets=2, properties=properties)


def answer_of(state: TableState, transaction: Transaction) -> Any:
    """Return the answer that a transaction would have if it were not written in this state; None if it were."""
    try:
        entry = find_stored_transaction(state, transaction)
    except TransactionConflictError as error:
        return type(error)
    return entry and dict(entry.offsets)


@settings(max_examples=60, deadline=None)
@given(st.lists(groups(), min_size=1, max_size=4))
def test_groups_are_as_single_commits_in_their_order(lives):
    """Each append that is stored has its rows, offsets and effect as if it had been alone, in the order of the log.

    Each that is not stored was answered as it would have been alone, at some moment of its wait.
    """
    storage = FaultyStorage(MemoryStorage(sim_world(3)))
    table, model = new_table(storage), Model()
    model.states.append(model.table.refresh())
    number = 0
    for appends, order, fault in lives:
        sent = []
        for num_rows, transaction in appends:
            ids = range(number, number + num_rows)
            sent.append((SCHEMA.empty_table() if not ids else rows_of(ids), transaction))
            number += num_rows
        fail_next_commit(storage, fault)
        before, first_state = table.refresh().version, len(model.states) - 1
        attempts: dict[int, str] = {}
        answers = in_turns(
            [lambda s=s: table.append(s[0], transaction=s[1]) for s in sent],
            order=order,
            when_all_wait=lambda a=attempts: a.update(enumerate(c.attempt for c in waiting(table))),
        )
        stored = stored_attempts(table, before)
        by_attempt = {attempt: number for number, attempt in attempts.items()}
        told = {}
        for attempt in stored:
            rows, transaction = sent[by_attempt[attempt]]
            told[by_attempt[attempt]] = model.store(rows, transaction)
        for at, (answer, (rows, transaction)) in enumerate(zip(answers, sent, strict=True)):
            if at in told:
                assert dict(answer) == dict(told[at])
            elif transaction is None:
                assert not isinstance(answer, StreamhouseError)
                assert rows.num_rows == 0
            else:
                got = type(answer) if isinstance(answer, Exception) else dict(answer)
                assert got in [answer_of(state, transaction) for state in model.states[first_state:]]
        found, single = table.refresh(), model.table.refresh()
        assert found.ends == single.ends
        assert table.to_arrow().sort_by("id") == model.table.to_arrow().sort_by("id")
        assert {a: (e.version, e.owner, e.offsets) for a, e in found.transactions.items()} == {
            a: (e.version, e.owner, e.offsets) for a, e in single.transactions.items()
        }
        assert Warehouse(storage.url, storage=storage.inner).table(NAME).state == found


def rows_of(ids: range) -> Any:
    return SCHEMA.empty_table().from_pydict({"id": list(ids), "text": [str(i) for i in ids]}, schema=SCHEMA)


def waiting(table: Table) -> list[Any]:
    return list(table.log._queue._by_attempt.values())


def stored_attempts(table: Table, before: int) -> list[str]:
    records = (read_record(table.storage, table.uuid, n + 1)[0] for n in range(before, table.refresh().version))
    return [part.attempt for record in records for part in record.attempts]


def fail_next_commit(storage: FaultyStorage, fault: Fault | None) -> None:
    left = [fault]

    def plan(_number: int, method: str, key: str) -> Fault | None:
        return left.pop() if left and method == "put_if_absent" and "/commits/" in key else None

    storage._plan = plan
