"""Refresh of a materialized view in steps from one set of source versions to the next, apart from its computation.

**Commit point:** the record in the view's table with the changed rows, whose transaction has the new lineage. After a
crash before it, the next refresh starts from the same versions. Of two concurrent refreshes only one commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from streamhouse_spark.config.table_properties import CHANGELOG_IMAGE, VIEW, ViewDefinition
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError, DifferentHistoryError
from streamhouse_spark.log import actions as act
from streamhouse_spark.log.archive.pages import find_usable_archive, first_change_offsets, read_pages
from streamhouse_spark.log.commit_reader import LOGGED_ACTIONS
from streamhouse_spark.log.deletion_vectors import DeleteRows
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.record import Record, iter_records
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import REFRESHES, Lineage, SourceVersion, find_stored_version
from streamhouse_spark.schema.partitioning import SetPartitioning
from streamhouse_spark.storage.prefetch import Prefetch
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.upsert import PrimaryKeyTable

RECORDS_MAX: Final = 10_000
"""If a source has more records between two versions, the view is recomputed."""
IDLE_RECORDS_MAX: Final = 200
"""After as many records without rows, an empty refresh is recorded, so that the next refresh reads fewer records."""


@dataclass(frozen=True, slots=True)
class RefreshStep:
    """A step of a view to later versions of its sources."""

    number: int
    """Number of the refresh, one more than that of the last refresh."""
    old: Lineage | None
    """The source versions of the last refresh; None before the first, or if they are unknown."""
    new: Lineage

    @property
    def changed(self) -> frozenset[str]:
        """The sources with new rows."""
        before = {source.name: source.ends for source in self.old.sources} if self.old else {}
        return frozenset(source.name for source in self.new.sources if before.get(source.name) != source.ends)

    def full_refresh(self, because: str) -> RefreshStep:
        """Return the step as a full refresh, for the reason ``because``."""
        return RefreshStep(self.number, self.old, Lineage(self.new.sources, because))


@dataclass(frozen=True, slots=True)
class ViewLag:
    """The commits, rows and changes that are missing from a view."""

    commits: Mapping[str, int]
    """Source → number of missing commits, including commits of which a part is missing."""
    rows: Mapping[str, int]
    """Source → number of missing rows, or of missing changes of a primary-key table."""
    oldest_ms: int | None
    """Store time of the oldest missing change that the log retains; None if no change is missing."""


def last_refresh(state: TableState) -> tuple[int, Lineage | None]:
    """Return the number and lineage of the last refresh; 0 and None before the first."""
    entry = state.transactions.get(REFRESHES)
    number = find_stored_version(state.transactions, state.past_transactions, REFRESHES) or 0
    text = entry.batch.fingerprint if entry is not None and entry.batch is not None else None
    if entry is None or text is None or (state.truncation is not None and state.truncation.commit > entry.commit):
        return number, None
    return number, Lineage.from_text(text)


def make_next_step(
    view: TableHandle, sources: Mapping[str, TableHandle], *, is_full: bool = False, because: str | None = None
) -> RefreshStep | None:
    """Return the step to the latest source versions; None if the view is up to date.

    With ``is_full`` or a reason ``because``, it is a full refresh.
    """
    number, old = last_refresh(view.refresh())
    states = {name: source.refresh() for name, source in sources.items()}
    new = tuple(source_version(name, state) for name, state in states.items())
    if because is None:
        because = full_refresh_reason(old, sources, states) or ("mode is full" if is_full else None)
    step = RefreshStep(number + 1, old, Lineage(new, because))
    if old is not None and not step.changed and because in (None, "mode is full"):
        old_versions = {source.name: source.version for source in old.sources}
        if all(source.version - old_versions[source.name] < IDLE_RECORDS_MAX for source in new):
            return None
    return step


def commit_step(view: TableHandle, step: RefreshStep, rows: pa.Table, removed: pa.Array | pa.ChunkedArray) -> bool:
    """Write the rows of a step and delete the ``removed`` keys. If a key has both, the row is written.

    Returns False if a concurrent refresh committed first, so that nothing was changed. Raises `SchemaMismatchError` if
    a key is written twice.
    """
    deleted = np.asarray(removed.to_numpy(zero_copy_only=False), np.bool_) if len(removed) else np.zeros(0, np.bool_)
    try:
        PrimaryKeyTable(view).change(rows, deleted, transaction=step.new.transaction(step.number))
    except DifferentHistoryError:
        if last_refresh(view.refresh())[0] < step.number:
            raise
        return False
    return True


def compute_lag(lineage: Lineage, states: Mapping[str, TableState]) -> ViewLag:
    """Return the lag of a view with this lineage behind the states of its sources."""
    commits, rows, times_ms = {}, {}, []
    for source in lineage.sources:
        now = states[source.name]
        is_same = now.table_uuid == source.uuid
        ends = source.ends if is_same else {}
        rows[source.name] = sum(max(0, end - ends.get(bucket, 0)) for bucket, end in now.ends.items())
        commits[source.name] = _count_missing_commits(source, now) if is_same else now.version
        times_ms += _missing_times_ms(source, now) if is_same else [now.created_ms]
    return ViewLag(commits, rows, min(times_ms, default=None))


def _count_missing_commits(source: SourceVersion, now: TableState) -> int:
    """Count the commits after a source version, including commits of which a part is missing."""
    if not source.is_cut:
        return max(0, now.version - source.version)
    first = min((segment.commit for segment in _find_missing_segments(source, now)), default=source.version)
    return max(1, now.version - min(first, source.version) + 1)


def _find_missing_segments(source: SourceVersion, now: TableState) -> list[Segment]:
    """Return the first retained segment of each bucket with rows that are missing from the view."""
    first_segments = (
        next((s for s in log.segments if s.end_offset > source.ends.get(bucket, 0)), None)
        for bucket, log in now.buckets.items()
    )
    return [segment for segment in first_segments if segment is not None]


def _missing_times_ms(source: SourceVersion, now: TableState) -> list[int]:
    """Return the times of missing changes: of the oldest rows of each bucket, of a truncation, and of deletions."""
    times_ms = [segment.first_time_ms for segment in _find_missing_segments(source, now)]
    if now.truncation is not None and now.truncation.commit > source.version:
        times_ms.append(now.truncation.time_ms)
    times_ms += [deletion.time_ms for deletion in now.deletions if deletion.commit > source.version]
    return times_ms


def pause_refreshes(view: TableHandle) -> bool:
    """Pause the refreshes of a view by services, until `resume_refreshes`. Returns False if it was already paused.

    Manual refreshes still work, and a refresh in progress may still commit. **Commit point:** one record in the view's
    table, which services read before each refresh. Raises `InvalidOptionError` for a table that is not a view, and
    `TableNotFoundError`.
    """
    return _set_paused(view, paused=True)


def resume_refreshes(view: TableHandle) -> bool:
    """Resume the refreshes of a view by services. Returns False if it was not paused; see `pause_refreshes`."""
    return _set_paused(view, paused=False)


def _set_paused(view: TableHandle, *, paused: bool) -> bool:
    def plan(state: TableState, _time_ms: int) -> Sequence[act.Action]:
        view.require_not_dropped(state)
        definition = ViewDefinition.of(state.properties, state.name)
        if definition.paused == paused:
            return ()
        return (act.SetProperties({VIEW: replace(definition, paused=paused).to_text()}),)

    committed = view.log.commit(plan)
    return committed.wrote


def source_version(name: str, state: TableState) -> SourceVersion:
    """Return the source version that contains all rows of a state."""
    tiered = state.recorded_lake
    dropped = tiered.dropped_rows if tiered is not None else 0
    return SourceVersion(name, state.table_uuid, state.version, state.attempt, state.ends, dropped)


def full_refresh_reason(
    old: Lineage | None, sources: Mapping[str, TableHandle], states: Mapping[str, TableState]
) -> str | None:
    """Return why a full refresh is needed; None if the view can be refreshed from the changes since ``old``."""
    if old is None:
        return "there is no earlier refresh"
    old_sources = {source.name: source for source in old.sources}
    if old_sources.keys() != sources.keys():
        return "the query reads other tables than before"
    for name, source in sources.items():
        if reason := _source_refresh_reason(source, old_sources[name], states[name]):
            return f"{name} {reason}"
    return None


def _source_refresh_reason(source: TableHandle, version: SourceVersion, now: TableState) -> str | None:
    if version.uuid != now.table_uuid:
        return "was dropped and recreated"
    if version.attempt is not None:
        try:
            source.log.require_history([HistoryPoint(version.version, version.attempt)], "a view was refreshed")
        except DifferentHistoryError:
            return "was restored from an older copy"
    if any(now.buckets[bucket].end < end for bucket, end in version.ends.items()):
        return "was restored from an older copy"
    has_images = now.properties.get(CHANGELOG_IMAGE, "full").strip().lower() == "full"
    if now.primary_key and not has_images and version.ends != now.ends:
        return "has no pre-images of updates (table.changelog.image)"
    if now.version - version.version > RECORDS_MAX:
        return f"has more than {RECORDS_MAX} commits since"
    records = _read_records(source, version.version, now.version)
    if records is None and (records := _records_after_archive(source, version, now)) is None:
        return "no longer retains the records of its changes"
    starts = first_change_offsets(now)
    if any(starts[bucket] > end for bucket, end in version.ends.items()) and now.primary_key:
        return "no longer retains all changes since, because its log was trimmed"
    return _unlogged_change(records, version, now)


def _unlogged_change(records: Sequence[Record], version: SourceVersion, now: TableState) -> str | None:
    """Describe the first action of the records that changed rows without a change in the log; None if there is none."""
    loses_by_trimming = not now.primary_key and not now.has_lake
    has_other_losses = not _lost_only_logged_rows(records, version, now)
    for record in records:
        for action in record.actions:
            if isinstance(action, act.TieredSnapshot) and not has_other_losses:
                continue
            if loses_by_trimming and isinstance(action, act.Trim):
                return f"was trimmed by commit {record.number}, and has no lake with the rows"
            # A rebuilt lake has lost trimmed rows, and rows of dropped partitions may return.
            if isinstance(action, act.ResetLake) and (action.starts or not now.primary_key):
                return f"had its lake rebuilt by commit {record.number}"
            if reason := _describe_action(action, version):
                return f"{reason} by commit {record.number}"
    return None


def _lost_only_logged_rows(records: Sequence[Record], version: SourceVersion, now: TableState) -> bool:
    """Return whether the log records every deletion that the lake applied after ``version``.

    That is so if no partition was dropped and the lake was not reset since. False for a table without a lake.
    """
    if now.lake is None or any(isinstance(action, act.ResetLake) for record in records for action in record.actions):
        return False
    dropped = now.dropped_rows
    return dropped.newest <= version.version and now.lake.dropped_rows <= dropped.accounted


def _read_records(source: TableHandle, after: int, newest: int) -> Sequence[Record] | None:
    """Return the records after ``after`` up to ``newest``; None if some are no longer retained."""
    records = []
    try:
        for record in iter_records(Prefetch(source.storage), source.uuid, after + 1):
            if record.number > newest:
                break
            records.append(record)
    except CorruptDataError:  # also if a manifest was cleaned between two reads
        return None
    if len(records) < newest - after or (records and source.log.refresh_low_watermark() > after + 1):
        return None
    return records


def _records_after_archive(source: TableHandle, version: SourceVersion, now: TableState) -> Sequence[Record] | None:
    """Return the records after the change archive, if the archive has all commits between the version and them.

    None if it does not, or if an archived commit changed more than rows.
    """
    archive = find_usable_archive(now)
    pages = [page for page in archive.pages if page.last_commit > version.version]
    archived_through = version.version
    for page, content in zip(pages, read_pages(source.storage, now, [page.uuid for page in pages]), strict=True):
        if content.complete_from > archived_through + 1 or any(number > version.version for number in content.altered):
            return None
        archived_through = page.last_commit
    tiered = now.recorded_lake
    if archived_through == version.version or (tiered is not None and tiered.dropped_rows > version.dropped_rows):
        return None
    return _read_records(source, archived_through, now.version)


def _describe_action(action: act.Action, version: SourceVersion) -> str | None:
    if isinstance(action, act.TieredSnapshot):
        return "lost a partition" if action.dropped_rows > version.dropped_rows else None
    if isinstance(action, LOGGED_ACTIONS):
        return None
    if isinstance(action, act.Truncate):
        return "was truncated or overwritten"
    if isinstance(action, DeleteRows):
        return "had rows deleted without a recorded change"
    if isinstance(action, act.SetSchema):
        return "had its columns changed"
    if isinstance(action, SetPartitioning):
        return "had its partitioning changed"
    return f"was changed ({type(action).__name__})"
