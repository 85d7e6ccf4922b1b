"""The position of a streaming read in Spark's checkpoint, and its validation against the table's history.

A table that was restored from a backup, or a copy of a table, has the same uuid but different rows after the point
where the histories diverge. A position names the latest record with rows at that time. If the log does not have that
record, the query has read rows that the table does not have, or would skip rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.datasource.read.read_target import offsets_from_json, offsets_to_json
from streamhouse_spark.errors import (
    CorruptDataError,
    DifferentHistoryError,
    FormatVersionError,
    OffsetsTrimmedError,
    TableNotFoundError,
)
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.history_index import HistoryPoint, HistoryRelation
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table_handle import TableHandle

VERSION = 1
ROWS_VERSION = 2
"""Version of an offset with a `BootstrapPosition`, which older versions of this package would ignore."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BootstrapPosition:
    """Progress through the initial rows of a stream, in files.

    The initial rows are the rows of the KV snapshots at a commit. The files of the snapshots are immutable, and are
    read in a fixed order, see `streamhouse_spark.datasource.stream.bootstrap`.
    """

    commit: int
    num_files: int
    num_read: int = 0

    @property
    def is_read(self) -> bool:
        return self.num_read == self.num_files

    def read_to(self, num_read: int) -> BootstrapPosition:
        return replace(self, num_read=num_read)

    def to_json(self) -> dict[str, int]:
        return {"commit": self.commit, "files": self.num_files, "read": self.num_read}

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> BootstrapPosition:
        """Parse the result of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` for any other value."""
        rows = cls(int(data["commit"]), int(data["files"]), int(data["read"]))
        if not 0 <= rows.num_read <= rows.num_files:
            raise ValueError(f"{rows.num_read} of {rows.num_files} files are read")
        return rows


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read in each bucket.

    ``initial`` contains the offsets at which the query started; only the offsets of the first batch have it. After a
    restart Spark knows the end of an unfinished first batch but not its start, and resolves the start again. Then
    ``latest`` or a timestamp may resolve to a later offset, and the rows in between would be lost.
    """

    table_uuid: str
    offsets: Mapping[int, int]
    initial: Mapping[int, int] | None = None
    truncation: int = 0
    """The last commit before this position that truncated the table; 0 if there is none."""
    rows: BootstrapPosition | None = None
    """Initial rows, which are read before ``offsets``. None if there are none, or an earlier batch read all of them."""
    history: HistoryPoint | None = None
    """The latest commit record with rows at this position; None in older checkpoints."""
    start_history: HistoryPoint | None = None
    """``history`` at the start of a stream that reports deletions. Only the offsets of the first batch have it."""

    @property
    def is_initial(self) -> bool:
        """Whether no rows were read yet."""
        has_progress = (self.rows is not None and self.rows.num_read > 0) or self.start_history not in (
            None,
            self.history,
        )
        return self.initial is not None and dict(self.initial) == dict(self.offsets) and not has_progress

    @property
    def commit(self) -> int:
        """The latest commit whose deletions this position may include; 0 if unknown."""
        return self.history.number if self.history is not None else 0

    def begin_of_batch(self, end: StreamOffset) -> StreamOffset:
        """Return the start of the batch that ends at ``end`` and that Spark starts at this position."""
        if self.is_initial and end.initial is not None:
            rows = end.rows.read_to(0) if end.rows is not None else None
            history = end.start_history or end.history
            return StreamOffset(end.table_uuid, end.initial, truncation=end.truncation, rows=rows, history=history)
        return self

    def files_before(self, end: StreamOffset) -> range:
        """Return the indices of the files of ``rows`` that a batch from this position to ``end`` reads."""
        if self.rows is None or self.rows.is_read or self.truncation != end.truncation:
            return range(0)
        # PySpark 4.1 may have stored the end, without rows, before the log was trimmed. Its batch reads all files.
        return range(self.rows.num_read, end.rows.num_read if end.rows is not None else self.rows.num_files)

    def to_json(self) -> dict[str, Any]:
        version = VERSION if self.rows is None else ROWS_VERSION
        out: dict[str, Any] = {"version": version, "table": self.table_uuid, "offsets": offsets_to_json(self.offsets)}
        if self.initial is not None:
            out["initial"] = offsets_to_json(self.initial)
        if self.truncation:
            out["truncation"] = self.truncation
        if self.rows is not None:
            out["rows"] = self.rows.to_json()
        if self.history is not None:
            out["history"] = list(self.history)
        if self.start_history is not None:
            out["begun"] = list(self.start_history)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any], table_name: str, table_uuid: str) -> StreamOffset:
        """Parse an offset. Raises `TableNotFoundError` for an offset of another table, `FormatVersionError` or
        `CorruptDataError`.
        """
        version = data.get("version")
        if version not in (VERSION, ROWS_VERSION):
            raise FormatVersionError(
                f"the checkpoint of a stream from {table_name} has offsets of version {version!r}, expected {VERSION} "
                f"or {ROWS_VERSION}: another version of streamhouse-spark wrote them; upgrade, or start with a new "
                "checkpointLocation"
            )
        try:
            initial = data.get("initial")
            offset = cls(
                data["table"],
                offsets_from_json(data["offsets"]),
                offsets_from_json(initial) if initial is not None else None,
                int(data.get("truncation", 0)),
                BootstrapPosition.from_json(data["rows"]) if version == ROWS_VERSION else None,
                HistoryPoint.from_json(data["history"]) if "history" in data else None,
                HistoryPoint.from_json(data["begun"]) if "begun" in data else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptDataError(
                f"the checkpoint of a stream from {table_name} has an invalid offset ({error}); restore the "
                "checkpoint, or start with a new checkpoint"
            ) from error
        if offset.table_uuid != table_uuid:
            raise TableNotFoundError(
                f"the stream reads table {table_name} with uuid {offset.table_uuid}, which was dropped; the name now "
                f"belongs to {table_uuid}: start the query with a new checkpointLocation to read the new table"
            )
        return offset


class StreamOffsetValidator:
    """Validates the positions of a query. Recently validated positions cost no request."""

    def __init__(self, *, continues: bool) -> None:
        self._continues = continues
        self._last_valid: tuple[CommitLog | None, HistoryPoint | None] = (None, None)
        self._moved_offsets: dict[tuple[HistoryPoint | None, tuple[tuple[int, int], ...]], StreamOffset] = {}

    def validate_position(self, table: TableHandle, offset: StreamOffset) -> StreamOffset:
        """Return the position. With ``onDifferentHistory=continue``, return a replacement for a position of another
        history.

        The replacement has the same offsets, but none after the end of the log. It is stable within a process, so rows
        that are appended concurrently are read. Unread initial rows are skipped.

        Raises `DifferentHistoryError` for a position of another history. If the record was deleted, the history cannot
        be determined, and the position is accepted.
        """
        position = offset.history
        if position is None or position == table.state.anchors.rows or self._last_valid == (table.log, position):
            return offset
        if table.log.relation(position) is not HistoryRelation.OTHER:
            self._last_valid = (table.log, position)
            return offset
        text = (
            f"a stream of {table.name} is at record {position.number} of attempt {position.attempt}, which the "
            "table's log does not have: the table was restored from a backup, or is a copy, and its rows up to offsets "
            f"{dict(offset.offsets)} may differ from the rows that the stream read"
        )
        if not self._continues:
            raise DifferentHistoryError(
                f"{text}. Start it with a new checkpointLocation to read the table from its beginning; or continue at "
                "these offsets, or at the log's end if it is smaller, with onDifferentHistory=continue"
            )
        moved_offset = self._moved_offsets.get(_position_key(offset))
        if moved_offset is None:
            moved_offset = self._moved_offsets[_position_key(offset)] = _move_offset(table, offset)
            logger.warning("%s: continuing at %s", text, dict(moved_offset.offsets))
        return moved_offset

    def has_moved(self, data: Mapping[str, Any]) -> bool:
        """Return whether `validate_position` replaced this position from Spark."""
        if not self._moved_offsets:
            return False
        return _position_key(StreamOffset.from_json(data, "", data["table"])) in self._moved_offsets


def _position_key(offset: StreamOffset) -> tuple[HistoryPoint | None, tuple[tuple[int, int], ...]]:
    return offset.history, tuple(sorted(offset.offsets.items()))


def _move_offset(table: TableHandle, offset: StreamOffset) -> StreamOffset:
    state = table.state
    offsets = {b: max(state.first_offset(b), min(offset.offsets.get(b, 0), end)) for b, end in state.ends.items()}
    moved = replace(offset, offsets=offsets, initial=None, truncation=last_truncation(state), rows=None)
    return replace(moved, history=state.anchors.rows)


def last_truncation(state: TableState) -> int:
    """Return the last commit that truncated the table; 0 if there is none."""
    return state.truncation.commit if state.truncation is not None else 0


def require_same_rows(table_name: str, start_truncation: int, end_truncation: int, *, strict: bool) -> None:
    """Raise `OffsetsTrimmedError` if the table was truncated between two positions. Without ``strict``, only warn."""
    if start_truncation == end_truncation:
        return
    text = f"{table_name} was truncated or overwritten by commit {end_truncation}, after this stream read its rows"
    if strict:
        raise OffsetsTrimmedError(
            f"{text}: its results are stale; start it with a new checkpointLocation, or continue after the truncation "
            "with failOnDataLoss=false"
        )
    logger.warning("%s: continuing with the rows after the truncation", text)


def require_in_log(state: TableState, ranges: Mapping[int, OffsetRange]) -> None:
    """Raise `OffsetsTrimmedError` for a range beyond the end of the log."""
    for bucket, offsets in ranges.items():
        if bucket not in state.buckets or offsets.end > state.buckets[bucket].end:
            end = state.buckets[bucket].end if bucket in state.buckets else 0
            raise OffsetsTrimmedError(
                f"in the checkpoint, bucket {bucket} of {state.name} ends at offset {offsets.end}, but it ends at "
                f"{end}: the table was restored from an older copy; start with a new checkpointLocation"
            )
