"""Properties of the package's lake snapshots, in any format: log offsets and times.

The formats require times that never decrease: engines reject or miss a snapshot with an earlier time than its parent.
So a snapshot after one with a future time has that time too, and stores its own time in `TIME_PROPERTY`. This package
then corrects the future time with later, smaller times, as it does for log records. Other engines use the stored times,
and retain such snapshots longer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, LakeMismatchError
from streamhouse_spark.lake.types import LakeSnapshot
from streamhouse_spark.log.history_index import HistoryPoint

OFFSETS_PROPERTY = "streamhouse-offsets"
USER_PROPERTY = "commit-user"
COMMIT_PROPERTY = "streamhouse-commit"
OFFSETS_VERSION = 1
TIME_PROPERTY: Final = "streamhouse-time-ms"
"""The commit time of a snapshot whose stored time is that of its parent."""
TABLE_UUID_PROPERTY = "streamhouse.table-uuid"
"""Property of the lake table with the uuid of its owner."""


@dataclass(frozen=True, slots=True)
class LakeOffsets:
    """The rows of the log that a lake snapshot holds."""

    offsets: Mapping[int, int]
    starts: Mapping[int, int] = field(default_factory=dict)
    """First offsets of the table since its last truncation."""
    dropped_rows: int = 0
    """Number of missing rows, which were deleted or whose partitions were dropped."""
    history: HistoryPoint | None = None
    """The log's latest record with rows at the time of tiering. None in older snapshots."""
    dropped_without_offsets: int = 0
    """Number of rows without offsets that were dropped with their partition."""
    snapshot_id: int = 0
    """The snapshot that stores these offsets, or 0 before it exists."""

    @property
    def applied_through(self) -> int:
        """The latest record whose deletes the snapshot has applied."""
        return self.history.number if self.history is not None else 0

    def with_dropped(self, num_rows: int, without_offsets: int) -> LakeOffsets:
        """Return the offsets after more rows were dropped, ``without_offsets`` of them without offsets."""
        return replace(
            self,
            dropped_rows=self.dropped_rows + num_rows,
            dropped_without_offsets=self.dropped_without_offsets + without_offsets,
        )

    def to_properties(self, table_uuid: str) -> dict[str, str]:
        """Return the properties of a snapshot that holds these rows of the table."""
        value: dict[str, object] = {
            "version": OFFSETS_VERSION,
            "table_uuid": table_uuid,
            "offsets": {str(bucket): offset for bucket, offset in sorted(self.offsets.items())},
        }
        if self.starts:
            value["starts"] = {str(bucket): offset for bucket, offset in sorted(self.starts.items())}
        if self.dropped_rows:
            value["dropped_rows"] = self.dropped_rows
        if self.dropped_without_offsets:
            value["dropped_others"] = self.dropped_without_offsets
        if self.history is not None:
            value["history"] = list(self.history)
        return {OFFSETS_PROPERTY: json.dumps(value, separators=(",", ":"))}


def make_lake_snapshot(snapshot_id: int, timestamp_ms: int, offsets: LakeOffsets | None) -> LakeSnapshot:
    """Return the description of a snapshot. ``offsets`` is None if it holds no rows of the table's log."""
    if offsets is None:
        return LakeSnapshot(snapshot_id, {}, timestamp_ms)
    return LakeSnapshot(
        snapshot_id,
        dict(offsets.offsets),
        timestamp_ms,
        dict(offsets.starts),
        offsets.dropped_rows,
        offsets.history,
        offsets.dropped_without_offsets,
    )


def parse_offsets(text: str, table_uuid: str, snapshot_id: int, location: str) -> LakeOffsets:
    """Parse the offsets in a snapshot's property.

    Raises `CorruptDataError`, `FormatVersionError`, or `LakeMismatchError` for offsets of another table.
    """
    where = f"snapshot {snapshot_id} of lake table {location}"
    try:
        value = json.loads(text)
        version, owner = value["version"], value["table_uuid"]
        offsets = {int(bucket): int(offset) for bucket, offset in value["offsets"].items()}
        starts = {int(bucket): int(offset) for bucket, offset in value.get("starts", {}).items()}
        dropped_rows, without_offsets = int(value.get("dropped_rows", 0)), int(value.get("dropped_others", 0))
        history = HistoryPoint.from_json(value["history"]) if "history" in value else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(
            f"cannot read the offsets of {where}: {text[:200]!r}; restore the snapshot, "
            "or rebuild the lake from the log (streamhouse retier)"
        ) from error
    if version != OFFSETS_VERSION:
        raise FormatVersionError(
            f"the offsets of {where} have format version {version}, expected {OFFSETS_VERSION}; "
            "upgrade streamhouse-spark"
        )
    if owner != table_uuid:
        raise LakeMismatchError(
            f"{where} has rows of table {owner}, expected {table_uuid}: the lake table belongs to another table; "
            "rebuild the lake at another location (streamhouse retier)"
        )
    return LakeOffsets(offsets, starts, dropped_rows, history, without_offsets, snapshot_id)


def next_snapshot_time_ms(now_ms: int, newest_ms: int) -> tuple[int, dict[str, str]]:
    """Return the stored time of a snapshot after one of ``newest_ms``, and the property with its own time."""
    return max(now_ms, newest_ms), {TIME_PROPERTY: str(now_ms)} if now_ms < newest_ms else {}


def writer_time_ms(timestamp_ms: int, properties: Mapping[str, str]) -> int:
    """Return the time by the clock of the snapshot's writer."""
    text = properties.get(TIME_PROPERTY, "")
    return int(text) if text.isascii() and text.isdigit() else timestamp_ms


def latest_possible_times_ms(own: Sequence[int]) -> list[int]:
    """Return the latest possible time of each snapshot, from the writers' times of all snapshots in commit order.

    A snapshot was committed before its successors.
    """
    times = list(own)
    for index in range(len(times) - 2, -1, -1):
        times[index] = min(times[index], times[index + 1])
    return times


def effective_times_ms(own: Sequence[int], now_ms: int) -> list[int]:
    """Return the time from which the age of each snapshot counts.

    It is the writer's time, and never before that of an earlier snapshot. A future time is replaced with the latest
    possible time. So a fast clock does not retain snapshots forever, and a slow clock does not expire them early.
    """
    times_ms: list[int] = []
    for own_time_ms, latest in zip(own, latest_possible_times_ms(own), strict=True):
        time_ms = own_time_ms if own_time_ms <= now_ms else latest
        newest_ms = times_ms[-1] if times_ms and times_ms[-1] <= now_ms else time_ms
        times_ms.append(max(time_ms, newest_ms))
    return times_ms
