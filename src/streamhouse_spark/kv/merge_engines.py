"""Merge engines: how rows of a batch are merged with the stored rows. Pure, over Arrow columns.

The engines are Apache Fluss's: last row (the default), ``first_row``, ``versioned`` and ``aggregation``. A partial
update names its target columns; other columns keep their values, or get their defaults in a new row. A partial deletion
sets the target columns to null, and deletes the row if no other column but the key has a value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.keyed_batch import Bools, KeyedBatch, KeyedRows, Places
from streamhouse_spark.kv.aggregation import Fold, last_value
from streamhouse_spark.schema.generated_columns.generated_column import Generated, recompute_generated_columns


class MergeEngine(Protocol):
    @property
    def replaces(self) -> bool:
        """Whether a row of a batch replaces the stored row unconditionally."""

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        """Return the rows of the batch's keys after the batch, given the ``old`` ones."""


@dataclass(frozen=True, slots=True)
class ColumnwiseMerge:
    """Merges each column by its fold over the old value and those of the batch. The default, and ``aggregation``.

    ``targets`` are the indexes of the columns of a partial update; None means all.
    """

    key_columns: frozenset[int]
    folds: Mapping[int, Fold]
    """Index → fold; by default the last value wins, null or not."""
    targets: Collection[int] | None = None
    defaults: Mapping[int, pa.Scalar] = field(default_factory=dict)
    """Index → default in new rows of a column that a partial update does not name; else null."""

    @property
    def replaces(self) -> bool:
        return self.targets is None and not self.folds

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        survives = self._surviving_rows(batch, old)
        exists = batch.has_active | survives
        columns = []
        for i, (values, before) in enumerate(zip(batch.columns, old.columns, strict=True)):
            if i in self.key_columns:
                columns.append(_null_absent(exists, _choose_values(batch, values, batch.starts)))
            elif self._is_target(i):
                columns.append(self._fold_column(i, batch, values, before, old.exists & ~batch.has_deletion))
            else:
                columns.append(self._keep_column(i, before, survives, exists & ~survives))
        return KeyedRows(tuple(columns), exists)

    def _is_target(self, column: int) -> bool:
        return self.targets is None or column in self.targets

    def _keep_column(self, column: int, before: pa.Array, survives: Bools, is_new: Bools) -> pa.Array:
        values = _null_absent(survives, before)
        if column in self.defaults and is_new.any():
            values = pc.if_else(pa.array(is_new), self.defaults[column], values)
        return values

    def _surviving_rows(self, batch: KeyedBatch, old: KeyedRows) -> Bools:
        """Return which old rows remain after the batch's deletions, whatever the batch writes after them."""
        if not batch.has_deletion.any():
            return old.exists
        has_other_values = np.zeros(len(batch), np.bool_)
        for i, before in enumerate(old.columns):
            if i not in self.key_columns and not self._is_target(i):
                has_other_values |= _validity(before)
        survives: Bools = old.exists & (~batch.has_deletion | has_other_values)
        return survives

    def _fold_column(
        self, column: int, batch: KeyedBatch, values: pa.Array, before: pa.Array, begins: Bools
    ) -> pa.Array:
        """Fold the active values of the column, starting from the old values where ``begins``."""
        fold = self.folds.get(column, last_value)
        if fold is last_value:  # the old value never counts, nor do rows before the last
            return _null_absent(batch.has_active, _choose_values(batch, values, batch.ends - 1))
        old_keys = np.flatnonzero(begins)
        rows = np.flatnonzero(batch.active)
        keys = np.concatenate([old_keys, batch.key_of_row[rows]])
        order = np.argsort(keys, kind="stable")  # the old value comes first
        combined = pa.concat_arrays([before.take(pa.array(old_keys)), values.take(pa.array(rows))])
        return fold(combined.take(pa.array(order)), keys[order], len(batch))


@dataclass(frozen=True, slots=True)
class GeneratingMerge:
    """Merges rows and then computes the generated columns of the result."""

    inner: ColumnwiseMerge
    generated: tuple[Generated, ...]
    schema: pa.Schema

    @property
    def replaces(self) -> bool:
        return False

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        merged = self.inner.merge(batch, old)
        rows = recompute_generated_columns(
            self.generated, pa.RecordBatch.from_arrays(list(merged.columns), names=self.schema.names), "the table"
        )
        return KeyedRows(tuple(_null_absent(merged.exists, column) for column in rows.columns), merged.exists)


@dataclass(frozen=True, slots=True)
class NumberingMerge:
    """Merges rows; existing rows keep their identity value, new ones have that of the batch."""

    inner: MergeEngine
    identity: int
    """Index of the identity column."""

    @property
    def replaces(self) -> bool:
        return False

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        merged = self.inner.merge(batch, old)
        new = _choose_values(batch, batch.columns[self.identity], batch.ends - 1)
        columns = list(merged.columns)
        columns[self.identity] = _null_absent(merged.exists, pc.coalesce(old.columns[self.identity], new))
        return KeyedRows(tuple(columns), merged.exists)


@dataclass(frozen=True, slots=True)
class FirstRowMerge:
    """Keeps the first row of a key. There are no deletions."""

    @property
    def replaces(self) -> bool:
        return False

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        return _choose_rows(batch, old, np.where(old.exists, -1, batch.starts))


@dataclass(frozen=True, slots=True)
class VersionedMerge:
    """Keeps the row with the largest version, the last of equal ones. Rows without a version are ignored."""

    version_column: int

    @property
    def replaces(self) -> bool:
        return False

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        versions, is_versioned = _versions(batch.columns[self.version_column])
        old_versions, is_old_versioned = _versions(old.columns[self.version_column])
        rows = np.flatnonzero(is_versioned)
        rows = rows[np.lexsort((rows, versions[rows], batch.key_of_row[rows]))]
        newest = np.full(len(batch), -1, np.int64)
        newest[batch.key_of_row[rows]] = rows  # the last assignment per key wins
        wins = (newest >= 0) & (~old.exists | ~is_old_versioned | (versions[newest] >= old_versions))
        return _choose_rows(batch, old, np.where(wins, newest, -1))


def _choose_rows(batch: KeyedBatch, old: KeyedRows, rows: Places) -> KeyedRows:
    """Return for each key the row of the batch at ``rows``, or the old row for -1."""
    new = rows >= 0
    places = np.where(new, rows + len(batch), np.arange(len(batch)))
    columns = (
        pa.concat_arrays([before, values]).take(pa.array(places))
        for before, values in zip(old.columns, batch.columns, strict=True)
    )
    return KeyedRows(tuple(columns), new | old.exists)


def _choose_values(batch: KeyedBatch, values: pa.Array, rows: Places) -> pa.Array:
    """Return for each key the value at its row."""
    return values if len(values) == len(batch) else values.take(pa.array(rows))


def _null_absent(exists: Bools, values: pa.Array) -> pa.Array:
    """Return the values, null for absent rows."""
    return values if exists.all() else values.take(pa.array(np.arange(len(values)), mask=~exists))


def _validity(values: pa.Array) -> Bools:
    valid: Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _versions(values: pa.Array) -> tuple[Places, Bools]:
    """Return integers and timestamps as 64-bit integers, and which of them are not null."""
    integers = values.view(pa.int64()) if pa.types.is_timestamp(values.type) else values.cast(pa.int64())
    return integers.fill_null(0).to_numpy(), _validity(values)
