"""Changes as rows: in the form of Spark's ``CHANGES``, with change type and commit, and of ``<table>$binlog``.

A key has at most one change per commit. If several writers share a commit record and change the same key, the net
change has the pre-image of the first and the post-image of the last. ``$binlog`` has one row per change of a
primary-key table, with its pre-image and post-image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import combine_chunks, take_rows
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.keys.keyed_batch import sort_by_key
from streamhouse_spark.log.segments.metadata_columns import (
    CHANGE_TYPE,
    CHANGELOG_FIELDS,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    LOG_OFFSET,
    NO_PLACE,
    change_type_names,
    with_fields,
)
from streamhouse_spark.log.segments.scan import split_by_size
from streamhouse_spark.read.commit_ranges import Bools, Int64Array
from streamhouse_spark.read.scan_tasks import ChangesScanTask, FileRowsScanTask, LogScanTask, VersionRowsScanTask

_NAMES = {
    ChangeType.INSERT: "insert",
    ChangeType.UPDATE_BEFORE: "update_preimage",
    ChangeType.UPDATE_AFTER: "update_postimage",
    ChangeType.DELETE: "delete",
}
_OF_ADDED = (ChangeType.INSERT, ChangeType.UPDATE_AFTER)
_OF_DELETED = (ChangeType.DELETE, ChangeType.UPDATE_BEFORE)
_BEFORE = "update_before"
_CHANGELOG_TYPES = ("insert", "update_after", "delete")
_BINLOG_TYPES = ("insert", "update", "delete")


def split_changes(task: ChangesScanTask, target_bytes: int) -> Iterator[ChangesScanTask]:
    """Split a large task, but never between changes that are reduced to a net change."""
    if not isinstance(task.rows, LogScanTask) or task.size_bytes <= target_bytes * 3 // 2:
        yield task
        return
    split, commits = task.rows.split, task.commits
    start = split.offsets.start
    for part in split_by_size(split, target_bytes):
        run = int(commits.find(np.array([part.offsets.end - 1], np.int64))[0])
        end = int(commits.ends[run]) if run >= 0 and commits.is_grouped[run] else part.offsets.end
        offsets = OffsetRange(start, max(start, end))
        if in_part := commits.within(offsets):
            segments = tuple(s for s in split.segments if s.offsets.intersect(offsets))
            yield replace(task, rows=LogScanTask(replace(split, offsets=offsets, segments=segments)), commits=in_part)
        start = offsets.end


def change_batches(
    task: ChangesScanTask, placed_batches: Iterable[tuple[Int64Array, pa.RecordBatch]], fields: Sequence[pa.Field]
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a task, metadata columns first.

    ``placed_batches`` has the rows in ascending order of their offsets. In a primary-key table the first column is the
    change type, and the columns of the task's ``key`` are included. Rows without an offset and net changes get the
    offset `NO_PLACE`.
    """
    commits = task.commits
    pending: list[tuple[int, pa.RecordBatch]] = []
    for offsets, batch in placed_batches:
        runs = commits.find(offsets)
        if not commits.is_grouped[runs].any():
            yield from _take_net_changes(task, pending, fields)
            yield from _commit_rows(task, runs, batch, fields, offsets)
            continue
        versions = np.where(commits.is_grouped[runs] & (runs >= 0), commits.versions[runs], -1)
        borders = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
        for first, last in pairwise(borders):
            version, part = int(versions[first]), batch.slice(first, last - first)
            if pending and pending[0][0] != version:
                yield from _take_net_changes(task, pending, fields)
            if version >= 0:
                pending.append((version, part))
            else:
                yield from _commit_rows(task, runs[first:last], part, fields, offsets[first:last])
    yield from _take_net_changes(task, pending, fields)


