"""Rows of the log in the form of Spark's ``CHANGES``: each with its change type and commit.

A key has at most one change per commit. If several writers that share a record change the same key, the net change has
the pre-image of the first and the post-image of the last.

``<table>$binlog``: each change of a primary-key table as one row, with its pre-image and post-image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
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

    A row without an offset and a net change have the offset `NO_PLACE`. ``placed_batches`` has rows with their offsets,
    in ascending order. For a primary-key table the first column is the change type, and the columns of the task's
    ``key`` are included.
    """
    commits = task.commits
    waiting: list[tuple[int, pa.RecordBatch]] = []
    for offsets, batch in placed_batches:
        runs = commits.find(offsets)
        if not commits.is_grouped[runs].any():
            yield from _take_net_changes(task, waiting, fields)
            yield from _commit_rows(task, runs, batch, fields, offsets)
            continue
        versions = np.where(commits.is_grouped[runs] & (runs >= 0), commits.versions[runs], -1)
        borders = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
        for first, last in pairwise(borders):
            version, part = int(versions[first]), batch.slice(first, last - first)
            if waiting and waiting[0][0] != version:
                yield from _take_net_changes(task, waiting, fields)
            if version >= 0:
                waiting.append((version, part))
            else:
                yield from _commit_rows(task, runs[first:last], part, fields, offsets[first:last])
    yield from _take_net_changes(task, waiting, fields)


def _commit_rows(
    task: ChangesScanTask, runs: Int64Array, batch: pa.RecordBatch, fields: Sequence[pa.Field], offsets: Int64Array
) -> Iterator[pa.RecordBatch]:
    """Yield the rows at offsets of a commit, unchanged."""
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
    task: ChangesScanTask, waiting: list[tuple[int, pa.RecordBatch]], fields: Sequence[pa.Field]
) -> Iterator[pa.RecordBatch]:
    """Yield the net change of each key of the one commit whose changes are ``waiting``, and clear them."""
    if not waiting:
        return
    version = waiting[0][0]
    rows = net_changes([batch for _, batch in waiting], task.key)
    waiting.clear()
    time_us = task.commits.times_us[np.argmax(task.commits.versions == version)]
    for batch in rows.to_batches():
        numbers = np.full(batch.num_rows, version, np.int64), np.full(batch.num_rows, time_us, np.int64)
        yield _with_fields(task, batch, *numbers, fields, np.full(batch.num_rows, NO_PLACE, np.int64))


def net_changes(changes: Sequence[pa.RecordBatch], key: Sequence[str]) -> pa.Table:
    """Return the net change of each key, in key order, from changes in log order with the change type as first column.

    A row that ends up unchanged still counts as changed.
    """
    rows = pa.Table.from_batches(changes)
    kinds = rows.column(0).to_numpy()
    order, is_first = sort_by_key(encode_keys([combine_chunks(rows.column(name)) for name in key]))
    starts = np.flatnonzero(is_first)
    first, last = order[starts], order[np.append(starts[1:], len(order))[: len(starts)] - 1]
    was = np.isin(kinds[first], (ChangeType.UPDATE_BEFORE, ChangeType.DELETE))
    stays = np.isin(kinds[last], (ChangeType.UPDATE_AFTER, ChangeType.INSERT))
    is_update = was & stays
    before = np.where(is_update, ChangeType.UPDATE_BEFORE, ChangeType.DELETE)
    after = np.where(is_update, ChangeType.UPDATE_AFTER, ChangeType.INSERT)
    is_shown = np.column_stack([was, stays]).reshape(-1)
    types = np.column_stack([before, after]).reshape(-1).astype(np.int8)[is_shown]
    net_rows = take_rows(rows, np.column_stack([first, last]).reshape(-1)[is_shown])
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


Places = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_BEFORE = "update_before"
_KINDS = ("insert", "update", "delete")
_SHOWN = ("insert", "update_after", "delete")


def binlog_schema(schema: pa.Schema) -> pa.Schema:
    """Return the binlog schema: ``_change_type``, ``_log_offset``, ``_commit_timestamp``, ``before``, ``after``."""
    fields = [field.with_nullable(True) for field in schema]
    return pa.schema([*CHANGELOG_FIELDS, pa.field("before", pa.struct(fields)), pa.field("after", pa.struct(fields))])


def binlog_batches(changes: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Pair pre-images and post-images of changes in the form of ``$changelog``, bucket by bucket in offset order.

    An update has the offset of its post-image. ``before`` is null for inserts, and for updates of a table whose
    changelog has no pre-images (``table.changelog.image`` WAL). ``after`` is null for deletes. ``schema`` is the
    table's.
    """
    waiting: pa.RecordBatch | None = None
    for batch in changes:
        if not batch.num_rows:
            continue
        rows = batch if waiting is None else _concat_changes(waiting, batch)
        waiting = rows.slice(rows.num_rows - 1) if rows.column(0)[-1].as_py() == _BEFORE else None
        if waiting is not None:
            rows = rows.slice(0, rows.num_rows - 1)
        if rows.num_rows:
            yield _pair_updates(rows, schema)


def _concat_changes(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([first, second])


def _pair_updates(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    kinds = rows.column(0)
    is_before = pc.equal(kinds, _BEFORE).to_numpy(zero_copy_only=False)
    is_delete = pc.equal(kinds, "delete").to_numpy(zero_copy_only=False)
    shown = np.flatnonzero(~is_before)
    is_update = pc.equal(kinds, "update_after").to_numpy(zero_copy_only=False)[shown]
    has_before = is_update & np.where(shown > 0, is_before[shown - 1], False)
    before = np.where(is_delete[shown], shown, shown - 1)
    deleted = is_delete[shown]
    columns = rows.columns[len(CHANGELOG_FIELDS) :]
    shown_kinds = kinds.take(pa.array(shown))
    metadata = [
        pa.array(_KINDS).take(pc.index_in(shown_kinds, value_set=pa.array(_SHOWN))).cast(CHANGE_TYPE.type),
        *(column.take(pa.array(shown)) for column in rows.columns[1 : len(CHANGELOG_FIELDS)]),
    ]
    out = binlog_schema(schema)
    images = [
        _make_struct(columns, before, has_before | deleted, out.field("before").type),
        _make_struct(columns, shown, ~deleted, out.field("after").type),
    ]
    return pa.RecordBatch.from_arrays([*metadata, *images], schema=out)


def _make_struct(
    columns: list[pa.Array], places: Places, is_present: BoolArray, struct: pa.StructType
) -> pa.StructArray:
    indices = pa.array(np.where(is_present, places, 0), mask=~is_present)
    fields = [struct.field(i) for i in range(struct.num_fields)]
    return pa.StructArray.from_arrays([c.take(indices) for c in columns], fields=fields, mask=pa.array(~is_present))
