"""The range of keys and sequence numbers in a data file, for lakes whose readers merge by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.lake.model.live_files import bytes_of, text_of

_KEYS = ("lowest", "highest", "lower", "upper")


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The key range of a file that has each key once, in the order of the keys."""

    lowest: tuple[bytes, ...]
    """The first key: its columns in the lake's binary form."""
    highest: tuple[bytes, ...]
    """The last key."""
    lower: tuple[bytes, ...]
    """Least value of each column of the key."""
    upper: tuple[bytes, ...]
    """Greatest value of each column of the key."""
    sequences: OffsetRange
    """Range of the rows' sequence numbers: of two rows of a key the one with the larger number counts."""
    num_deleted: int
    """Rows that delete their key."""
    level: int
    """0 for a file whose keys other files may have too."""

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: [text_of(value) for value in getattr(self, name)] for name in _KEYS},
            "sequences": [self.sequences.start, self.sequences.end],
            "num_deleted": self.num_deleted,
            "level": self.level,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> KeyRange:
        lowest, highest, lower, upper = (tuple(bytes_of(text) or b"" for text in value[name]) for name in _KEYS)
        sequences = OffsetRange(*value["sequences"])
        return cls(lowest, highest, lower, upper, sequences, value["num_deleted"], value["level"])
