"""Data files of a bucket for a round of a primary-key table, and their deletions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from streamhouse_spark.core.json_codec import Portable
from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DeletedRows(Portable):
    """A data file with its deleted rows, named by a position delete file.

    In a format without such files: the data file to remove, because other files hold its remaining rows.
    """

    location: str
    """Location of the data file."""
    replaces: tuple[str, ...] = ()
    """Position delete files that the same snapshot removes, because this one includes their positions."""

    num_duplicates: int = 0
    """Number of newly deleted rows next to another row of their key: duplicates, which only other engines add."""
    num_dropped: int = 0
    """Number of newly deleted rows of a log table."""
    num_moved: int = 0
    """Number of rows moved to other files, if the data file is removed."""
    has_offsets: bool = True
    """Whether the rows of the data file have offsets, if it is removed."""


@dataclass(frozen=True, slots=True)
class LiveFile(Portable):
    """A data file of a snapshot with its position delete files. Serializable.

    ``partition`` and the bounds are in the lake's binary form. Bounds cover the key columns by field id, as far as
    known.
    """

    location: str
    size_bytes: int
    num_rows: int
    """Rows of the file, deleted ones included."""
    spec_id: int
    partition: tuple[bytes | None, ...]
    own_deletes: tuple[str, ...] = ()
    """Files that name positions of this file alone."""
    shared_deletes: tuple[str, ...] = ()
    """Files that may name positions of other files too; only other engines write them."""
    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def deletes(self) -> tuple[str, ...]:
        return (*self.own_deletes, *self.shared_deletes)
