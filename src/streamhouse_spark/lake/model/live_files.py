"""Data files of a bucket as a round of a table with a primary key needs them, and what it deletes in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamhouse_spark.core.wire import Portable


@dataclass(frozen=True, slots=True)
class DeletedRows(Portable):
    """What a file of deleted positions is about: one data file."""

    location: str
    """Of the data file."""
    replaces: tuple[str, ...] = ()
    """Files of deleted positions that go in the same snapshot, because this one names their positions too."""

    num_surplus: int = 0
    """Of the rows that go now, those beside another row of their key, which only other engines add."""


@dataclass(frozen=True, slots=True)
class LiveFile(Portable):
    """A data file of a snapshot with its files of deleted positions, ready to be shipped.

    ``partition`` and the bounds are in the lake's binary form; bounds are those of the key columns by field id, as far
    as they are known.
    """

    location: str
    size_bytes: int
    num_rows: int
    """Without regard to deletes."""
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
