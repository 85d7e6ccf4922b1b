"""Steps of a refresh: the source versions that a commit of a view reads if there are more than ``step_rows`` new rows.

A view is the result of its query over the source versions in its lineage, and any combination of versions is correct.
So a step may read versions before the latest. For a primary-key table, such a version is the state after a commit. A
log table whose rows all have offsets is read at its latest version, up to chosen end offsets. These are the ends of a
commit if possible, otherwise offsets within a commit. This needs no older state, so steps can also read rows that were
tiered and trimmed long ago.

Sources advance one after another, the source with the fewest rows first. So small tables are complete before rows of
large tables are joined with them, and most steps read changes of a single source.

Every step reads rows that no earlier step read, or all remaining rows, so the sequence of steps ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamhouse_spark.config.table_properties import ADOPTED, NOTHING_ADOPTED
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.errors import OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.log.archive.pages import first_change_offsets
from streamhouse_spark.log.history import find_latest_state_within, require_retained_segments
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan, scan_tiered_snapshot
from streamhouse_spark.table.refresh_commit import RefreshStep, full_refresh_reason, source_version
from streamhouse_spark.table.versioning.tags import list_segments
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.views.local_reads import max_num_rows

Ends = Mapping[int, int]
"""Bucket → the offset after the last row."""

EXPIRED_ERRORS: Final = (OffsetsTrimmedError, SnapshotExpiredError)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The next step of a refresh."""

    step: RefreshStep
    rows_left: int
    """Number of rows for later steps; 0 for a step to the latest versions."""


def choose_step(
    step: RefreshStep, sources: Mapping[str, TableHandle], step_rows: int | None, goal: Lineage | None = None
) -> PlannedStep:
    """Return the next step towards the latest versions: ``step`` itself, or a step of about ``step_rows`` source rows.

    The step reads more rows if there is no readable version in between. Rows up to ``goal`` are read first, so that
    concurrent appends cannot prevent a source from reaching the goal. A step that recomputes a view starts at the
    offsets that the view contains, so it never removes rows. Raises `CorruptDataError`, `StorageError`.
    """
    if step_rows is None:
        return PlannedStep(step, 0)
    progress = {new.name: _SourceProgress(step, new, sources[new.name], goal) for new in step.new.sources}
    if sum(source.num_rows for source in progress.values()) <= step_rows:
        return PlannedStep(step, 0)
    if goal is not None and not any(source.num_rows_to_goal for source in progress.values()):
        return choose_step(step, sources, step_rows)
    versions: dict[str, SourceVersion] = {}
    for name, share in allocate_rows(
        {name: source.num_rows_to_goal for name, source in progress.items()}, step_rows
    ).items():
        has_moved = any(progress[other].count_rows(version.ends) > 0 for other, version in versions.items())
        versions[name] = progress[name].choose_version(share, must_move=share > 0 and not has_moved)
    new = tuple(versions[source.name] for source in step.new.sources)
    rows_left = sum(progress[source.name].count_rows(source.ends) for source in step.new.sources)
    rows_left -= sum(progress[source.name].count_rows(source.ends) for source in new)
    if rows_left <= 0:
        return PlannedStep(step, 0)
    return PlannedStep(RefreshStep(step.number, step.old, Lineage(new, step.new.whole_because)), rows_left)


def covers(lineage: Lineage, goal: Lineage) -> bool:
    """Return whether each source was read at least up to the offsets of ``goal``.

    A source that is now another table of the same name counts as read.
    """
    its = {source.name: source for source in lineage.sources}
    return all(
        source.name in its
        and (
            its[source.name].uuid != source.uuid
            or all(its[source.name].ends.get(bucket, 0) >= end for bucket, end in source.ends.items())
        )
        for source in goal.sources
    )


