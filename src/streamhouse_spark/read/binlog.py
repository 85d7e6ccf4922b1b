"""``<table>$binlog``: each change of a primary-key table as one row, with its pre-image and post-image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE, CHANGELOG_FIELDS

Places = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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


def _make_struct(columns: list[pa.Array], places: Places, is_present: Bools, struct: pa.StructType) -> pa.StructArray:
    indices = pa.array(np.where(is_present, places, 0), mask=~is_present)
    fields = [struct.field(i) for i in range(struct.num_fields)]
    return pa.StructArray.from_arrays([c.take(indices) for c in columns], fields=fields, mask=pa.array(~is_present))
