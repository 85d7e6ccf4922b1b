"""The net changes of a batch: the rows of the changelog, and the values for a tablet. Pure."""

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
from streamhouse_spark.kv.value_codec import StoredValues, ValueFormat, bytes_of


@dataclass(frozen=True, slots=True)
class _Packed:
    """Values of a piece of a batch, one a key, of which some are changed."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    exists: npt.NDArray[np.bool_]
    is_changed: npt.NDArray[np.bool_]

    def items(self) -> Iterator[tuple[bytes, bytes | None]]:
        values: list[bytes | None] = [*bytes_of(self.values)]
        for deleted in np.flatnonzero(~self.exists).tolist():
            values[deleted] = None
        return compress(zip(encode_lmdb_keys(self.keys), values, strict=True), self.is_changed.tolist())


class EncodedRows:
    """Stored key → its value from now on, None where it is deleted.

    They become a map when it is asked for, which is mostly behind the answer of a write: a map of 100,000 values takes
    as long to make as the changes themselves.
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
    """The net changes of a batch in one bucket: at most one for each key, in the order of the keys.

    An ``update_before`` stands directly before its ``update_after``. A key whose row stays as it is has no change.
    """

    types: npt.NDArray[np.int8]
    """A `ChangeType` for each row of the changelog."""
    columns: tuple[arrow_chunking.Column, ...]
    """All columns of the table; in chunks where they are larger than a slice."""
    values: EncodedRows | None
    """The values for a tablet; None where the stored rows were not looked at."""

    def __len__(self) -> int:
        return len(self.types)


def make_blind_changes(batch: KeyedBatch) -> Changes:
    """Write the last row of each key of ``batch``, which deletes none, over a stored row that nobody looked at.

    Each is an ``update_after``, whether its key is new or not, and whether the row differs or not.
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
    """Compute the changes that ``batch`` makes to the rows of its keys, whose stored values are given, piece by piece.

    Without ``before_images`` updates have no ``update_before`` (``table.changelog.image`` WAL). Raises
    `RowsTooLargeError` where the rows of one key are too large, or would become so.
    """
    lengths = arrow_chunking.value_lengths(old_values)
    parts_changes = []
    for first, piece in batch.pieces(lengths):
        part = slice(first, first + len(piece))
        stored = StoredValues.of(old_values[part], lengths[part])
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
    stored: StoredValues,
    *,
    before_images: bool,
) -> Changes:
    old = values.unpack_stored(stored)
    new = engine.merge(batch, old)
    _require_row_size(batch, new)
    packed = values.pack_array(new.columns)
    differs = pc.not_equal(values.repack(stored, old), packed).to_numpy(zero_copy_only=False)
    changed = np.where(new.there, differs | ~old.there, old.there)
    types, places = _order_changes(np.flatnonzero(changed), old, new, before_images=before_images)
    columns = tuple(
        pa.concat_arrays([before, after]).take(places) for before, after in zip(old.columns, new.columns, strict=True)
    )
    return Changes(types, columns, EncodedRows([_Packed(batch.keys, packed, new.there, changed)]))


def _require_row_size(batch: KeyedBatch, new: KeyedRows) -> None:
    """Raise `RowsTooLargeError` where a merged row is too large: a partial update or an aggregation may make it larger
    than each row that came in.
    """
    if sum(column.nbytes for column in new.columns) > arrow_chunking.ROW_BYTES_MAX:
        sizes = sum((arrow_chunking.row_bytes(c) for c in new.columns), start=np.zeros(len(batch), np.int64))
        if (largest := int(sizes.max())) > arrow_chunking.ROW_BYTES_MAX:
            raise RowsTooLargeError(int(batch.starts[np.argmax(sizes)]), largest)


def _order_changes(
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
