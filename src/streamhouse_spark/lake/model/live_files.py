"""Data files of a bucket for a round of a table with a primary key, and the deletions in them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The data file that a file of deleted positions applies to, with its deleted rows."""

    location: str
    """Location of the data file."""
    replaces: tuple[str, ...] = ()
    """Files of deleted positions that go in the same snapshot, because this one has their positions too."""

    num_surplus: int = 0
    """Number of the newly deleted rows that stand beside another row of their key: duplicates, which only other engines
    add."""

    def to_json(self) -> dict[str, Any]:
        return {"location": self.location, "replaces": list(self.replaces), "num_surplus": self.num_surplus}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DeletedRows:
        return cls(value["location"], tuple(value["replaces"]), value["num_surplus"])


@dataclass(frozen=True, slots=True)
class LiveFile:
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

    def to_json(self) -> dict[str, Any]:
        return {
            "location": self.location,
            "size_bytes": self.size_bytes,
            "num_rows": self.num_rows,
            "spec_id": self.spec_id,
            "partition": [text_of(value) for value in self.partition],
            "own_deletes": list(self.own_deletes),
            "shared_deletes": list(self.shared_deletes),
            "lower": {str(i): text_of(value) for i, value in self.lower.items()},
            "upper": {str(i): text_of(value) for i, value in self.upper.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LiveFile:
        return cls(
            location=value["location"],
            size_bytes=value["size_bytes"],
            num_rows=value["num_rows"],
            spec_id=value["spec_id"],
            partition=tuple(bytes_of(text) for text in value["partition"]),
            own_deletes=tuple(value["own_deletes"]),
            shared_deletes=tuple(value["shared_deletes"]),
            lower={int(i): base64.b64decode(text) for i, text in value["lower"].items()},
            upper={int(i): base64.b64decode(text) for i, text in value["upper"].items()},
        )


def text_of(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
