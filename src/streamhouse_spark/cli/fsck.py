"""``verify``: checks that all files of a table exist, are intact and are consistent. Changes nothing.

Garbage collection may run concurrently: a metadata file is a problem only if it is missing and was not deleted by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial

import numpy as np

from streamhouse_spark.config.table_properties import BRANCH
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import (
    checkpoint_hint_key,
    checkpoint_key,
    commit_key,
    commits_prefix,
    may_have_external_log,
    parse_numbers,
)
from streamhouse_spark.errors import (
    CorruptDataError,
    DifferentHistoryError,
    LakeMismatchError,
    LakeRolledBackError,
    ObjectNotFoundError,
    SnapshotExpiredError,
    StreamhouseError,
    TableNotFoundError,
    WarehouseMovedError,
    count_of,
)
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.file_access import open_lake_files
from streamhouse_spark.lake.parquet.reader import FileWithOffsets, has_whole_footer, read_file_offsets
from streamhouse_spark.lake.snapshot_history import newest_snapshot, require_drops_applied
from streamhouse_spark.lake.tiering.plan import require_progress
from streamhouse_spark.lake.types import LakePlan, LakeSplit
from streamhouse_spark.log.archive.pages import read_page
from streamhouse_spark.log.catalog.log_locations import log_locations_of
from streamhouse_spark.log.checkpoint import (
    list_checkpoints,
    parse_hint,
    read_checkpoint,
    read_hint,
    read_hinted_state,
    read_tagged,
)
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.reader import verify_segment
from streamhouse_spark.log.state import CHANGE_COLUMN, BucketLog, TableState, TaggedVersion
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import url_of
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.versioning.tags import list_segments

Advance = Callable[[int], None]
"""A callback with the number of segments or lake rows that were checked since the previous call."""
_REWRITTEN = "reads do not need it, and the next checkpoint rewrites it"


@dataclass(slots=True)
class Verification:
    """Counts of the verified objects, and the problems."""

    table: str
    segments: int = 0
    segment_bytes: int = 0
    log_rows: int = 0
    lake_snapshot_id: int | None = None
    lake_rows: int = 0
    lake_footers: int = 0
    """Lake files whose footer and page index match their checksum."""
    lake_footers_unchecked: int = 0
    """Lake files without a checksum, from other engines or older versions."""
    problems: list[str] = field(default_factory=list)


def verify_log(table: Table, state: TableState, result: Verification, advance: Advance) -> None:
    """Verify the checksums, row counts and offsets of live and archived segments, and the owner of a log elsewhere."""
    result.problems.extend(_owner_problems(table))
    for bucket, log in state.buckets.items():
        result.problems.extend(describe_gaps(bucket, log))
        result.log_rows += len(log.offsets)
    log_segments = [(s, state.written_schema(s.schema_id)) for s in state.live_segments()]
    kv_segments = [(s, state.schemas[s.schema_id]) for kv in state.snapshots.values() for s in kv.segments]
    for segment, schema in (*log_segments, *kv_segments, *iter_archived_segments(table, state, result)):
        try:
            verify_segment(table.storage, table.uuid, segment, schema.arrow)
        except CorruptDataError as error:
            result.problems.append(str(error))
        result.segments += 1
        result.segment_bytes += segment.size_bytes
        advance(1)


def iter_archived_segments(
    table: Table, state: TableState, result: Verification
) -> Iterator[tuple[Segment, TableSchema]]:
    """Yield the segments of the change archive with their schemas."""
    for page in state.archive.pages:
        try:
            content = read_page(table.storage, state, page.uuid)
        except CorruptDataError as error:
            result.problems.append(str(error))
            continue
        for segment in content.segments:
            yield segment, TableSchema((CHANGE_COLUMN, *content.schemas[segment.schema_id].columns))


def verify_branches(table: Table, result: Verification) -> None:
    """Verify the logs of the table's branches, and add their problems to ``result``."""
    for branch in table.branches():
        branch_result = Verification(f"{table.name}$branch_{branch.name}")
        try:
            opened = table.branch(branch.name)
            verify_log(opened, opened.state, branch_result, lambda _: None)
        except (CorruptDataError, TableNotFoundError) as error:
            branch_result.problems.append(str(error))
        result.problems.extend(f"{branch_result.table}: {problem}" for problem in branch_result.problems)


