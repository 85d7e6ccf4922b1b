"""`Table.lookup_one`: looks up one row by its key as a dict.

A lookup releases Python's GIL several times for a microsecond or two. If all threads look up rows, each release wakes a
thread that finds the GIL taken and goes back to sleep. The threads then spend three times as long on waking each other
as on lookups. Therefore only one thread has the turn, and the other threads sleep in `LookupScheduler`. A thread keeps
the turn for several lookups if it calls again immediately. The turn is only a hint, on which results do not depend. A
thread never waits long: it continues if the thread with the turn reads the log or rows that are not in memory, or was
interrupted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.core.argument_validation import validate_arguments
from streamhouse_spark.core.concurrency import new_event, reinit_after_fork
from streamhouse_spark.core.python_values import to_python_rows
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import SchemaMismatchError, quote
from streamhouse_spark.kv.log_replay import catch_up
from streamhouse_spark.kv.scalar_codec import KeyEncoder, RowDecoder, ValueDecoder
from streamhouse_spark.log.state import TableState
from streamhouse_spark.lookup.batch_lookup import DAMAGED_MAX, BatchLookup, column_names, damaged_tablet_error
from streamhouse_spark.write.upsert import PrimaryKeySchema, PrimaryKeyTable

LOOKUPS_MAX: Final = 192
"""Lookups per turn while other threads wait. They take about 2.5 ms, half of Python's switch interval."""
WAIT_S: Final = 0.002
"""A waiting thread checks the progress of the other threads after this time."""
_FEW: Final = 8
"""If fewer lookups were done in this time, concurrent threads would do more."""
_WITHOUT: Final = 64
"""Number of lookups that then bypass the scheduler. It is doubled each time."""
_WITHOUT_MAX: Final = 4096
PLAIN = (int, str)
_PLANS_MAX = 64
_INT64 = 1 << 63


class LookupScheduler:
    """Assigns turns to the threads of a process. Fields are updated without a lock: a race only costs time."""

    def __init__(self) -> None:
        self.renew_in_child()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        self._is_taken = False
        self._waiting: deque[_Waiter] = deque()
        self._num_done = 0
        self._num_left = 0
        self._num_without = 0
        self._next_without = _WITHOUT
        self._comes_back = False
        """Whether threads with a turn call again immediately."""
        self._passer = 0
        """The thread that passed the turn on last."""

    def acquire(self) -> bool:
        """Wait briefly for the turn. Return whether this thread has the turn and must `release` it."""
        if self._is_taken:
            return self._wait()
        self._is_taken = True
        return True

    def release(self) -> None:
        self._is_taken = False
        self._num_done += 1
        if self._waiting:
            self._num_left -= 1
            if self._num_left < 0 or not self._comes_back:
                self._pass_on()

    def _pass_on(self) -> None:
        waiter = self._next()
        if waiter is None:
            return
        if self._num_left < 0:
            self._next_without = _WITHOUT
        self._passer, self._num_left = threading.get_ident(), LOOKUPS_MAX
        self._is_taken = waiter.has_turn = True
        waiter.ready.set()

    def _wait(self) -> bool:
        if self._num_without > 0:
            self._num_without -= 1
            return False
        if self._passer == threading.get_ident():  # this thread calls again before the next thread passed the turn on
            self._comes_back = True
        waiter = _Waiter()
        self._waiting.append(waiter)
        try:
            while not waiter.ready.is_set():
                num_done = self._num_done
                if not waiter.ready.wait(WAIT_S * len(self._waiting)):
                    self._check_progress(waiter, self._num_done - num_done)
        except BaseException:  # an interrupt
            self._forget(waiter)
            if waiter.has_turn:
                self.release()
            raise
        return waiter.has_turn

    def _check_progress(self, waiter: _Waiter, num_done: int) -> None:
        """Let a waiting thread continue, unless the other threads did as many lookups as one thread can."""
        if self._is_taken and num_done >= _FEW:
            return
        if self._is_taken and num_done:
            self._num_without = self._next_without
            self._next_without = min(2 * self._next_without, _WITHOUT_MAX)
            while (other := self._next()) is not None:
                other.ready.set()
        elif self._forget(waiter):  # the turn is free, or its owner is not looking up rows
            self._comes_back = False
            self._passer, self._num_left = 0, LOOKUPS_MAX
            self._is_taken = waiter.has_turn = True
            waiter.ready.set()

    def _next(self) -> _Waiter | None:
        """Remove and return the first waiter, or None."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _forget(self, waiter: _Waiter) -> bool:
        """Remove a waiter. Return False if another thread removed it."""
        try:
            self._waiting.remove(waiter)
        except ValueError:
            return False
        return True


class _Waiter:
    def __init__(self) -> None:
        self.ready = new_event()
        self.has_turn = False


SCHEDULER: Final = LookupScheduler()
"""The scheduler of all tables, because all threads share the GIL."""


@validate_arguments
def _validate_arguments(key: Any, columns: Sequence[str] | None, at_least: Mapping[int, OffsetRange] | None) -> None:
    """Raise for arguments of a wrong type. Called only for unusual arguments, because the validation is slow."""


class PointLookup:
    """Lookups of single rows. Thread-safe."""

    def __init__(self, keyed: PrimaryKeyTable, lookup: BatchLookup) -> None:
        self._keyed = keyed
        self._table = keyed.table
        self._lookup = lookup
        self._plans: dict[tuple[str, ...] | None, _LookupCodec] = {}

    def row(
        self,
        key: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
    ) -> dict[str, Any] | None:
        """Look up one row; see `Table.lookup_one`."""
        is_long = type(key) is int and not -_INT64 <= key < _INT64
        if at_least is not None or is_long or (columns is not None and type(columns) is not list):
            _validate_arguments(key, columns, at_least)
        has_turn = SCHEDULER.acquire()
        try:
            state = self._lookup.state(max_staleness_ms, at_least)
            plan = self._get_plan(self._keyed.keyed_schema(state), columns)
            values = plan.key_values(key)
            encoded_key = plan.key.encode(values) if plan.key is not None else None
            value = self._read_value(state, plan.keyed_schema, *encoded_key) if encoded_key is not None else None
        finally:
            if has_turn:
                SCHEDULER.release()
        if encoded_key is not None:
            if value is None:
                return None
            row = plan.value.read(value)
            if row is not None:
                return row
        try:
            return self._lookup_with_arrow(plan, values, max_staleness_ms, at_least)
        except SchemaMismatchError:  # columns were renamed or dropped after the state of the plan
            keyed_schema = self._keyed.keyed_schema(self._table.refresh())
            if keyed_schema is plan.keyed_schema:
                raise
            return self._lookup_with_arrow(self._get_plan(keyed_schema, columns), values, max_staleness_ms, at_least)

    def _get_plan(self, keyed_schema: PrimaryKeySchema, columns: Sequence[str] | None) -> _LookupCodec:
        chosen = None if columns is None else tuple(column_names(columns))
        plan = self._plans.get(chosen)
        if plan is None or plan.keyed_schema is not keyed_schema:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            plan = self._plans[chosen] = _LookupCodec(keyed_schema, columns)
        return plan

    def _read_value(self, state: TableState, keyed_schema: PrimaryKeySchema, key: bytes, bucket: int) -> bytes | None:
        """Return the key's value at this state or a later state."""
        tablet = keyed_schema.tablet_of(bucket)
        for _ in range(DAMAGED_MAX):
            lookup = tablet.find_one(key)
            begins, applied, _ = lookup.extent
            is_current = begins >= state.first_offset(bucket) and applied >= state.buckets[bucket].end
            if is_current and self._lookup.owns(tablet, lookup.extent, state):
                return lookup.values[0]
            catch_up(tablet, keyed_schema.layout, self._table.storage, state, bucket)
        raise damaged_tablet_error(state, bucket)

    def _lookup_with_arrow(
        self,
        plan: _LookupCodec,
        values: Sequence[Any],
        max_staleness_ms: int | None,
        at_least: Mapping[int, OffsetRange] | None,
    ) -> dict[str, Any] | None:
        keys = [dict(zip(plan.keyed_schema.key_schema.names, values, strict=True))]
        rows = self._lookup.rows(keys, columns=plan.column_names, max_staleness_ms=max_staleness_ms, at_least=at_least)
        found_index = rows.num_columns - 1
        if not rows.column(found_index)[0].as_py():
            return None
        (row,) = to_python_rows(rows.select(list(range(found_index))))
        return {name: row[name] for name in plan.column_names}


