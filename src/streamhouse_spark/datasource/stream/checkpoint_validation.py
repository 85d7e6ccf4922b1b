"""Validation of a stream's checkpoint against the table's history, and the position to continue from after a mismatch.

A table restored from a backup, or a copy that a query is pointed to, has the same uuid but other rows after the point
where the histories diverge. A position names the latest record with rows at that time. If the log does not have that
record, the query has read rows that are not the table's, or would skip some.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamhouse_spark.datasource.stream.stream_offset import StreamOffset
from streamhouse_spark.errors import DifferentHistoryError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.history_epochs import HistoryPoint, HistoryRelation

logger = logging.getLogger(__name__)


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
    truncation = state.truncation.commit if state.truncation is not None else 0
    return replace(offset, offsets=offsets, initial=None, truncation=truncation, rows=None, history=state.anchors.rows)
