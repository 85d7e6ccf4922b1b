"""Statements that read a table and write it, and writes by key: a model of them, and what runs them side by side.

The level of isolation is checked as it is promised: whatever statements (UPDATE, DELETE, MERGE) and writes by key
commit side by side, the table is what **some** serial order of them makes, in which the statements stand in the order
of their commits, and so do the writes by key.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import pyarrow as pa

from faults.faulty_storage import FaultyStorage
from faults.sim import SimClock, sim_world
from kit import keyed_writes
from streamhouse_spark import CommitConflictError, Table, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

NAME = "d.t"
SEEDS = itertools.count(1000)  # other than those that tests choose: processes of one seed give objects the same names
Rows = dict[int, int]
"""``n`` by ``id``."""


@dataclass
class Write:
    """An upsert, or a deletion, by key: None deletes."""

    changes: dict[int, int | None]

    def applied(self, rows: Rows) -> Rows:
        after = rows | self.changes
        return {key: n for key, n in after.items() if n is not None}

    def run(self, table: Table) -> None:
        if upserts := {key: n for key, n in self.changes.items() if n is not None}:
            table.upsert([{"id": key, "n": n} for key, n in upserts.items()])
        else:
            table.delete(list(self.changes))


@dataclass
class Statement:
    """``becomes``: what a row becomes for which ``holds`` is true; ``inserts``: rows of keys that are not there."""

    text: str
    holds: Callable[[int, int], bool]
    becomes: Callable[[int, int], int | None]
    inserts: Rows = field(default_factory=dict)

    def changes(self, rows: Rows) -> dict[int, int | None]:
        matched = {key: self.becomes(key, n) for key, n in rows.items() if self.holds(key, n)}
        return matched | {key: n for key, n in self.inserts.items() if key not in rows}

    def applied(self, rows: Rows) -> Rows:
        return Write(self.changes(rows)).applied(rows)

    def began(self, table: Table) -> Begun:
        state = table.refresh()
        return Begun(self, replace(ReadVersion.of(state), scope=self._may_read), self.changes(read(table)))

    def _may_read(self, _state: object, batch: pa.RecordBatch) -> bool:
        rows = zip(batch.column("id").to_pylist(), batch.column("n").to_pylist(), strict=True)
        return any(self.holds(key, n) or key in self.inserts for key, n in rows)


@dataclass
class Begun:
    """A statement that read the table, and has not committed."""

    statement: Statement
    base: ReadVersion
    changes: dict[int, int | None]

    def commits(self, table: Table) -> None:
        rewrite(table, self.changes, self.base)


def rewrite(table: Table, changes: dict[int, int | None], base: ReadVersion) -> None:
    rows = pa.table({"id": pa.array(list(changes), pa.int64()), "n": pa.array(list(changes.values()), pa.int64())})
    keyed_writes.rewrite(table, rows, np.array([n is None for n in changes.values()], np.bool_), read=base)


def read(table: Table) -> Rows:
    table.refresh()
    return {row["id"]: row["n"] for row in table.to_arrow().to_pylist()}


def update(low: int, high: int, plus: int) -> Statement:
    text = f"UPDATE SET n = n + {plus} WHERE n BETWEEN {low} AND {high}"
    return Statement(text, lambda _key, n: low <= n <= high, lambda _key, n: n + plus)


def delete(low: int, high: int) -> Statement:
    return Statement(f"DELETE WHERE n BETWEEN {low} AND {high}", lambda _key, n: low <= n <= high, lambda *_: None)


def merge(source: Rows) -> Statement:
    return Statement(f"MERGE {source}", lambda key, _n: key in source, lambda key, n: n + source[key], source)


def is_serial(before: Rows, after: Rows, statements: list[Statement], writes: list[Write]) -> bool:
    """Whether some interleaving of the statements, in their order, and the writes, in theirs, makes these rows."""
    number = len(statements) + len(writes)
    for places in itertools.combinations(range(number), len(statements)):
        first, second = iter(statements), iter(writes)
        rows = before
        for place in range(number):
            rows = (next(first) if place in places else next(second)).applied(rows)
        if rows == after:
            return True
    return False


@contextmanager
def own_tablets() -> Iterator[None]:
    """Tables of simulated worlds have the same identities: what is kept of them by key goes afterwards."""
    close_tablets()
    folder = tempfile.TemporaryDirectory(prefix="streamhouse-tests-")
    with folder as path, mock.patch.dict(os.environ, {"STREAMHOUSE_CACHE_DIR": path}):
        yield
        close_tablets()


def new_table(rows: Rows, buckets: int = 1, storage: Storage | None = None) -> Table:
    clock = SimClock()
    warehouse = Warehouse("wh", storage=storage or MemoryStorage(sim_world(0, clock)), world=sim_world(0, clock))
    properties = {"table.datalake.enabled": "false"}
    columns = "id BIGINT, n BIGINT"
    table = warehouse.create_table(NAME, columns, primary_key=["id"], buckets=buckets, properties=properties)
    if rows:
        table.upsert([{"id": key, "n": n} for key, n in rows.items()])
    return table


def another(table: Table, storage: Storage | None = None) -> Table:
    """The same table in another process."""
    world = sim_world(next(SEEDS))
    return Warehouse("wh", storage=storage or table.storage, world=world).table(NAME)


def changelog_rows(table: Table) -> Rows:
    """Return the rows that the changelog makes, each change compared with the row that it is about."""
    from streamhouse_spark.table.system_views import CHANGELOG, open_view

    rows: Rows = {}
    for change in open_view(table, CHANGELOG).to_arrow().to_pylist():
        kind, key, n = change["_change_type"], change["id"], change["n"]
        assert kind == "insert" or rows[key] == n or kind == "update_after", change
        assert (kind == "insert") == (key not in rows), change
        rows[key] = n
        if kind == "delete":
            del rows[key]
    return rows


# -- two at once -------------------------------------------------------------------------------------------------------


def side_by_side(
    rows: Rows, first: Statement, second: Statement, between: Callable[[Table], object] | None = None
) -> int:
    """Both read, then both commit; how many were in conflict. What is left is serial."""
    with own_tablets():
        table = new_table(rows)
        begun = [(process := another(table), one.began(process)) for one in (first, second)]
        done, conflicts = [], 0
        for process, one in begun:
            try:
                one.commits(process)
                done.append(one.statement)
            except CommitConflictError:
                conflicts += 1
            if between is not None:
                between(table)
        found = read(table)
        assert is_serial(rows, found, done, []), (found, [one.text for one in done])
        assert changelog_rows(table) == found
        return conflicts


def beside_a_writer(rows: Rows, statement: Statement, write: Write) -> list[bool]:
    """The write happens before each storage call of the statement's commit in turn: whether it was in conflict then."""
    conflicts: list[bool] = []
    while True:
        with own_tablets():
            conflict = _written_before_call(len(conflicts), rows, statement, write)
        if conflict is None:
            return conflicts
        conflicts.append(conflict)


def _written_before_call(at: int, rows: Rows, statement: Statement, write: Write) -> bool | None:
    """None where the commit makes fewer calls."""
    table = new_table(rows)
    begun: list[Begun] = []
    calls: list[str] = []

    def plan(_number: int, _method: str, key: str) -> None:
        if begun:
            calls.append(key)
            if len(calls) == at + 1:
                write.run(another(table))

    process = another(table, FaultyStorage(table.storage, plan))
    begun.append(statement.began(process))
    try:
        begun[0].commits(process)
        done = [statement]
    except CommitConflictError:
        done = []
    if len(calls) <= at:
        return None
    found = read(table)
    assert is_serial(rows, found, done, [write]), (at, found)
    assert changelog_rows(table) == found, at
    return not done
