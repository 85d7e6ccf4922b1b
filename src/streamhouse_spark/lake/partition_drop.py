"""What dropping partitions did to a lake table, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse_spark.lake.base import LakeSnapshot


@dataclass(frozen=True, slots=True)
class LakeDropReport:
    files: int = 0
    """Data files that went."""
    rows: int = 0
    """Rows that went with them."""
    kept_rows: int = 0
    """Rows of these files that were appended later, and were written again."""
    snapshot: LakeSnapshot | None = None
    """The snapshot without them; None where there was nothing to drop, or nothing was to be changed."""