def allocate_rows(left: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return source → number of rows to read, the smallest source first. At most one source is read partially."""
    rows = {}
    for name in sorted(left, key=lambda name: (left[name], name)):
        rows[name] = min(left[name], limit)
        limit -= rows[name]
    return rows


def allocate_ends(starts: Ends, ends: Ends, limit: int) -> dict[int, int]:
    """Return end offsets ``limit`` rows after ``starts``, divided between the buckets in proportion to their rows."""
    total = sum(end - starts[bucket] for bucket, end in ends.items())
    chosen_ends, before, assigned = {}, 0, 0
    for bucket, end in sorted(ends.items()):
        before += end - starts[bucket]
        up_to = before * min(limit, total) // max(1, total)
        chosen_ends[bucket] = starts[bucket] + up_to - assigned
        assigned = up_to
    return chosen_ends


class _SourceProgress:
    def __init__(self, step: RefreshStep, new: SourceVersion, table: TableHandle, goal: Lineage | None) -> None:
        self._new, self._table, self._state = new, table, table.state
        self._is_whole = step.new.whole_because is not None
        old_sources = {source.name: source for source in step.old.sources} if step.old is not None else {}
        old = old_sources.get(new.name)
        self._old = old if old is not None and old.uuid == new.uuid else None
        first = first_offsets(self._state)
        old_ends = self._old.ends if self._old is not None else {}
        self._starts = {
            bucket: min(max(first[bucket], old_ends.get(bucket, 0)), end) for bucket, end in new.ends.items()
        }
        self._goal_ends = dict(new.ends)
        for end in goal.sources if goal is not None else ():
            if (end.name, end.uuid) == (new.name, new.uuid):
                self._goal_ends = {
                    b: max(start, min(end.ends.get(b, 0), new.ends[b])) for b, start in self._starts.items()
                }
        self.num_rows = self._count(new.ends)
        """Number of rows that the view does not contain: changes of a primary-key table, or for a full refresh its rows
        if there are fewer.
        """
        self.num_rows_to_goal = self._count(self._goal_ends)
        """The part of ``num_rows`` up to the goal."""

    def _count(self, ends: Ends) -> int:
        rows = self.count_rows(ends)
        return min(rows, max_num_rows(self._state)) if self._is_whole and self._state.primary_key else rows

    def count_rows(self, ends: Ends) -> int:
        """Count the rows up to ``ends`` that the view does not contain."""
        return sum(end - self._starts[bucket] for bucket, end in ends.items() if bucket in self._starts)

    def choose_version(self, limit: int, *, must_move: bool) -> SourceVersion:
        """Return a version with about ``limit`` more rows. With ``must_move`` it has at least one more row."""
        if limit >= self.num_rows:
            return self._new
        if self._is_dense():
            ends = self._ends_of_commit(limit) if limit else None
            ends = ends or allocate_ends(self._starts, self._goal_ends, limit)
            return replace(self._new, ends=dict(ends), is_cut=ends != self._new.ends)
        if self._old is not None and not self._is_whole and not limit:
            return self._old
        return self._choose_commit(limit, must_move=must_move)

    # -- by offsets -----------------------------------------------------------------------------------------------

    def _is_dense(self) -> bool:
        """Return whether the latest version has a row for every offset, so that it can be read up to any offset."""
        from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets  # few refreshes need this module

        state = self._state
        if state.primary_key or state.deletions or state.dropped_rows.named or state.version != self._new.version:
            return False
        if state.properties.get(ADOPTED, NOTHING_ADOPTED) != NOTHING_ADOPTED:
            return False
        if state.lake is None:
            return True
        of_log = sum(end - state.first_offset(bucket) for bucket, end in state.lake.offsets.items())
        if state.lake.dropped_rows:
            return False
        try:
            scan = scan_tiered_snapshot(self._table, take_latest_snapshot(state), ScanRequest(state.schema.names[:1]))
        except EXPIRED_ERRORS:
            return False
        rows = [file.num_live if parse_file_offsets(file.location) is not None else None for file in scan.files]
        return None not in rows and sum(filter(None, rows)) == of_log  # rows of other engines have no offsets

    def _ends_of_commit(self, limit: int) -> Ends | None:
        """Return the ends of the latest commit with at most ``limit`` more rows, or None if there is no such commit."""

        def is_before(state: TableState) -> bool:
            begins_elsewhere = state.first_offsets != self._state.first_offsets
            return begins_elsewhere or any(state.ends[bucket] < start for bucket, start in self._starts.items())

        def is_within(state: TableState) -> bool:
            return is_before(state) or self.count_rows(state.ends) <= limit

        newest, _ = find_latest_state_within(self._table.log, self._table.storage, self._state, is_within)
        return newest.ends if newest is not None and not is_before(newest) and self.count_rows(newest.ends) else None

    # -- by versions ----------------------------------------------------------------------------------------------

    def _choose_commit(self, limit: int, *, must_move: bool) -> SourceVersion:
        def is_within(state: TableState) -> bool:
            return not self._is_reachable(state) or self._rows_read(state) <= limit

        within, beyond = find_latest_state_within(self._table.log, self._table.storage, self._state, is_within)
        if within is not None and not (self._is_reachable(within) and (self._is_whole or self.count_rows(within.ends))):
            within = None
        if within is None and self._old is not None and not self._is_whole and not must_move:
            return self._old
        for candidate in (within, beyond):
            if candidate is not None and self._is_readable(candidate):
                return self._to_source_version(candidate)
        _, oldest = find_latest_state_within(
            self._table.log,
            self._table.storage,
            self._state,
            lambda state: not self._is_reachable(state) or not self._is_readable(state),
        )
        return self._to_source_version(oldest)

    def _rows_read(self, state: TableState) -> int:
        rows = self.count_rows(state.ends)
        return min(rows, max_num_rows(state)) if self._is_whole and state.primary_key else rows

    def _is_reachable(self, state: TableState) -> bool:
        """Return whether a refresh can follow changes from the view to this state, and then to the latest state."""
        now = self._state
        if (state.schema_id, state.first_offsets, state.former_partitionings) != (
            now.schema_id,
            now.first_offsets,
            now.former_partitionings,
        ):
            return False
        if self._old is not None and state.version <= self._old.version:
            return False
        if any(state.ends[bucket] < start for bucket, start in self._starts.items()):
            return False
        retained_starts = first_change_offsets(now) if now.primary_key else {}
        return all(state.ends[bucket] >= start for bucket, start in retained_starts.items())

    def _is_readable(self, state: TableState) -> bool:
        try:
            snapshot = take_latest_snapshot(state)
            require_retained_segments(self._table.log, state, list_segments(snapshot))
            plan_scan(self._table, snapshot, ScanRequest(state.schema.names[:1]))
        except EXPIRED_ERRORS:
            return False
        return True

    def _to_source_version(self, state: TableState) -> SourceVersion:
        """Return a state as a source version. Returns the latest version if the changes between them are incomplete.

        Otherwise the next step would have to recompute the full query again.
        """
        version = source_version(self._new.name, state)
        sources, states = {version.name: self._table}, {version.name: self._state}
        if self._is_whole and full_refresh_reason(Lineage((version,)), sources, states) is not None:
            return self._new
        return version


def first_offsets(state: TableState) -> dict[int, int]:
    """Return bucket → first offset with a row. Without a lake, trimmed rows do not exist any more."""
    if state.primary_key or state.lake is not None:
        return {bucket: state.first_offset(bucket) for bucket in state.buckets}
    return {bucket: log.start for bucket, log in state.buckets.items()}