def _owner_problems(table: Table) -> Iterator[str]:
    places = log_locations_of(table.storage)
    try:
        if places is not None and may_have_external_log(table.uuid):
            places.require_owned(table.uuid)
    except (CorruptDataError, WarehouseMovedError) as error:
        yield str(error)


def describe_gaps(bucket: int, log: BucketLog) -> Iterator[str]:
    """Describe the offsets of a bucket that its segments do not contain."""
    expected = log.start
    for position, segment in enumerate(log.segments):
        # The first segment may begin before the start: trimming moves only the start.
        if segment.base_offset != expected and not (position == 0 and segment.base_offset < log.start):
            yield f"bucket {bucket}: a segment starts at {segment.base_offset}, expected {expected}"
        expected = segment.end_offset
    if expected != log.end:
        yield f"bucket {bucket}: the segments end at {expected}, expected {log.end}"


def open_lake_plan(table: Table, state: TableState, result: Verification) -> LakePlan | None:
    """Plan a read of the recorded lake snapshot; None if nothing was tiered, or the snapshot is unreadable."""
    if state.has_lake and BRANCH not in state.properties and not _matches_log(table, state, result):
        return None
    if state.lake is None:
        return None
    result.lake_snapshot_id = state.lake.snapshot_id
    for bucket, log in state.buckets.items():
        offset = state.lake_offset(bucket)
        if not log.start <= offset <= log.end:
            result.problems.append(f"bucket {bucket}: the lake ends at {offset}, outside the hot log's {log.offsets}")
    try:
        lake = table.open_lake()
        _check_offsets(lake, state, result)
        return lake.plan_read(snapshot_id=state.lake.snapshot_id, schema=state.schema)
    except (CorruptDataError, LakeMismatchError, LakeRolledBackError, SnapshotExpiredError) as error:
        result.problems.append(str(error))
        return None


def _matches_log(table: Table, state: TableState, result: Verification) -> bool:
    """Return whether log and lake have the same history. They differ if only one of them was restored."""
    try:
        newest = newest_snapshot(table.log, table.open_lake())
        require_drops_applied(state, newest)
        if state.lake is not None:
            require_progress(state.lake.offsets, newest.offsets if newest is not None else {}, table=state.name)
    except (CorruptDataError, DifferentHistoryError, LakeMismatchError, LakeRolledBackError) as error:
        result.problems.append(str(error))
        return False
    return True


def _check_offsets(lake: LakeTable, state: TableState, result: Verification) -> None:
    """Compare the offsets in the lake snapshot with the offsets that the log records for the snapshot."""
    assert state.lake is not None
    snapshot = lake.snapshot(state.lake.snapshot_id)
    if not state.begins_at(snapshot.starts):
        result.problems.append(
            f"lake snapshot {snapshot.id} starts at offsets {dict(snapshot.starts)}, expected the offsets of the last "
            f"truncation, {dict(state.first_offsets)}"
        )
    held = snapshot.offsets
    for bucket in state.buckets:
        if held.get(bucket, 0) != state.lake_offset(bucket):
            result.problems.append(
                f"bucket {bucket}: lake snapshot {state.lake.snapshot_id} holds offsets up to {held.get(bucket, 0)}, "
                f"expected {state.lake_offset(bucket)} as in the log"
            )


