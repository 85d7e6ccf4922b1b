"""Random histories of a table against a dictionary: bucket → the rows at its offsets.

Writers, tierers, readers with pins, mergers, trimmers and cleaners are the same few processes; each may sleep for days,
crash at any storage call, be told that a call failed which did not, start again, and have a clock that is set forward
or back. After each step the ledger, a process that never sleeps, compares the log with all that it saw before.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from faults.checkers import check_all, check_values
from faults.compactions import compacting_early
from faults.faulty_storage import Crash, Fault, ListingLag
from faults.history import SCHEMA, Batch, History, Told, added_column, added_type, number_of
from faults.ledger import Ledger
from faults.scenarios import HOUR_MS, LAKE, LARGE, NO_LAKE, PAIMON
from faults.sequential import one_thing_at_a_time
from faults.sim import SimClock, SimIds
from kit.tables import tier
from property.processes import NAME, Process, ProcessClock
from streamhouse_spark import Table, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptDataError,
    OffsetsTrimmedError,
    SchemaMismatchError,
    SnapshotExpiredError,
    StorageError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.log import compaction as merge
from streamhouse_spark.log.gc import garbage_collection
from streamhouse_spark.log.staging import StagedRows
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.snapshot_reader import read_snapshot_rows
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

PROCESSES = 3
PROCESS = st.integers(0, PROCESSES - 1)
LUCK = st.one_of(st.none(), st.tuples(st.integers(0, 25), st.sampled_from(list(Fault))))
"""What goes wrong in a step: the storage call that many calls on, and how; or nothing."""
Luck = tuple[int, Fault] | None
MEANWHILE = ("append", "maintain", "tier", "truncate", "overwrite", "column", "rename", "drop", "widen", "day")
COLUMNS_MAX = 4
COLUMNS = st.integers(0, COLUMNS_MAX)
"""How many of the columns that were added the rows of a batch have: writers may be from before."""
ALTERATIONS = ("column", "rename", "drop", "widen")
FIRED: Counter[str] = Counter()
"""How often each rule ran, over all examples of this process."""
TRACES: list[str] = []
"""One digest per example: of every write of every process, in order."""


@dataclass(frozen=True)
class HeldPin:
    process: int
    pin: ReadSnapshot
    ids: Counter[int]
    boot_ms: int
    lake_changes: int


@dataclass(frozen=True)
class HeldRows:
    """Rows that a task staged and whose driver has not committed them yet."""

    process: int
    table: Table
    staged: StagedRows
    batch: int


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = small_limits()
        self.patches.__enter__()
        self.clock = SimClock()
        self.memory = MemoryStorage(World(self.clock, SimIds(0)))
        self.lag = ListingLag(0)
        self.processes = [Process(n, self.memory, ProcessClock(self.clock), self.lag) for n in range(PROCESSES)]
        self.history = History()
        self.numbers = 0
        self.pins: list[HeldPin] = []
        self.held: list[HeldRows] = []
        self.versions: Counter[str] = Counter()
        self.lake_changes = 0
        self.steps = 0
        self.properties: dict[str, str] = {}

    @initialize(
        lake=st.sampled_from([NO_LAKE, LAKE, PAIMON]), ttl=st.sampled_from(["0", "2h", "40h"]), key=st.booleans()
    )
    def create(self, lake: dict[str, str], ttl: str, key: bool) -> None:
        self.properties = {**lake, "table.log.ttl": ttl}
        if key:
            self.properties["bucket.key"] = "id"
        self._create(self._healthy())

    def _create(self, warehouse: Warehouse) -> None:
        table = warehouse.create_table(NAME, SCHEMA, buckets=2, properties=self.properties)
        self.ledger = Ledger(self.memory, table.uuid)
        self.history = History()
        self.numbers = 0

    def _healthy(self) -> Warehouse:
        """A process of the test itself, which meets no faults."""
        return Warehouse(self.memory.url, storage=self.memory, world=World(self.clock, SimIds(10**9 + self.steps)))

    @property
    def added(self) -> list[str]:
        """The columns that were added and are there, as they are called now."""
        return list(self.ledger.observe().schema.names[2:])

    def _send(self, table: Table, batch: Batch) -> None:
        """Rows with columns that the table does not have are refused, and no others are."""
        try:
            self.history.append(table, batch)
        except SchemaMismatchError:
            assert not set(batch.columns) <= set(self.added), f"{batch} was refused, and its columns are there"

    # -- writers --------------------------------------------------------------------------------------------------

    @rule(process=PROCESS, rows=st.integers(1, 4), large=st.booleans(), columns=COLUMNS, luck=LUCK)
    def append(self, process: int, rows: int, large: bool, columns: int = 0, luck: Luck = None) -> None:
        chars = LARGE if large and rows == 4 else 4
        batch = self.history.new_batch(rows, row_chars=chars, columns=self.added[:columns])
        self._act("append", process, lambda table: self._send(table, batch), luck)

    @rule(process=PROCESS, app=st.sampled_from("ab"), again=st.booleans(), luck=LUCK)
    def append_with_a_transaction(self, process: int, app: str, again: bool, luck: Luck = None) -> None:
        """A streaming query: sends the next batch, or after a restart the last one again."""
        own = [b for b in self.history if b.transaction is not None and b.transaction.app_id == app]
        if own and (again or own[-1].told is not Told.ACKNOWLEDGED):
            batch = own[-1]
        else:
            batch = self.history.new_batch(2, transaction=Transaction(app, len(own) + 1), columns=self.added)
        self._act("append again", process, lambda table: self._send(table, batch), luck)

    @rule(process=PROCESS, large=st.booleans(), luck=LUCK)
    def stage(self, process: int, large: bool, luck: Luck = None) -> None:
        def work(table: Table) -> None:
            known = table.state.schema.names[2:]
            batch = self.history.new_batch(4, row_chars=LARGE if large else 4, columns=known)
            staged = table.log_writer.stager().stage(convert_to_schema(batch.rows(), table.state.schema, table=NAME))
            self.held.append(HeldRows(process, table, staged, batch.number))

        self._act("stage", process, work, luck)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), luck=LUCK)
    def commit_what_was_staged(self, data: st.DataObject, luck: Luck = None) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

        def work(_: Table) -> None:
            commit = _Committing(held.table, held.staged)
            if held.table.uuid == self.ledger.table_uuid:
                self.history.append(commit, self.history.batches[held.batch])
            else:
                with pytest.raises((TableNotFoundError, CommitConflictError, StorageError, Crash)):
                    commit.append(None)

        if held.table.storage.home is self.processes[held.process].storage:  # its driver lives on
            self._act("commit staged", held.process, work, luck)

    @rule(process=PROCESS, kind=st.sampled_from(ALTERATIONS), which=st.integers(0, COLUMNS_MAX - 1), luck=LUCK)
    def alter(self, process: int, kind: str, which: int, luck: Luck = None) -> None:
        self._act(kind, process, lambda table: self._alter(table, kind, which), luck)

    def _alter(self, table: Table, kind: str, which: int = 0) -> None:
        """Others may do the same at once: then the column is not there, or has its type."""
        added = self.added
        if kind == "column":
            if len(added) < COLUMNS_MAX:
                number, self.numbers = self.numbers, self.numbers + 1
                table.add_columns(f"{added_column(number)} {added_type(number)}")
                assert added_column(number) in table.state.schema.names
            return
        if not added:
            return
        name = added[which % len(added)]
        with suppress(SchemaMismatchError):
            if kind == "rename":
                self.numbers += 1
                table.rename_column(name, added_column(number_of(name), self.numbers))
                assert name not in table.state.schema.names
            elif kind == "drop":
                table.drop_column(name)
                assert name not in table.state.schema.names
            elif number_of(name) % 2:
                table.widen_column(name, "bigint")
                assert table.state.schema.column(name).type == pa.int64()

    @rule(process=PROCESS, luck=LUCK)
    def truncate(self, process: int, luck: Luck = None) -> None:
        self._act("truncate", process, self.history.truncate, luck)

    @rule(process=PROCESS, rows=st.integers(1, 4), luck=LUCK)
    def overwrite(self, process: int, rows: int, luck: Luck = None) -> None:
        batch = self.history.new_batch(rows, row_chars=LARGE if rows == 4 else 4, overwrites=True)
        self._act("overwrite", process, lambda table: self.history.append(table, batch), luck)

    # -- upkeep ---------------------------------------------------------------------------------------------------

    @rule(process=PROCESS, luck=LUCK)
    def merge(self, process: int, luck: Luck = None) -> None:
        self._act(
            "merge",
            process,
            lambda table: (table.refresh(), compact_inline_rows(table), compact_small_segments(table)),
            luck,
        )

    @rule(process=PROCESS, luck=LUCK)
    def maintain(self, process: int, luck: Luck = None) -> None:
        self._act("maintain", process, lambda table: table.maintain(), luck)

    @rule(process=PROCESS, luck=LUCK)
    def clean(self, process: int, luck: Luck = None) -> None:
        self._act("clean", process, lambda table: garbage_collection.clean(table.log, table.storage), luck)

    @rule(process=PROCESS, luck=LUCK)
    def checkpoint(self, process: int, luck: Luck = None) -> None:
        self._act("checkpoint", process, lambda table: table.log.checkpoint(table.refresh()), luck)

    @precondition(lambda self: "true" in self.properties.values())
    @rule(process=PROCESS, luck=LUCK)
    def tier(self, process: int, luck: Luck = None) -> None:
        self._act("tier", process, tier, luck)

    @precondition(lambda self: "true" in self.properties.values())
    @rule(process=PROCESS, keep=st.integers(1, 3), luck=LUCK)
    def compact_and_expire_the_lake(self, process: int, keep: int, luck: Luck = None) -> None:
        def work(table: Table) -> None:
            table.refresh()
            lake = table.open_lake()
            if lake.exists():
                self.lake_changes += 1
                lake.compact()
                lake.expire(keep_last=keep, keep_ms=0)

        self._act("compact", process, work, luck)

    # -- readers --------------------------------------------------------------------------------------------------

    @rule(process=PROCESS, luck=LUCK)
    def read(self, process: int, luck: Luck = None) -> None:
        """A read sees all that was committed before it."""

        def work(table: Table) -> None:
            rows = table.to_arrow()
            found = Counter(rows.column("id").to_pylist())
            self.ledger.observe()
            if table.uuid == self.ledger.table_uuid:
                check_values(rows, self.history, "read")
                assert found == self._visible(table), "a read saw other rows than the table has"

        self._act("read", process, work, luck)

    @rule(process=PROCESS)
    def pin(self, process: int) -> None:
        def work(table: Table) -> None:
            pin = take_latest_snapshot(table.refresh())
            self.ledger.observe()
            if table.uuid == self.ledger.table_uuid:
                ids = self._visible(table)
                self.pins.append(HeldPin(process, pin, ids, self.clock.boot_ms(), self.lake_changes))

        self._act("pin", process, work)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def read_a_pin(self, data: st.DataObject) -> None:
        """Read a pin as it was; after the grace it may be an error, but never fewer or other rows."""
        held = self.pins[data.draw(st.integers(0, len(self.pins) - 1))]

        def work(table: Table) -> None:
            if table.uuid != held.pin.state.table_uuid:
                return
            try:
                rows = read_snapshot_rows(table, held.pin, Projection.of(held.pin.state.schema, None, None))
            except (SnapshotExpiredError, CorruptDataError, OffsetsTrimmedError):
                is_old = self.clock.boot_ms() - held.boot_ms >= garbage_collection.GRACE_MS
                assert is_old or self.lake_changes > held.lake_changes, "a pin was lost before the grace was over"
                return
            check_values(rows, self.history, "pin")
            assert Counter(rows.column("id").to_pylist()) == held.ids, "a pin saw other rows than when it was taken"

        self._act("read pin", held.process, work)

    # -- faults and time ------------------------------------------------------------------------------------------

    @rule(process=PROCESS)
    def restart(self, process: int) -> None:
        self._count("restart")
        self.processes[process].start()

    @rule(hours=st.sampled_from([0.001, 0.02, 1, 13, 25, 60, 200]))
    def time_passes(self, hours: float) -> None:
        self._count("time passes")
        self.clock.advance(hours * HOUR_MS)

    @rule(process=PROCESS, hours=st.sampled_from([-1000, -30, -1, 1, 30, 1000]))
    def clock_is_set(self, process: int, hours: int) -> None:
        self._count("clock is set")
        self.processes[process].clock.lead_ms += hours * HOUR_MS

    @rule(objects=st.integers(0, 5))
    def listings_lag(self, objects: int) -> None:
        self._count("listings lag")
        self.lag._objects_max = objects
        if not objects:
            self.lag.advance()

    @rule(process=PROCESS, meanwhile=st.lists(st.sampled_from(MEANWHILE), max_size=6),
          calls=st.integers(0, 40), data=st.data())  # fmt: skip
    def others_act_in_the_middle(self, process: int, meanwhile: list[str], calls: int, data: st.DataObject) -> None:
        """Before one storage call of a process, others do much, and perhaps days pass."""
        works = [self.append_small, self.merge, self.maintain, self.read, self.checkpoint, self.truncate, self.rename]
        if "true" in self.properties.values():
            works.append(self.tier)
        work = data.draw(st.sampled_from(works))
        mine = self.processes[process]
        due = len(mine.storage.trace) + calls

        def plan(number: int, _method: str, _key: str) -> None:
            if number == due:
                self._meanwhile(meanwhile)

        mine.storage._plan = plan
        try:
            work(process)
        finally:
            mine.storage._plan = {}

    def append_small(self, process: int) -> None:
        self.append(process, 2, large=False)

    def rename(self, process: int) -> None:
        self.alter(process, "rename", 0)

    def _meanwhile(self, meanwhile: list[str]) -> None:
        warehouse = self._healthy()
        if not warehouse.exists(NAME):
            return
        table = warehouse.table(NAME)
        for action in meanwhile:
            self._count(f"meanwhile {action}")
            if action == "append":
                self._send(table, self.history.new_batch(1, columns=self.added))
            elif action in ALTERATIONS:
                self._alter(table, action)
            elif action == "maintain":
                self.ledger.observe()
                table.maintain()
            elif action == "truncate":
                self.history.truncate(table)
            elif action == "overwrite":
                self.history.append(table, self.history.new_batch(2, overwrites=True))
            elif action == "tier" and "true" in self.properties.values():
                tier(table)
            else:
                self.clock.advance(25 * HOUR_MS)
        self.ledger.observe()

    @precondition(lambda self: self.steps % 5 == 4)  # rare, because it forgets everything
    @rule()
    def drop_and_create(self) -> None:
        """Processes that have the old table open keep it open, and try to use it."""
        self._count("drop and create")
        check_all(self.memory, NAME, self.history, self.ledger)
        warehouse = self._healthy()
        warehouse.drop_table(NAME)
        self._create(warehouse)
        self.pins.clear()

    # -- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def the_past_does_not_change(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.observe()

    def teardown(self) -> None:
        try:
            if hasattr(self, "ledger"):
                self.lag.advance()
                check_all(self.memory, NAME, self.history, self.ledger)
                for process in self.processes:
                    process.remember()
                writes = repr([process.log for process in self.processes])
                TRACES.append(hashlib.sha256(writes.encode()).hexdigest())
        finally:
            self.patches.__exit__(None, None, None)

    def _visible(self, table: Table) -> Counter[int]:
        state = table.state
        has_lake = state.lake is not None
        starts = {b: state.first_offset(b) if has_lake else log.start for b, log in state.buckets.items()}
        return Counter(i for b, ids in self.ledger.ids.items() for i in ids[starts[b] : state.buckets[b].end])

    def _count(self, name: str) -> None:
        self.steps += 1
        FIRED[name] += 1

    def _act(self, name: str, process: int, work: Callable[[Table], object], luck: Luck = None) -> None:
        """Let a process do something, and judge what it raises."""
        self._count(name)
        mine = self.processes[process]
        if luck is not None:
            mine.arm(*luck)
        before = self.clock.boot_ms()
        is_new = False
        try:
            table = mine.open()
            is_new = table.uuid == self.ledger.table_uuid
            work(table)
        except Crash:
            self._count("crash")
        except (StorageError, CommitStateUnknownError):
            assert mine.storage.faults_fired, f"{name} failed although storage did not"
        except TableNotFoundError:
            assert not is_new or mine.storage.faults_fired, f"{name}: the table was not dropped"
            mine.table = None
        except (CommitConflictError, CorruptDataError, SnapshotExpiredError):
            slept = self.clock.boot_ms() - before >= garbage_collection.GRACE_MS
            assert slept or name == "commit staged" or mine.storage.faults_fired, f"{name} failed without a reason"
        except StreamhouseError as error:
            raise AssertionError(f"{name}: {error}") from error
        note(f"{name} by {process}: {mine.storage.faults_fired}")
        FIRED["fault"] += len(mine.storage.faults_fired)
        if mine.storage.crashed:
            mine.start()
        elif luck is not None:
            mine.disarm()


class _Committing:
    """Stands for a table whose rows were staged before: what `History.append` needs."""

    def __init__(self, table: Table, staged: StagedRows) -> None:
        self._table = table
        self._staged = staged

    def append(self, _rows: object, *, transaction: Transaction | None = None) -> object:
        return self._table.log_writer.commit(self._staged, transaction=transaction)


@contextmanager
def small_limits() -> Iterator[None]:
    with (
        one_thing_at_a_time(),
        mock.patch.object(garbage_collection, "WATERMARK_STEP_MIN", 2),
        mock.patch.object(merge, "INLINE_RECORDS_MAX", 6),
        compacting_early(),
        mock.patch.object(merge.plan_small_merge, "__defaults__", (2,)),
    ):
        yield


def examples_wanted() -> int | None:
    """Return the number of examples that the environment asks for, if it does."""
    text = os.environ.get("STREAMHOUSE_PROPERTY_EXAMPLES")
    return int(text) if text else None
