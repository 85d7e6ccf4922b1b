"""Rows that earlier plans of a group commit write, layered over the stored rows for the next plan of the record.

None of them is stored yet, and they may never be: changes computed from them are valid in that record only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.log.commits.state import TableState


class OverlayMissError(Exception):
    """An earlier plan of the record has changes that this process does not know: wait until they are stored."""


@dataclass(frozen=True, slots=True)
class WriteOverlay:
    """Values by bucket and key after the plans that a record has so far."""

    stored: TableState
    """The latest stored state."""
    _ends: dict[int, int] = field(default_factory=dict)
    _values: dict[int, dict[bytes, bytes | None] | None] = field(default_factory=dict)
    """Bucket → values by key, None for a deleted row; None for a bucket whose values are unknown."""

    def __contains__(self, bucket: int) -> bool:
        return bucket in self._ends

    def add(self, bucket: int, offsets: OffsetRange, values: Mapping[bytes, bytes | None] | None) -> None:
        """Add the changes of the latest plan. Adding the same changes again has no effect."""
        if not offsets:
            return
        self._ends[bucket] = offsets.end
        bucket_values = self._values.setdefault(bucket, {})
        if values is None or bucket_values is None:
            self._values[bucket] = None
        else:
            bucket_values.update(values)

    def overlay_values(
        self, bucket: int, end: int, keys: Sequence[bytes], stored_values: list[bytes | None]
    ) -> list[bytes | None]:
        """Return the values of ``keys`` at the bucket's ``end`` in the record, given their ``stored_values``.

        Raises `OverlayMissError`.
        """
        changed = self._values.get(bucket, {})
        if changed is None or self._ends.get(bucket, self.stored.buckets[bucket].end) != end:
            raise OverlayMissError
        return (
            [changed.get(key, value) for key, value in zip(keys, stored_values, strict=True)]
            if changed
            else stored_values
        )
