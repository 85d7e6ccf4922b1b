"""The range of keys and sequence numbers in a data file, for lakes whose readers merge by key."""

from __future__ import annotations

from streamhouse_spark.core.json_codec import Portable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange


@dataclass(frozen=True, slots=True)
class KeyRange(Portable):
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