def verify_lake(table: Table, state: TableState, plan: LakePlan, result: Verification, advance: Advance) -> None:
    """Read every row of the recorded snapshot, and count one row per tiered offset that was not dropped.

    Rows of other engines have no offsets and are not counted. The lake of a primary-key table has at most one row per
    change.
    """
    lake, offset_rows = table.open_lake(), _OffsetRows(table)
    _check_footers(table, [*plan.splits, *_newest_splits(lake, state, plan, result)], result)
    for split in plan.splits:
        try:
            num_rows = 0
            for batch in lake.read_split(split, plan.projection):
                num_rows += batch.num_rows
                advance(batch.num_rows)
            result.lake_rows += num_rows
            if not state.primary_key:
                offset_rows.add(split.location, num_rows)
        except (CorruptDataError, SnapshotExpiredError) as error:
            if str(error) not in result.problems:
                result.problems.append(str(error))
    tiered = sum(state.lake_offset(bucket) - state.first_offset(bucket) for bucket in state.buckets)
    snapshot = plan.snapshot
    dropped = snapshot.dropped_rows - snapshot.dropped_without_offsets if snapshot is not None else 0
    if state.primary_key:
        adopts = table.properties.datalake_adopted is not None and not state.first_offsets  # rows without changes
        num_rows, is_wrong = result.lake_rows, result.lake_rows > tiered and not adopts
    else:
        num_rows, is_wrong = offset_rows.num_rows, offset_rows.num_rows < tiered - dropped
        result.problems.extend(offset_rows.problems(state, result.lake_snapshot_id))
    if is_wrong:
        result.problems.append(
            f"lake snapshot {result.lake_snapshot_id} has {count_of(num_rows, 'row')}, expected "
            f"{count_of(tiered, 'tiered offset')}" + (f" without {dropped} in dropped partitions" if dropped else "")
        )


def _newest_splits(lake: LakeTable, state: TableState, plan: LakePlan, result: Verification) -> Sequence[LakeSplit]:
    """Return the splits of the latest snapshot, which other engines read, if it is not the recorded snapshot."""
    newest = lake.newest()
    if newest is None or (plan.snapshot is not None and newest.id == plan.snapshot.id):
        return ()
    try:
        return lake.plan_read(snapshot_id=newest.id, schema=state.schema).splits
    except CorruptDataError as error:
        result.problems.append(str(error))
    except (LakeMismatchError, SnapshotExpiredError):
        pass  # another engine's snapshot, or expired during the check
    return ()


def _check_footers(table: Table, splits: Sequence[LakeSplit], result: Verification) -> None:
    """Verify the footer and the page index of each file, where a bit flip can hide rows without an error."""

    def check(location: str) -> bool | str:
        try:
            return has_whole_footer(open_lake_files(table.storage, table.settings, location), location)
        except (CorruptDataError, SnapshotExpiredError) as error:
            return str(error)

    names = list(dict.fromkeys(name for split in splits for name in _split_files(split)))
    outcomes = list(parallel_map(check, names))
    result.lake_footers += sum(outcome is True for outcome in outcomes)
    result.lake_footers_unchecked += sum(outcome is False for outcome in outcomes)
    result.problems.extend(outcome for outcome in outcomes if isinstance(outcome, str))


def _split_files(split: LakeSplit) -> Iterator[str]:
    yield from [split.location] if split.merge is None else (file.location for file in split.merge.files)
    yield from split.position_deletes


