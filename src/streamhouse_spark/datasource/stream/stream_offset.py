"""The position of a streaming read, as stored in Spark's checkpoint, and its validation against the table's history.

A table restored from a backup, or a copy that a query is pointed to, has the same uuid but other rows after the point
where the histories diverge. A position names the latest record with rows at that time. If the log does not have that
record, the query has read rows that are not the table's, or would skip some.
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

    The rows are those of the key snapshots at one commit. Their files are immutable and read in a fixed order, see
    `streamhouse_spark.datasource.stream.bootstrap`.
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

    ``initial`` holds the offsets at which the query started; only the first offsets carry it. After a restart Spark
    knows the end of an unfinished first batch but not its start, and resolves the start again. By then ``latest`` or a
    timestamp may mean a later offset, and the rows in between would be lost.
    """

    table_uuid: str
    offsets: Mapping[int, int]
    initial: Mapping[int, int] | None = None
    truncation: int = 0
    """The last commit that had truncated the table at this position; 0 for none."""
    rows: BootstrapPosition | None = None
    """Initial rows, which are read before ``offsets``. None if there are none or an earlier batch finished them.

    The first offsets of a stream carry them to the end, like ``initial``.
    """
    history: HistoryPoint | None = None
    """The latest commit record with rows at this position; None in older checkpoints."""
    start_history: HistoryPoint | None = None
    """The ``history`` at the start of a stream that reports deletions; carried like ``initial``."""

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
        """The latest commit whose deletions the position can reflect; 0 if unknown."""
        return self.history.number if self.history is not None else 0

    def begin_of_batch(self, end: StreamOffset) -> StreamOffset:
        """Return the start of the batch that ends at ``end``, given that Spark starts it here."""
        if self.is_initial and end.initial is not None:
            rows = end.rows.read_to(0) if end.rows is not None else None
            history = end.start_history or end.history
            return StreamOffset(end.table_uuid, end.initial, truncation=end.truncation, rows=rows, history=history)
        return self

    def files_before(self, end: StreamOffset) -> range:
        """Return the indices of the files of ``rows`` that a batch from here to ``end`` reads."""
        if self.rows is None or self.rows.is_read or self.truncation != end.truncation:
            return range(0)
        # PySpark 4.1 may have stored the end before the log was trimmed, without rows. Its batch then has all of them.
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
        """Parse an offset. Raises `TableNotFoundError` for an offset of another table, `FormatVersionError`,
        `CorruptDataError`.
        """
        version = data.get("version")
        if version not in (VERSION, ROWS_VERSION):
            raise FormatVersionError(
                f"the checkpoint of a stream from {table_name} has offsets of version {version!r}, "
                f"expected {VERSION} or {ROWS_VERSION}: another version of streamhouse-spark wrote it; upgrade, or "
                "start it with a new checkpointLocation",
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
                f"the checkpoint of a stream from {table_name} has an offset that cannot be read ({error}); restore "
                "the checkpoint, or start with a new one",
            ) from error
        if offset.table_uuid != table_uuid:
            raise TableNotFoundError(
                f"the stream reads table {table_name} of uuid {offset.table_uuid}, which was dropped; the name now "
                f"means {table_uuid}: start the query with a new checkpointLocation to read that one",
            )
        return offset


class StreamHistory:
    """Validates every position of one query. Recent positions cost no request."""

    def __init__(self, *, continues: bool) -> None:
        self._continues = continues
        self._last_valid: tuple[CommitLog | None, HistoryPoint | None] = (None, None)
        self._moved_offsets: dict[tuple[HistoryPoint | None, tuple[tuple[int, int], ...]], StreamOffset] = {}

    def validate_position(self, table: TableHandle, offset: StreamOffset) -> StreamOffset:
        """Return the position, or with ``onDifferentHistory=continue`` its replacement if it is from another history.

        The replacement has the same offsets, capped at the log's end, and is stable within one process, so rows
        appended concurrently are read. Unread initial rows are skipped.

        Raises `DifferentHistoryError` for a position of another history. If the record was cleaned up, so that this
        cannot be determined, the position is accepted.
        """
        position = offset.history
        if position is None or position == table.state.anchors.rows or self._last_valid == (table.log, position):
            return offset
        if table.log.relation(position) is not HistoryRelation.OTHER:
            self._last_valid = (table.log, position)
            return offset
        text = (
            f"a stream of {table.name} is at record {position.number} of attempt {position.attempt}, which the "
            "table's log does not have: the table was restored from a backup, or is a copy, and the rows at the "
            f"stream's offsets {dict(offset.offsets)} may differ from those that it read"
        )
        if not self._continues:
            raise DifferentHistoryError(
                f"{text}. Start it with a new checkpointLocation to read the table from its beginning; or continue at "
                "these offsets, capped at the log's end, with onDifferentHistory=continue"
            )
        moved_offset = self._moved_offsets.get(_position_key(offset))
        if moved_offset is None:
            moved_offset = self._moved_offsets[_position_key(offset)] = _move_offset(table, offset)
            logger.warning("%s: continuing at %s", text, dict(moved_offset.offsets))
        return moved_offset

    def has_moved(self, data: Mapping[str, Any]) -> bool:
        """Return whether `validate_position` replaced this position of Spark."""
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
    """Return the last commit that truncated the table; 0 for none."""
    return state.truncation.commit if state.truncation is not None else 0


def require_same_rows(table_name: str, start_truncation: int, end_truncation: int, *, strict: bool) -> None:
    """Raise `OffsetsTrimmedError` if the table was truncated between two positions; only warn unless ``strict``."""
    if start_truncation == end_truncation:
        return
    text = f"{table_name} was truncated or overwritten by commit {end_truncation}, after this stream read rows of it"
    if strict:
        raise OffsetsTrimmedError(
            f"{text}: its results are stale; start it with a new checkpointLocation, or continue after the truncation "
            "with failOnDataLoss=false",
        )
    logger.warning("%s: continuing with the rows after it", text)


def require_in_log(state: TableState, ranges: Mapping[int, OffsetRange]) -> None:
    """Raise `OffsetsTrimmedError` for a range beyond the end of the log."""
    for bucket, offsets in ranges.items():
        if bucket not in state.buckets or offsets.end > state.buckets[bucket].end:
            end = state.buckets[bucket].end if bucket in state.buckets else 0
            raise OffsetsTrimmedError(
                f"the checkpoint says that bucket {bucket} of {state.name} reaches offset {offsets.end}, it ends at "
                f"{end}: the table was restored from an older copy; start with a new checkpointLocation",
            )
