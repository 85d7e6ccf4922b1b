"""Computes the changes of a bucket from a batch and the stored rows, and stages them for one position of the bucket.

Changes become visible when a record names them. The commit compares `StagedChanges.at` with the position of the bucket.
In a group commit, `WriteOverlay` layers the rows of earlier plans of the record over the stored rows. If the record is
not stored, these rows do not exist. Changes that are computed from them are therefore valid only in that record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, compress
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.config.table_properties import INSERT_EXISTING
from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.arrow_rows import ROW_BYTES_MAX
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import cached_property, parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.expressions.check_constraints import Check, require_constraints
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import encode_lmdb_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch, KeyedRows, RowsTooLargeError
from streamhouse_spark.kv.log_replay import KeyedLayout, belongs_to_table, catch_up
from streamhouse_spark.kv.merge_engines import MergeEngine
from streamhouse_spark.kv.primary_key_properties import KeyedProperties
from streamhouse_spark.kv.row_codec import LookedUpValues, ValueCodec, to_bytes_list
from streamhouse_spark.kv.tablet import Tablet
from streamhouse_spark.log.append_commit import is_retained
from streamhouse_spark.log.segments.multi_bucket_writer import group_into_objects, stage_shared_object
from streamhouse_spark.log.segments.writer import SegmentOptions, StagedSegment, stage_inline
from streamhouse_spark.log.staging import INLINE_BYTES_MAX, inline_bytes_per_bucket
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage

BucketPosition = tuple[int, int]
"""The first offset of a bucket since the last truncation, and its end. Equal positions of a table mean equal rows."""
EMPTY_POSITION: Final[BucketPosition] = (0, 0)
"""The first position of every bucket. A bucket is empty if both offsets are equal."""


class OverlayMissError(Exception):
    """An earlier plan of the record has changes that are unknown here: retry after the record is stored."""


@dataclass(frozen=True, slots=True)
class WriteOverlay:
    """Values by bucket and key after the earlier plans of a record."""

    stored: TableState
    """The latest stored state."""
    _ends: dict[int, int] = field(default_factory=dict)
    _values: dict[int, dict[bytes, bytes | None] | None] = field(default_factory=dict)
    """Bucket → values by key, or None for a bucket whose values are unknown. The value of a deleted row is None."""

    def __contains__(self, bucket: int) -> bool:
        return bucket in self._ends

    def add(self, bucket: int, offsets: OffsetRange, values: Mapping[bytes, bytes | None] | None) -> None:
        """Add the changes of the latest plan. Adding the same changes again has no effect."""
        if not offsets:
            return
        self._ends[bucket] = offsets.end
        bucket_values = self._values.setdefault(bucket, {})
        if values is None or bucket_values is None:
            self._values[bucket] = None
        else:
            bucket_values.update(values)

    def overlay_values(
        self, bucket: int, end: int, keys: Sequence[bytes], stored_values: list[bytes | None]
    ) -> list[bytes | None]:
        """Return the values of ``keys`` at the bucket's ``end`` in the record, based on their ``stored_values``.

        Raises `OverlayMissError`.
        """
        changed = self._values.get(bucket, {})
        if changed is None or self._ends.get(bucket, self.stored.buckets[bucket].end) != end:
            raise OverlayMissError
        if not changed:
            return stored_values
        return [changed.get(key, value) for key, value in zip(keys, stored_values, strict=True)]


@dataclass(frozen=True, slots=True)
class _PackedValues:
    """The values of the keys of a part of a batch. Some values are unchanged."""

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

    The map is built on first use, usually after the write returned. For 100,000 values this takes as long as computing
    the changes.
    """

    def __init__(self, parts: Sequence[_PackedValues]) -> None:
        self.parts = tuple(parts)

    @classmethod
    def concat(cls, parts: Sequence[EncodedRows]) -> EncodedRows:
        return cls([part for encoded in parts for part in encoded.parts])

    @cached_property
    def by_key(self) -> Mapping[bytes, bytes | None]:
        return dict(chain.from_iterable(part.items() for part in self.parts))


@dataclass(frozen=True, slots=True)
class NetChanges:
    """The net changes of a batch in one bucket, in key order. A key has at most one change, an unchanged row has none.

    An ``update_before`` directly precedes its ``update_after``.
    """

    types: npt.NDArray[np.int8]
    """A `ChangeType` for each row of the changelog."""
    columns: tuple[arrow_rows.Column, ...]
    """All columns of the table; chunked if they are large."""
    values: EncodedRows | None
    """The values for the tablet; None for a blind write."""

    def __len__(self) -> int:
        return len(self.types)


