"""What a data file of keyed rows says of them in a lake whose readers merge by key."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.wire import Portable


@dataclass(frozen=True, slots=True)
class KeyRange(Portable):
    """Of a file that has each key once, in the order of the keys."""

    lowest: tuple[bytes, ...]
    """The first key: its columns in the lake's binary form."""
    highest: tuple[bytes, ...]
    """The last key."""
    lower: tuple[bytes, ...]
    """Of each column of the key the least value."""
    upper: tuple[bytes, ...]
    """Of each column of the key the greatest value."""
    sequences: OffsetRange
    """Of its rows: of two rows of a key the one with the larger sequence number counts."""
    num_deleted: int
    """Rows that delete their key."""
    level: int
    """0 for a file that may have keys which other files have too."""
