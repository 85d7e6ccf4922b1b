"""Data files of a bucket for a round of a table with a primary key, and the deletions in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from streamhouse_spark.core.json_codec import Portable
from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DeletedRows(Portable):
    """The data file that a file of deleted positions applies to, with its deleted rows.

    Of a format without such files: the data file that goes, because other files have its other rows.
    """

    location: str
    """Location of the data file."""
    replaces: tuple[str, ...] = ()
    """Files of deleted positions that go in the same snapshot, because this one has their positions too."""

    num_duplicates: int = 0
    """Number of the newly deleted rows that stand beside another row of their key: duplicates, which only other engines
    add."""
    num_dropped: int = 0
    """Number of the newly deleted rows of a table without a primary key."""
    num_moved: int = 0
    """Number of the rows that other files have, where the data file goes."""
    has_offsets: bool = True
    """Whether the rows of the data file have offsets, where it goes."""


@dataclass(frozen=True, slots=True)
class LiveFile(Portable):
    """A data file of a snapshot with its files of deleted positions, ready to be shipped.

    ``partition`` and the bounds are in the lake's binary form; bounds are those of the key columns by field id, as far
    as they are known.
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
    """Files that may name positions of other files as well; only other engines write them."""
    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def deletes(self) -> tuple[str, ...]:
        return (*self.own_deletes, *self.shared_deletes)