def make_blind_changes(batch: KeyedBatch) -> NetChanges:
    """Return an ``update_after`` for the last row of each key of a batch without deletions.

    Stored rows are not read, so this includes new keys and unchanged rows.
    """
    last = batch.ends - 1
    is_each = len(last) == len(batch.deleted)
    columns = tuple(c if is_each else arrow_rows.take_values(c, last, distinct=True) for c in batch.columns)
    return NetChanges(np.full(len(batch), ChangeType.UPDATE_AFTER, np.int8), columns, None)


def compute_changes(
    batch: KeyedBatch,
    engine: MergeEngine,
    values: ValueCodec,
    old_values: Sequence[bytes | None],
    *,
    before_images: bool = True,
) -> NetChanges:
    """Compute the changes that ``batch`` makes to the stored values of its keys, piece by piece.

    Without ``before_images`` updates have no ``update_before`` (``table.changelog.image`` WAL). Raises
    `RowsTooLargeError` if the rows of one key, or their merged row, are too large.
    """
    lengths = arrow_rows.value_lengths(old_values)
    parts_changes = []
    for first, piece in batch.pieces(lengths):
        part = slice(first, first + len(piece))
        stored = LookedUpValues.of(old_values[part], lengths[part])
        parts_changes.append(_compute_piece(piece, engine, values, stored, before_images=before_images))
    if len(parts_changes) == 1:
        return parts_changes[0]
    columns = zip(*(part.columns for part in parts_changes), strict=True)
    return NetChanges(
        np.concatenate([part.types for part in parts_changes]),
        tuple(arrow_rows.concat_columns(parts, parts[0].type) for parts in columns),
        EncodedRows.concat([part.values for part in parts_changes if part.values is not None]),
    )


def _compute_piece(
    batch: KeyedBatch,
    engine: MergeEngine,
    values: ValueCodec,
    stored: LookedUpValues,
    *,
    before_images: bool,
) -> NetChanges:
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
    return NetChanges(types, columns, EncodedRows([_PackedValues(batch.keys, packed, new.exists, changed)]))


def _require_row_size(batch: KeyedBatch, new: KeyedRows) -> None:
    """Raise `RowsTooLargeError` for a merged row that is too large.

    A partial update or an aggregation may produce a larger row than its input rows.
    """
    if sum(column.nbytes for column in new.columns) > arrow_rows.ROW_BYTES_MAX:
        sizes = sum((arrow_rows.estimate_row_bytes(c) for c in new.columns), start=np.zeros(len(batch), np.int64))
        if (largest := int(sizes.max())) > arrow_rows.ROW_BYTES_MAX:
            raise RowsTooLargeError(int(batch.starts[np.argmax(sizes)]), largest)


def _order_changes(
    keys: npt.NDArray[np.int64], old: KeyedRows, new: KeyedRows, *, before_images: bool
) -> tuple[npt.NDArray[np.int8], pa.Array]:
    """Return the type of each row of the changelog, and its index in the old rows followed by the new rows."""
    was, stays = old.exists[keys], new.exists[keys]
    first = np.where(was, np.where(stays, ChangeType.UPDATE_BEFORE, ChangeType.DELETE), ChangeType.INSERT)
    second = np.full(len(keys), ChangeType.UPDATE_AFTER)
    old_place, new_place = keys, keys + len(old.exists)
    types = np.column_stack([first, second]).reshape(-1).astype(np.int8)
    places = np.column_stack([np.where(was, old_place, new_place), new_place]).reshape(-1)
    updated = was & stays
    shown = np.column_stack([~updated | before_images, updated]).reshape(-1)
    return types[shown], pa.array(places[shown])


