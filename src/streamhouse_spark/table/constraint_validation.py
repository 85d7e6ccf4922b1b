"""Validation of existing rows before a constraint is added: all rows once, then only appended rows."""

from __future__ import annotations

from collections.abc import Sequence

from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import ConstraintViolatedError
from streamhouse_spark.expressions.check_constraints import Check, ViolationCounter
from streamhouse_spark.log.segments.scan import plan_whole_range
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan
from streamhouse_spark.read.scan_tasks import LogScanTask, ScanPlan
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.table_handle import TableHandle


class RevalidateError(Exception):
    """A commit attempt must be repeated after all rows were validated."""


class ConstraintValidation:
    """Tracks the state whose rows satisfy the added constraints. For one commit; not thread-safe."""

    def __init__(self, table: TableHandle, *, may_read_all: bool) -> None:
        """Track a table. With ``may_read_all``, a commit attempt may read all rows, which may take long."""
        self._table = table
        self._may_read_all = may_read_all
        self._checked_state: tuple[TableState, frozenset[tuple[str, str]]] | None = None

    def check_all(self, state: TableState, checks: Sequence[Check]) -> None:
        """Validate all rows of a state. Raises `ConstraintViolatedError`."""
        if checks:
            initial = InitialSchema(None, reader="a check of all rows of {name}", advice="run it again")
            self._checked_state = read_with_fallback(
                self._table, take_latest_snapshot(state), initial, lambda s: self._check_snapshot(s, checks)
            )

    def check_appended(self, state: TableState, checks: Sequence[Check]) -> None:
        """Validate the rows that a later state added. Raises `ConstraintViolatedError` or `RevalidateError`."""
        names = _check_texts(checks)
        if not checks:
            return
        checked_state, checked_names = self._checked_state if self._checked_state is not None else (None, frozenset())
        if checked_state is not None and names <= checked_names and checked_state.schema_id == state.schema_id:
            if checked_state.ends == state.ends:  # no row was appended
                return
            if self._try_check_appended(checked_state, state, checks):
                return
        if not self._may_read_all:
            raise RevalidateError
        self.check_all(state, checks)

    def _try_check_appended(self, checked_state: TableState, state: TableState, checks: Sequence[Check]) -> bool:
        if any(
            not state.buckets[b].start <= log.end <= state.buckets[b].end for b, log in checked_state.buckets.items()
        ):
            return False
        ends = {
            bucket: OffsetRange(checked_state.buckets[bucket].end, log.end) for bucket, log in state.buckets.items()
        }
        appended = {bucket: offsets for bucket, offsets in ends.items() if offsets}
        try:
            if state.primary_key:
                # Deletes and pre-images are read too. Their rows were validated when they were written, so they violate
                # a constraint only if another row of this range does.
                columns = state.schema.select(_checked_columns(state, checks))
                tasks = tuple(LogScanTask(plan_whole_range(state, b, offsets)) for b, offsets in appended.items())
                self._require_satisfied(ScanPlan(self._table.name, self._table.uuid, columns, tasks), checks)
                self._checked_state = state, _check_texts(checks)
            else:
                self._checked_state = self._check_snapshot(ReadSnapshot(state, None, appended), checks)
        except ConstraintViolatedError:  # the rows may have been deleted since
            return False
        return True

    def _check_snapshot(
        self, snapshot: ReadSnapshot, checks: Sequence[Check]
    ) -> tuple[TableState, frozenset[tuple[str, str]]]:
        plan = plan_scan(self._table, snapshot, ScanRequest(_checked_columns(snapshot.state, checks))).plan(self._table)
        self._require_satisfied(plan, checks)
        return snapshot.state, _check_texts(checks)

    def _require_satisfied(self, plan: ScanPlan, checks: Sequence[Check]) -> None:
        counters = [ViolationCounter(check) for check in checks]
        for batch in read_batches(self._table, plan):
            for counter in counters:
                counter.add(batch)
        for counter in counters:
            counter.require_none(f"of {self._table.name}", "correct these rows first")


def _checked_columns(state: TableState, checks: Sequence[Check]) -> tuple[str, ...]:
    """Return the columns that the constraints use, in the table's order."""
    checked = frozenset[str]().union(*(check.condition.columns() for check in checks))
    return tuple(name for name in state.schema.names if name in checked)


def _check_texts(checks: Sequence[Check]) -> frozenset[tuple[str, str]]:
    return frozenset((check.name, check.text) for check in checks)