class _LookupCodec:
    """Encodes keys and decodes rows of one schema."""

    def __init__(self, keyed_schema: PrimaryKeySchema, columns: Sequence[str] | None) -> None:
        self.keyed_schema = keyed_schema
        chosen = keyed_schema.schema if columns is None else keyed_schema.schema.select(columns)
        self.column_names = chosen.names
        names, key = keyed_schema.schema.names, keyed_schema.key_schema
        self._key_names = key.names
        self.key: KeyEncoder | None = None
        """None if only Arrow can find the bucket or pad texts."""
        is_padded = any(column.size is not None for column in key.columns)
        if not is_padded and (not keyed_schema.bucket_key or keyed_schema.lake_format == "iceberg"):
            place = key.names.index(keyed_schema.bucket_key[0]) if keyed_schema.bucket_key else None
            self.key = KeyEncoder([column.type for column in key.columns], place, keyed_schema.num_buckets)
        types = [column.type for column in keyed_schema.schema.columns]
        self.value = ValueDecoder({keyed_schema.layout.schema_id: RowDecoder(names, types, self.column_names)})

    def key_values(self, key: Any) -> Sequence[Any]:
        """Return the values of the key columns in order. Raises `SchemaMismatchError`."""
        names = self._key_names
        if type(key) in PLAIN and len(names) == 1:
            return (key,)
        if isinstance(key, Mapping):
            by_name = {self.keyed_schema.schema.column(name).name: value for name, value in key.items()}
            if set(by_name) == set(names):
                return [by_name[name] for name in names]
        elif isinstance(key, tuple | list):
            if len(key) == len(names):
                return key
        elif len(names) == 1:
            return (key,)
        raise SchemaMismatchError(
            f"key {quote(key)} of {self.keyed_schema.name}: expected {'a value' if len(names) == 1 else 'values'} of "
            f"({', '.join(names)}), as a tuple in this order or as a mapping"
        )