class _OffsetRows:
    """Counts the rows with offsets in the lake of a log table, and checks that each offset occurs once."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._files: dict[str, FileWithOffsets | None] = {}
        self.num_rows = 0

    def add(self, location: str, num_rows: int) -> None:
        """Count ``num_rows`` rows of a data file, which may be read in several parts.

        Files without offsets are not counted. Raises the errors of a read.
        """
        if location not in self._files:
            files = open_lake_files(self._table.storage, self._table.settings, location)
            self._files[location] = read_file_offsets(files, location, self._table.uuid)
        if self._files[location] is not None:
            self.num_rows += num_rows

    def problems(self, state: TableState, snapshot_id: int | None) -> Iterator[str]:
        for bucket in state.buckets:
            runs = [f.runs.offsets() for f in self._files.values() if f is not None and f.bucket == bucket]
            offsets = np.concatenate(runs) if runs else np.zeros(0, np.int64)
            where = f"bucket {bucket}: lake snapshot {snapshot_id}"
            if (doubled := len(offsets) - len(np.unique(offsets))) > 0:
                yield f"{where} has {count_of(int(doubled), 'duplicate offset')}"
            outside = np.count_nonzero((offsets < state.first_offset(bucket)) | (offsets >= state.lake_offset(bucket)))
            if outside:
                yield f"{where} has {count_of(int(outside), 'offset')} outside its range"


def metadata_problems(table: Table, state: TableState) -> Iterator[str]:
    """Yield damaged and missing metadata files of the log."""
    yield from _record_problems(table, state)
    yield from _checkpoint_problems(table, state)
    yield from _hint_problems(table)
    for name, tag in sorted(state.tags.items()):
        yield from (f"tag '{name}': {problem}" for problem in _tag_problems(table, state, tag))


def lake_metadata_problems(table: Table) -> Iterator[str]:
    """Yield damaged and missing lake metadata other than that of the recorded snapshot."""
    try:
        yield from table.open_lake().metadata_problems()
    except StreamhouseError as error:
        yield str(error)


def _record_problems(table: Table, state: TableState) -> Iterator[str]:
    listed = parse_numbers(table.storage.list_names(commits_prefix(table.uuid)))
    first = max(table.log.refresh_low_watermark(), 1 if not state.former_uuids else min(listed, default=1))
    missing = partial(_missing_record, table)
    yield from _problems(
        range(first, state.version + 1), lambda number: read_record(table.storage, table.uuid, number), missing
    )


def _missing_record(table: Table, number: int) -> str | None:
    if number < table.log.refresh_low_watermark():
        return None  # deleted concurrently
    return f"{url_of(table.storage, commit_key(table.uuid, number))} is missing; restore it"


def _checkpoint_problems(table: Table, state: TableState) -> Iterator[str]:
    numbers = list_checkpoints(table.storage, table.uuid)
    yield from _problems(
        [number for number in numbers if number <= state.version],
        lambda number: read_checkpoint(table.storage, table.uuid, number),
        lambda _: None,  # deleted concurrently
    )


def _hint_problems(table: Table) -> Iterator[str]:
    numbers = list_checkpoints(table.storage, table.uuid)
    hint = read_hint(table.storage, table.uuid)
    where = url_of(table.storage, checkpoint_hint_key(table.uuid))
    if not hint:
        if numbers:
            yield f"{where} is missing; {_REWRITTEN}"
        return
    named = parse_hint(hint)
    has_state = b"\n" in hint
    if (named is None and not has_state) or (has_state and read_hinted_state(hint, table.uuid) is None):
        yield f"{where} is unreadable; {_REWRITTEN}"
    elif named is not None and named not in list_checkpoints(table.storage, table.uuid):
        key = checkpoint_key(table.uuid, named)
        if parse_hint(read_hint(table.storage, table.uuid)) == named:
            yield f"{url_of(table.storage, key)} is missing, and the hint names it; {_REWRITTEN}"


def _tag_problems(table: Table, state: TableState, tag: TaggedVersion) -> Iterator[str]:
    try:
        tagged = read_tagged(table.storage, table.uuid, tag.version, tag.uuid)
    except StreamhouseError as error:
        yield str(error)
        return
    checked = {(segment.uuid, segment.part) for segment in state.kept_segments()}  # verified by `verify_log`
    snapshot = take_latest_snapshot(tagged)
    kv_segments = {(segment.uuid, segment.part) for base in snapshot.bases.values() for segment in base.segments}
    for segment in list_segments(snapshot):
        part = segment.uuid, segment.part
        if segment.uuid is None or part in checked:
            continue
        schema_of = tagged.schemas.__getitem__ if part in kv_segments else tagged.written_schema
        try:
            verify_segment(table.storage, table.uuid, segment, schema_of(segment.schema_id).arrow)
        except StreamhouseError as error:
            yield str(error)
    if tag.lake_snapshot is not None:
        try:
            table.open_lake(tagged).plan_read(snapshot_id=tag.lake_snapshot, schema=tagged.schema)
        except StreamhouseError as error:
            yield str(error)


def _problems(
    numbers: Sequence[int], read: Callable[[int], object], missing: Callable[[int], str | None]
) -> Iterable[str]:
    """Return the errors of reading each number, and the result of ``missing`` for numbers that do not exist."""

    def problem(number: int) -> str | None:
        try:
            read(number)
        except ObjectNotFoundError:
            return missing(number)
        except StreamhouseError as error:
            return str(error)
        return None

    return filter(None, parallel_map(problem, numbers))