class StaleStateError(Exception):
    """Another process applied changes that are later than the planned state: refresh the state and retry."""


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Staged changes of a bucket."""

    at: BucketPosition
    """Position of the bucket at which the changes are valid."""
    segment: StagedSegment | None
    """None if there are no changes."""
    values: EncodedRows | None
    """The changes as tablet values; None if another process computed them, or the stored rows were not read."""
    staged_ms: int
    """Store time when staging began."""
    is_blind: bool = False
    """Whether the changes are valid at every position, because the stored rows were not read."""

    def is_committable(self, state: TableState, time_ms: int) -> bool:
        """Return whether a record at this time may name the segment, see `log.append_commit.is_retained`."""
        return self.segment is None or is_retained(state, [self.segment.segment.uuid], self.staged_ms, time_ms)

    @property
    def offsets(self) -> OffsetRange:
        num_changes = self.segment.segment.num_rows if self.segment is not None else 0
        return OffsetRange(self.at[1], self.at[1] + num_changes)


@dataclass(frozen=True, slots=True)
class PreparedChanges:
    """Changes of a bucket that another process staged for the committing process, which validates them.

    They are the net changes of all rows of the write in the bucket, computed with this schema and these properties.
    """

    bucket: int
    at: BucketPosition
    segment: StagedSegment | None
    schema_id: int
    properties: KeyedProperties
    staged_ms: int
    """Store time when staging began."""
    is_blind: bool = False
    """See `StagedChanges`."""

    def matches_schema(self, schema_id: int, properties: KeyedProperties) -> bool:
        """Return whether the changes were computed with this schema and these properties."""
        return (self.schema_id, self.properties) == (schema_id, properties)

    def is_valid_at(self, state: TableState, at: BucketPosition, time_ms: int) -> bool:
        """Return whether a record at ``time_ms`` may add the changes at the bucket position ``at``.

        False if the bucket's rows differ from the rows that were read, or maintenance may have deleted the file.
        """
        has_rows, had_rows = at[0] < at[1], self.at[0] < self.at[1]
        if (has_rows or had_rows) and at != self.at and not self.is_blind:
            return False
        return self.at_position(at).is_committable(state, time_ms)

    def at_position(self, at: BucketPosition) -> StagedChanges:
        return StagedChanges(at, self.segment, None, self.staged_ms, self.is_blind)


@dataclass(frozen=True, slots=True)
class ChangeStager:
    """Computes and stages the changes of batches to one primary-key table, with one of its schemas."""

    storage: Storage
    world: World
    options: SegmentOptions
    layout: KeyedLayout
    engine: MergeEngine
    tablet_of: Callable[[int], Tablet]
    """Returns this host's tablet of a bucket."""
    before_images: bool = True
    checks: tuple[Check, ...] = ()
    """Constraints on the merged rows with defaults."""

    @property
    def reads_whole_buckets(self) -> bool:
        """Whether the changes of a bucket depend on all its rows, not only on the rows with the batch's keys."""
        return False

    def stage(
        self,
        batches: Mapping[int, KeyedBatch],
        places: Mapping[int, BucketPosition],
        state: TableState,
        overlay: WriteOverlay | None = None,
    ) -> dict[int, StagedChanges]:
        """Stage the changes that ``batches`` make to their buckets at the positions ``places``.

        If ``state`` includes attempts that are not stored yet, ``overlay`` has their changes. The changes are durable
        when this returns, or small enough for the record. Raises `ConstraintViolatedError` and `OverlayMissError`.
        Raises `StaleStateError`, `OffsetsTrimmedError` or `StorageError` if rows cannot be read or stored.
        """
        staged_ms = self.storage.now_ms()
        changes = {
            bucket: self._compute_changes(bucket, batches[bucket], state, at, overlay) for bucket, at in places.items()
        }
        for bucket_changes in changes.values() if self.checks else ():
            self._require_checked(bucket_changes, state.name)
        segments = self._stage_segments(
            {bucket: bucket_changes for bucket, bucket_changes in changes.items() if len(bucket_changes)}, state
        )
        return {
            bucket: StagedChanges(
                places[bucket],
                segments.get(bucket),
                bucket_changes.values,
                staged_ms,
                is_blind=bucket_changes.values is None,
            )
            for bucket, bucket_changes in changes.items()
        }

    def _compute_changes(
        self, bucket: int, batch: KeyedBatch, state: TableState, at: BucketPosition, overlay: WriteOverlay | None
    ) -> NetChanges:
        if self._is_blind_write(batch):
            return make_blind_changes(batch)
        values: list[bytes | None] = [None] * len(batch)
        if at[0] != at[1]:
            keys, stored = encode_lmdb_keys(batch.keys), state if overlay is None else overlay.stored
            if state is stored or may_have_rows(bucket_position(stored, bucket)):
                values = self._read_values(bucket, keys, stored)
            if overlay is not None:
                values = overlay.overlay_values(bucket, at[1], keys, values)
        self._require_new(batch, values, state)
        try:
            return compute_changes(batch, self.engine, self.layout.values, values, before_images=self.before_images)
        except RowsTooLargeError as error:
            raise SchemaMismatchError(
                f"table {state.name}: the rows of one primary key in bucket {bucket}, in the batch and the table, have "
                f"{error.num_bytes} bytes, expected at most {ROW_BYTES_MAX}; nothing was written, store large values "
                "in parts, or write rows of one key in several batches"
            ) from None

    def _require_checked(self, changes: NetChanges, table: str) -> None:
        """Raise `ConstraintViolatedError` for a row that violates a constraint, before anything is stored."""
        stays = (changes.types == ChangeType.INSERT) | (changes.types == ChangeType.UPDATE_AFTER)
        rows = pa.Table.from_arrays(list(changes.columns), schema=self.layout.values.schema.arrow)
        require_constraints(self.checks, rows.filter(pa.array(stays)), table)

    def _is_blind_write(self, batch: KeyedBatch) -> bool:
        """Return whether a batch only upserts whole rows without before-images, so that it needs no stored row.

        A deletion needs the stored row: its change contains the row, and an absent row has no change.
        """
        is_of_upserts = batch.inserted is None and not batch.deleted.any()
        is_blind = is_of_upserts and self.engine.replaces and not self.before_images
        return is_blind and not self.reads_whole_buckets

    def _require_new(self, batch: KeyedBatch, values: Sequence[bytes | None], state: TableState) -> None:
        """Raise `SchemaMismatchError` if an operation inserts an existing key that it does not delete."""
        if batch.inserted is None:
            return
        exists = np.fromiter((value is not None for value in values), np.bool_, len(batch))
        conflicting = batch.inserted & exists & ~batch.has_deletion
        if not conflicting.any():
            return
        row = int(batch.starts[np.argmax(conflicting)])
        names = self.layout.values.schema.names
        of_key = {names[place]: to_python(batch.columns[place][row]) for place in self.layout.key_indexes}
        key = ", ".join(f"{name} = {value!r}" for name, value in of_key.items())
        raise SchemaMismatchError(
            f"table {state.name}: the MERGE inserts a row with an existing primary key ({key}), because its ON clause "
            "does not match by the primary key; nothing was written, match by the primary key, or set the property "
            f"{INSERT_EXISTING} to upsert, so that the new row replaces the existing row"
        )

    def _read_values(self, bucket: int, keys: list[bytes], state: TableState) -> list[bytes | None]:
        tablet = self.tablet_of(bucket)
        catch_up(tablet, self.layout, self.storage, state, bucket)
        lookup = tablet.find(keys)
        if lookup.extent[:2] != bucket_position(state, bucket) or not belongs_to_table(
            tablet, lookup.extent, self.storage, state
        ):
            raise StaleStateError
        return lookup.values

    def _stage_segments(self, changes: Mapping[int, NetChanges], state: TableState) -> dict[int, StagedSegment]:
        """Write the changes as segments. Small segments are inline in the record; large segments are written now."""
        schema = state.written_schema(self.layout.schema_id).arrow
        segments: dict[int, StagedSegment] = {}
        large: list[tuple[int, pa.Table]] = []
        for bucket, c in changes.items():
            rows = pa.Table.from_arrays([pa.array(c.types), *c.columns], schema=schema)
            if rows.nbytes <= inline_bytes_per_bucket(INLINE_BYTES_MAX, state.num_buckets):
                segments[bucket] = stage_inline(rows, bucket, self.options)
            else:
                large.append((bucket, rows))
        groups = [
            (self.world.ids.new_uuid(), group) for group in group_into_objects(large, lambda part: part[1].nbytes)
        ]

        def store(named: tuple[str, tuple[tuple[int, pa.Table], ...]]) -> list[StagedSegment]:
            uuid, group = named
            return stage_shared_object(self.storage, state.table_uuid, uuid, group, self.options)

        for staged in parallel_map(store, groups):
            segments |= {segment.segment.bucket: segment for segment in staged}
        return segments


def may_have_rows(at: BucketPosition) -> bool:
    """Return whether a bucket may have rows at this position."""
    return at[0] < at[1]


def bucket_position(state: TableState, bucket: int) -> BucketPosition:
    return state.first_offset(bucket), state.buckets[bucket].end
