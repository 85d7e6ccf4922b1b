"""The net changes of a batch: the rows of the changelog, and the values for a tablet. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core import slicing
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import stored_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch, KeyedRows, RowsTooLargeError
from streamhouse_spark.kv.merge_engines import MergeEngine
from streamhouse_spark.kv.value_format import ValueFormat


@dataclass(frozen=True, slots=True)
class Changes:
    """The net changes of a batch in one bucket: at most one for each key, in the order of the keys.

    An ``update_before`` stands directly before its ``update_after``. A key whose row stays as it is has no change.
    """

    types: npt.NDArray[np.int8]
    """A `ChangeType` for each row of the changelog."""
    columns: tuple[slicing.Column, ...]
    """All columns of the table; in chunks where they are larger than a slice."""
    values: dict[bytes, bytes | None] | None
    """Stored key → its value from now on, None where it is deleted; no map where the stored rows were not looked at."""

    def __len__(self) -> int:
        return len(self.types)


def unseen_changes(batch: KeyedBatch) -> Changes:
    """Write the last row of each key of ``batch``, which deletes none, over a stored row that nobody looked at.

    Each is an ``update_after``, whether its key is new or not, and whether the row differs or not.
    """
    last = batch.ends - 1
    is_each = len(last) == len(batch.deleted)
    columns = tuple(c if is_each else slicing.taken(c, last, distinct=True) for c in batch.columns)
    return Changes(np.full(len(batch), ChangeType.UPDATE_AFTER, np.int8), columns, None)


def changes_of(
    batch: KeyedBatch,
    engine: MergeEngine,
    values: ValueFormat,
    old_values: Sequence[bytes | None],
    *,
    before_images: bool = True,
) -> Changes:
    """Compute the changes that ``batch`` makes to the rows of its keys, whose stored values are given, piece by piece.

    Without ``before_images`` updates have no ``update_before`` (``table.changelog.image`` WAL). Raises
    `RowsTooLargeError` where the rows of one key are too large, or would become so.
    """
    found = [
        _changes_of(piece, engine, values, old_values[first : first + len(piece)], before_images=before_images)
        for first, piece in batch.pieces(slicing.value_lengths(old_values))
    ]
    if len(found) == 1:
        return found[0]
    columns = zip(*(part.columns for part in found), strict=True)
    return Changes(
        np.concatenate([part.types for part in found]),
        tuple(slicing.chunked(parts, parts[0].type) for parts in columns),
        dict(chain.from_iterable(part.values.items() for part in found if part.values is not None)),
    )


def _changes_of(
    batch: KeyedBatch,
    engine: MergeEngine,
    values: ValueFormat,
    old_values: Sequence[bytes | None],
    *,
    before_images: bool,
) -> Changes:
    old = values.unpack(old_values)
    new = engine.merged(batch, old)
    _require_small(batch, new)
    new_values: list[bytes | None] = [*values.pack(new.columns)]
    for gone in np.flatnonzero(~new.there).tolist():
        new_values[gone] = None
    changed = np.fromiter(map(operator.ne, values.repacked(old_values, old), new_values), np.bool_, len(batch))
    types, places = _in_order(np.flatnonzero(changed), old, new, before_images=before_images)
    columns = tuple(
        pa.concat_arrays([before, after]).take(places) for before, after in zip(old.columns, new.columns, strict=True)
    )
    news = zip(stored_keys(batch.keys), new_values, strict=True)
    return Changes(types, columns, dict(compress(news, changed.tolist())))


def _require_small(batch: KeyedBatch, new: KeyedRows) -> None:
    """Raise `RowsTooLargeError` where a merged row is too large: a partial update or an aggregation may make it larger
    than each row that came in.
    """
    if sum(column.nbytes for column in new.columns) > slicing.ROW_BYTES_MAX:
        sizes = sum((slicing.row_bytes(c) for c in new.columns), start=np.zeros(len(batch), np.int64))
        if (largest := int(sizes.max())) > slicing.ROW_BYTES_MAX:
            raise RowsTooLargeError(int(batch.starts[np.argmax(sizes)]), largest)


def _in_order(
    keys: npt.NDArray[np.int64], old: KeyedRows, new: KeyedRows, *, before_images: bool
) -> tuple[npt.NDArray[np.int8], pa.Array]:
    """Return the type of each row of the changelog, and its index among the old rows followed by the new ones."""
    was, stays = old.there[keys], new.there[keys]
    first = np.where(was, np.where(stays, ChangeType.UPDATE_BEFORE, ChangeType.DELETE), ChangeType.INSERT)
    second = np.full(len(keys), ChangeType.UPDATE_AFTER)
    old_place, new_place = keys, keys + len(old.there)
    types = np.column_stack([first, second]).reshape(-1).astype(np.int8)
    places = np.column_stack([np.where(was, old_place, new_place), new_place]).reshape(-1)
    updated = was & stays
    shown = np.column_stack([~updated | before_images, updated]).reshape(-1)
    return types[shown], pa.array(places[shown])
