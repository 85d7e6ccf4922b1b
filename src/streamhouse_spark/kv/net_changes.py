"""The net changes of a batch: rows of the changelog, and values for the tablet. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core import arrow_chunking
from streamhouse_spark.core.fork_safety import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import encode_lmdb_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch, KeyedRows, RowsTooLargeError
from streamhouse_spark.kv.merge_engines import MergeEngine
from streamhouse_spark.kv.value_codec import LookedUpValues, ValueFormat, to_bytes_list


@dataclass(frozen=True, slots=True)
class _Packed:
    """Values of part of a batch, one per key, some of them changed."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    exists: npt.NDArray[np.bool_]
    is_changed: npt.NDArray[np.bool_]

    def items(self) -> Iterator[tuple[bytes, bytes | None]]:
        values: list[bytes | None] = [*to_bytes_list(self.values)]
        for deleted in np.flatnonzero(~self.exists).tolist():
            values[deleted] = None
        return compress(zip(encode_lmdb_keys(self.keys), values, strict=True), self.is_changed.tolist())


class EncodedRows:
    """Stored key → its new value, None for a deleted key.

    The map is built on first use, mostly after the write returned: for 100,000 values it takes as long as the changes.
    """

    def __init__(self, parts: Sequence[_Packed]) -> None:
        self.parts = tuple(parts)

    @classmethod
    def concat(cls, parts: Sequence[EncodedRows]) -> EncodedRows:
        return cls([part for encoded in parts for part in encoded.parts])

    @cached_property
    def by_key(self) -> Mapping[bytes, bytes | None]:
        return dict(chain.from_iterable(part.items() for part in self.parts))


@dataclass(frozen=True, slots=True)
class Changes:
    """The net changes of a batch in one bucket: at most one per key, in key order.

    An ``update_before`` directly precedes its ``update_after``. An unchanged row has no change.
    """

    types: npt.NDArray[np.int8]
    """A `ChangeType` for each row of the changelog."""
    columns: tuple[arrow_chunking.Column, ...]
    """All columns of the table; chunked if they are larger than a slice."""
    values: EncodedRows | None
    """The values for the tablet; None for a blind write."""

    def __len__(self) -> int:
        return len(self.types)


def make_blind_changes(batch: KeyedBatch) -> Changes:
    """Return changes that write the last row of each key of ``batch``, which has no deletions, without reading stored
    rows.

    Each is an ``update_after``, whether or not the key is new or the row differs.
    """
    last = batch.ends - 1
    is_each = len(last) == len(batch.deleted)
    columns = tuple(c if is_each else arrow_chunking.take_values(c, last, distinct=True) for c in batch.columns)
    return Changes(np.full(len(batch), ChangeType.UPDATE_AFTER, np.int8), columns, None)


def compute_changes(
    batch: KeyedBatch,
    engine: MergeEngine,
    values: ValueFormat,
    old_values: Sequence[bytes | None],
    *,
    before_images: bool = True,
) -> Changes:
    """Compute the changes that ``batch`` makes to the stored values of its keys, piece by piece.

    Without ``before_images`` updates have no ``update_before`` (``table.changelog.image`` WAL). Raises
    `RowsTooLargeError` if the rows of one key are too large, or become so.
    """
    lengths = arrow_chunking.value_lengths(old_values)
    parts_changes = []
    for first, piece in batch.pieces(lengths):
        part = slice(first, first + len(piece))
        stored = LookedUpValues.of(old_values[part], lengths[part])
        parts_changes.append(_compute_piece(piece, engine, values, stored, before_images=before_images))
    if len(parts_changes) == 1:
        return parts_changes[0]
    columns = zip(*(part.columns for part in parts_changes), strict=True)
    return Changes(
        np.concatenate([part.types for part in parts_changes]),
        tuple(arrow_chunking.concat_columns(parts, parts[0].type) for parts in columns),
        EncodedRows.concat([part.values for part in parts_changes if part.values is not None]),
    )


def _compute_piece(
    batch: KeyedBatch,
    engine: MergeEngine,
    values: ValueFormat,
    stored: LookedUpValues,
    *,
    before_images: bool,
) -> Changes:
    old = values.unpack_stored(stored)
    new = engine.merge(batch, old)
    _require_row_size(batch, new)
    packed = values.pack_array(new.columns)
    differs = pc.not_equal(values.repack(stored, old), packed).to_numpy(zero_copy_only=False)
    changed = np.where(new.exists, differs | ~old.exists, old.exists)
    types, places = _order_changes(np.flatnonzero(changed), old, new, before_images=before_images)
    columns = tuple(
        pa.concat_arrays([before, after]).take(places) for before, after in zip(old.columns, new.columns, strict=True)
    )
    return Changes(types, columns, EncodedRows([_Packed(batch.keys, packed, new.exists, changed)]))


def _require_row_size(batch: KeyedBatch, new: KeyedRows) -> None:
    """Raise `RowsTooLargeError` for a merged row that is too large.

    A partial update or an aggregation may produce a larger row than those that came in.
    """
    if sum(column.nbytes for column in new.columns) > arrow_chunking.ROW_BYTES_MAX:
        sizes = sum((arrow_chunking.estimate_row_bytes(c) for c in new.columns), start=np.zeros(len(batch), np.int64))
        if (largest := int(sizes.max())) > arrow_chunking.ROW_BYTES_MAX:
            raise RowsTooLargeError(int(batch.starts[np.argmax(sizes)]), largest)


def _order_changes(
    keys: npt.NDArray[np.int64], old: KeyedRows, new: KeyedRows, *, before_images: bool
) -> tuple[npt.NDArray[np.int8], pa.Array]:
    """Return the type of each row of the changelog, and its index in the old rows followed by the new ones."""
    was, stays = old.exists[keys], new.exists[keys]
    first = np.where(was, np.where(stays, ChangeType.UPDATE_BEFORE, ChangeType.DELETE), ChangeType.INSERT)
    second = np.full(len(keys), ChangeType.UPDATE_AFTER)
    old_place, new_place = keys, keys + len(old.exists)
    types = np.column_stack([first, second]).reshape(-1).astype(np.int8)
    places = np.column_stack([np.where(was, old_place, new_place), new_place]).reshape(-1)
    updated = was & stays
    shown = np.column_stack([~updated | before_images, updated]).reshape(-1)
    return types[shown], pa.array(places[shown])
