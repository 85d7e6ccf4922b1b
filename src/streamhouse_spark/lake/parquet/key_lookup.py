"""Lookup of rows by key in the data files of a lake."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.changelog_merge import KeySet
from streamhouse_spark.lake.model.data_files import LiveFile
from streamhouse_spark.lake.model.values import LakeProjection, LakeSplit
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import read_deleted_positions
from streamhouse_spark.lake.parquet.row_positions import read_numbered

Positions = npt.NDArray[np.int64]
_NONE: Positions = np.zeros(0, np.int64)
PROBE_VALUES_MAX = 50_000
"""Arrow hashes the values again for each batch. With more values, a search for whole keys is as fast."""


@dataclass(frozen=True, slots=True)
class KeyIndexProbe:
    """A key column and its values in the given keys. Rows with another value need not be encoded as keys."""

    place: int
    """Index of the column in the key."""
    values: pa.Array


def best_probe(columns: Sequence[pa.Array]) -> KeyIndexProbe | None:
    """Return the most selective column of these keys, or None if no column helps.

    Excludes floating-point columns: zeros of both signs, and all NaNs, are equal keys but different values.
    """
    distinct = [
        KeyIndexProbe(place, column.unique())
        for place, column in enumerate(columns)
        if not pa.types.is_floating(column.type)
    ]
    best = max(distinct, key=lambda probe: len(probe.values), default=None)
    return best if best is not None and len(best.values) <= PROBE_VALUES_MAX else None


@dataclass(frozen=True, slots=True)
class KeyMatches:
    """Rows of one data file that have one of the keys and are not deleted yet."""

    file: LiveFile
    deleted: Positions
    """All row numbers for the data file's own position delete file: the matches and the earlier deletes."""
    key_indexes: Positions
    """For each matched row the index of its key among the given keys."""


def find_rows(
    files: FileAccess, file: LiveFile, keys: KeySet, projection: LakeProjection, probe: KeyIndexProbe | None = None
) -> KeyMatches | None:
    """Find the rows to delete in a file, or None. ``projection`` has the key columns in key order.

    Matches every row with one of the keys, so duplicates of another engine are deleted too. Memory is bounded by one
    batch and the deleted positions.
    """
    split = LakeSplit(file.location, file.size_bytes, file.num_rows)
    hits = [_find_matches(numbers, rows, keys, probe) for numbers, rows in read_numbered(files, split, projection)]
    places_found, places = (np.concatenate(parts) for parts in zip((_NONE, _NONE), *hits, strict=True))
    if not len(places_found):
        return None
    older = read_deleted_positions(files, file.location, file.own_deletes)
    deleted = read_deleted_positions(files, file.location, file.deletes) if file.shared_deletes else older
    is_left = ~is_in_sorted(places_found, deleted)
    places_found, places = places_found[is_left], places[is_left]
    if not len(places_found):
        return None
    return KeyMatches(file, np.sort(np.concatenate([older, places_found]), kind="stable"), places)


def _find_matches(
    numbers: Positions, rows: pa.RecordBatch, keys: KeySet, probe: KeyIndexProbe | None
) -> tuple[Positions, Positions]:
    """Return the numbers of the rows that have one of the keys, and the indexes of their keys."""
    if probe is not None:
        places = pc.indices_nonzero(pc.is_in(rows.column(probe.place), value_set=probe.values))
        if not len(places):
            return _NONE, _NONE
        numbers, rows = numbers[places.to_numpy()], rows.take(places)
    is_hit, key_indexes = keys.find(rows.columns)
    return numbers[is_hit], key_indexes


def is_in_sorted(values: Positions, ascending: Positions) -> npt.NDArray[np.bool_]:
    """Return which of the values are in ``ascending``."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    places = np.searchsorted(ascending, values)
    places[places == len(ascending)] = 0
    same: npt.NDArray[np.bool_] = ascending[places] == values
    return same
