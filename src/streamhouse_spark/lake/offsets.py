"""The log offsets of a lake snapshot, stored as text in its summary or properties in any format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, LakeMismatchError
from streamhouse_spark.lake.model.values import NEVER_TRUNCATED
from streamhouse_spark.log.commits.history_epochs import HistoryPoint

OFFSETS_PROPERTY = "streamhouse-offsets"
USER_PROPERTY = "commit-user"
COMMIT_PROPERTY = "streamhouse-commit"
OFFSETS_VERSION = 1
TABLE_UUID_PROPERTY = "streamhouse.table-uuid"
"""Property of the lake table with the uuid of its owner."""


@dataclass(frozen=True, slots=True)
class LakeOffsets:
    offsets: Mapping[int, int]
    snapshot_id: int
    starts: Mapping[int, int] = field(default_factory=dict)
    """First offsets of the table since its last truncation."""
    dropped_rows: int = 0
    """Number of rows missing because they were deleted, or their partitions dropped."""
    history: HistoryPoint | None = None
    """The log's latest record with rows at the time of tiering; None in older snapshots."""
    dropped_without_offsets: int = 0
    """Number of missing rows without offsets, which were dropped with their partition."""


def offsets_text(
    table_uuid: str,
    offsets: Mapping[int, int],
    starts: Mapping[int, int] = NEVER_TRUNCATED,
    *,
    dropped_rows: int = 0,
    history: HistoryPoint | None = None,
    dropped_without_offsets: int = 0,
) -> str:
    value: dict[str, object] = {
        "version": OFFSETS_VERSION,
        "table_uuid": table_uuid,
        "offsets": {str(bucket): offset for bucket, offset in sorted(offsets.items())},
    }
    if starts:
        value["starts"] = {str(bucket): offset for bucket, offset in sorted(starts.items())}
    if dropped_rows:
        value["dropped_rows"] = dropped_rows
    if dropped_without_offsets:
        value["dropped_others"] = dropped_without_offsets
    if history is not None:
        value["history"] = list(history)
    return json.dumps(value, separators=(",", ":"))


def parse_offsets(text: str, table_uuid: str, snapshot_id: int, location: str) -> LakeOffsets:
    """Parse the offsets in a snapshot's property.

    Raises `CorruptDataError`, `FormatVersionError`, or `LakeMismatchError` if they are of another table.
    """
    where = f"snapshot {snapshot_id} of lake table {location}"
    try:
        value = json.loads(text)
        version, owner = value["version"], value["table_uuid"]
        offsets = {int(bucket): int(offset) for bucket, offset in value["offsets"].items()}
        starts = {int(bucket): int(offset) for bucket, offset in value.get("starts", {}).items()}
        dropped_rows, dropped_without_offsets = (
            int(value.get("dropped_rows", 0)),
            int(value.get("dropped_others", 0)),
        )
        history = HistoryPoint.from_json(value["history"]) if "history" in value else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(
            f"the offsets of {where} cannot be read: {text[:200]!r}; restore it, "
            "or rebuild the lake from the log (streamhouse retier)"
        ) from error
    if version != OFFSETS_VERSION:
        raise FormatVersionError(
            f"the offsets of {where} have format version {version}, this version reads {OFFSETS_VERSION}; "
            "upgrade streamhouse-spark"
        )
    if owner != table_uuid:
        raise LakeMismatchError(
            f"{where} holds rows of table {owner}, expected {table_uuid}: the lake table belongs to another table; "
            "build the lake at another place (streamhouse retier)"
        )
    return LakeOffsets(offsets, snapshot_id, starts, dropped_rows, history, dropped_without_offsets)
