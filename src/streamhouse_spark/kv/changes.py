"""What a batch changes: rows of the changelog, and what they make of a tablet. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import stored_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch, KeyedRows
from streamhouse_spark.kv.merge import MergeEngine
from streamhouse_spark.kv.value_format import ValueFormat


@dataclass(frozen=True, slots=True)
class Changes:
    """The net changes of a batch in one bucket: at most one for each key, in the order of the keys.

    An ``update_before`` stands directly before its ``update_after``. A key whose row stays as it is has no change.
    """

    types: npt.NDArray[np.int8]
    """A `ChangeType` for each row of the changelog."""
    columns: tuple[pa.Array, ...]
    """All columns of the table."""
    values: dict[bytes, bytes | None]
    """Stored key → its value from now on, None where it is deleted."""

    def __len__(self) -> int:
        return len(self.types)


def changes_of(
    batch: KeyedBatch,
    engine: MergeEngine,
    values: ValueFormat,
    old_values: Sequence[bytes | None],
    *,
    before_images: bool = True,
) -> Changes:
    """What the batch makes of the rows of its keys, given by their stored values.

    Without ``before_images`` updates have no ``update_before`` (``table.changelog.image`` WAL).
    """
    old = values.unpack(old_values)
    new = engine.merged(batch, old)
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


def _in_order(
    keys: npt.NDArray[np.int64], old: KeyedRows, new: KeyedRows, *, before_images: bool
) -> tuple[npt.NDArray[np.int8], pa.Array]:
    """The type of each row of the changelog, and its place in the old rows with the new ones behind them."""
    was, stays = old.there[keys], new.there[keys]
    first = np.where(was, np.where(stays, ChangeType.UPDATE_BEFORE, ChangeType.DELETE), ChangeType.INSERT)
    second = np.full(len(keys), ChangeType.UPDATE_AFTER)
    old_place, new_place = keys, keys + len(old.there)
    types = np.column_stack([first, second]).reshape(-1).astype(np.int8)
    places = np.column_stack([np.where(was, old_place, new_place), new_place]).reshape(-1)
    updated = was & stays
    shown = np.column_stack([~updated | before_images, updated]).reshape(-1)
    return types[shown], pa.array(places[shown])