def _commit_rows(
    task: ChangesScanTask, runs: Int64Array, batch: pa.RecordBatch, fields: Sequence[pa.Field], offsets: Int64Array
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that belong to a commit, each as one change."""
    is_in_commit = runs >= 0
    if not is_in_commit.all():
        batch, runs, offsets = batch.filter(pa.array(is_in_commit)), runs[is_in_commit], offsets[is_in_commit]
    if batch.num_rows:
        commits = task.commits
        if isinstance(task.rows, FileRowsScanTask | VersionRowsScanTask):
            offsets = np.full(batch.num_rows, NO_PLACE, np.int64)
        of_rows = commits.versions[runs], commits.times_us[runs]
        yield _with_fields(task, batch, *of_rows, fields, offsets, updated=commits.is_updated[runs])


def _take_net_changes(
    task: ChangesScanTask, pending: list[tuple[int, pa.RecordBatch]], fields: Sequence[pa.Field]
) -> Iterator[pa.RecordBatch]:
    """Yield the net change of each key in the ``pending`` changes, which belong to one commit, and clear them."""
    if not pending:
        return
    version = pending[0][0]
    rows = net_changes([batch for _, batch in pending], task.key)
    pending.clear()
    time_us = task.commits.times_us[np.argmax(task.commits.versions == version)]
    for batch in rows.to_batches():
        numbers = np.full(batch.num_rows, version, np.int64), np.full(batch.num_rows, time_us, np.int64)
        yield _with_fields(task, batch, *numbers, fields, np.full(batch.num_rows, NO_PLACE, np.int64))


def net_changes(changes: Sequence[pa.RecordBatch], key: Sequence[str]) -> pa.Table:
    """Return the net change of each key, in key order.

    ``changes`` are in log order, with the change type as the first column. A row whose last post-image equals its first
    pre-image still has a change.
    """
    rows = pa.Table.from_batches(changes)
    kinds = rows.column(0).to_numpy()
    order, is_first = sort_by_key(encode_keys([combine_chunks(rows.column(name)) for name in key]))
    starts = np.flatnonzero(is_first)
    first, last = order[starts], order[np.append(starts[1:], len(order))[: len(starts)] - 1]
    has_before = np.isin(kinds[first], (ChangeType.UPDATE_BEFORE, ChangeType.DELETE))
    has_after = np.isin(kinds[last], (ChangeType.UPDATE_AFTER, ChangeType.INSERT))
    is_update = has_before & has_after
    before = np.where(is_update, ChangeType.UPDATE_BEFORE, ChangeType.DELETE)
    after = np.where(is_update, ChangeType.UPDATE_AFTER, ChangeType.INSERT)
    has_image = np.column_stack([has_before, has_after]).reshape(-1)
    types = np.column_stack([before, after]).reshape(-1).astype(np.int8)[has_image]
    net_rows = take_rows(rows, np.column_stack([first, last]).reshape(-1)[has_image])
    return net_rows.set_column(0, rows.schema.field(0), pa.array(types, pa.int8()))


def _with_fields(
    task: ChangesScanTask,
    batch: pa.RecordBatch,
    versions: Int64Array,
    times_us: Int64Array,
    fields: Sequence[pa.Field],
    offsets: Int64Array,
    *,
    updated: Bools | None = None,
) -> pa.RecordBatch:
    columns, schema = batch.columns, batch.schema
    default_kind, of_update = _OF_DELETED if task.is_deleted else _OF_ADDED
    kinds = np.full(batch.num_rows, default_kind, np.int8)
    if updated is not None:
        kinds[updated] = of_update
    if schema.names[:1] == [CHANGE_TYPE.name]:
        kinds, columns, schema = columns[0].to_numpy(), columns[1:], pa.schema(list(schema)[1:])
    values = {
        CHANGE_TYPE.name: lambda: (change_type_names() if task.is_changelog else _change_type_names()).take(
            pa.array(kinds)
        ),
        LOG_OFFSET.name: lambda: pa.array(offsets),
        COMMIT_VERSION.name: lambda: pa.array(versions),
        COMMIT_TIMESTAMP.name: lambda: pa.array(times_us).cast(COMMIT_TIMESTAMP.type),
    }
    arrays = [values[field.name]() for field in fields]
    return pa.RecordBatch.from_arrays([*arrays, *columns], schema=with_fields(fields, schema))


@cache
def _change_type_names() -> pa.Array:
    return pa.array([_NAMES[kind] for kind in sorted(ChangeType)])


def binlog_schema(schema: pa.Schema) -> pa.Schema:
    """Return the binlog schema: ``_change_type``, ``_log_offset``, ``_commit_timestamp``, ``before``, ``after``."""
    fields = [field.with_nullable(True) for field in schema]
    return pa.schema([*CHANGELOG_FIELDS, pa.field("before", pa.struct(fields)), pa.field("after", pa.struct(fields))])


def binlog_batches(changes: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert changes from the form of ``$changelog`` to the form of ``$binlog``, with one row per update.

    ``changes`` are sorted by bucket and offset, and ``schema`` has the columns of the table. An update has the offset
    of its post-image. ``before`` is null for inserts, and for updates if the changelog has no pre-images
    (``table.changelog.image`` WAL). ``after`` is null for deletes.
    """
    unpaired: pa.RecordBatch | None = None
    for batch in changes:
        if not batch.num_rows:
            continue
        rows = batch if unpaired is None else pa.concat_batches([unpaired, batch])
        unpaired = rows.slice(rows.num_rows - 1) if rows.column(0)[-1].as_py() == _BEFORE else None
        if unpaired is not None:
            rows = rows.slice(0, rows.num_rows - 1)
        if rows.num_rows:
            yield _pair_updates(rows, schema)


def _pair_updates(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    kinds = rows.column(0)
    is_before = pc.equal(kinds, _BEFORE).to_numpy(zero_copy_only=False)
    is_delete = pc.equal(kinds, "delete").to_numpy(zero_copy_only=False)
    last = np.flatnonzero(~is_before)  # the only row of an insert or delete, the second of an update
    is_update = pc.equal(kinds, "update_after").to_numpy(zero_copy_only=False)[last]
    has_before = is_update & np.where(last > 0, is_before[last - 1], False)
    deleted = is_delete[last]
    before = np.where(deleted, last, last - 1)
    columns = rows.columns[len(CHANGELOG_FIELDS) :]
    types = pc.index_in(kinds.take(pa.array(last)), value_set=pa.array(_CHANGELOG_TYPES))
    metadata = [
        pa.array(_BINLOG_TYPES).take(types).cast(CHANGE_TYPE.type),
        *(column.take(pa.array(last)) for column in rows.columns[1 : len(CHANGELOG_FIELDS)]),
    ]
    out = binlog_schema(schema)
    images = [
        _make_struct(columns, before, has_before | deleted, out.field("before").type),
        _make_struct(columns, last, ~deleted, out.field("after").type),
    ]
    return pa.RecordBatch.from_arrays([*metadata, *images], schema=out)


def _make_struct(
    columns: list[pa.Array], places: Int64Array, is_present: Bools, struct: pa.StructType
) -> pa.StructArray:
    indices = pa.array(np.where(is_present, places, 0), mask=~is_present)
    fields = [struct.field(i) for i in range(struct.num_fields)]
    return pa.StructArray.from_arrays([c.take(indices) for c in columns], fields=fields, mask=pa.array(~is_present))
