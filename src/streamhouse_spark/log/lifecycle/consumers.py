"""Named consumers: their log positions, which trimming waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamhouse_spark.core.types import is_unicode
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.commits.actions import Action, CommitConsumerOffset
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.log_position import LogPosition, require_position
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.retention import CONSUMER_RENEW_MS


def move_consumer(
    log: CommitLog,
    consumer_id: str,
    offsets: Mapping[int, int] | None,
    state_at_position: Callable[[TableState], TableState],
) -> None:
    """Move a consumer as `Table.move_consumer` does. **Commit point:** one record.

    ``state_at_position`` raises for a table that was dropped.
    """
    require_position(log, offsets, f"the position of consumer {consumer_id!r}")

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        _check_consumer(state_at_position(state), consumer_id, offsets)
        consumer = state.consumers.get(consumer_id)
        if consumer is None:
            unchanged = offsets is None
        else:
            unchanged = (
                offsets is not None
                and consumer.offsets == dict(offsets)
                and time_ms - consumer.time_ms < CONSUMER_RENEW_MS
            )
        if unchanged:
            return ()
        if offsets is None:
            return (CommitConsumerOffset(consumer_id, None),)
        history = offsets.history if isinstance(offsets, LogPosition) else state.anchors.rows
        return (CommitConsumerOffset(consumer_id, dict(offsets), history),)

    log.commit(plan)


def consumer_position(state: TableState, consumer_id: str) -> LogPosition | None:
    """Return the position of a consumer as `Table.consumer_position` does."""
    consumer = state.consumers.get(consumer_id)
    return None if consumer is None else LogPosition(state.table_uuid, consumer.offsets, consumer.history)


def _check_consumer(state: TableState, consumer_id: object, offsets: Mapping[Any, object] | None) -> None:
    if not isinstance(consumer_id, str) or not consumer_id or not is_unicode(consumer_id):
        raise InvalidOptionError(f"consumer {consumer_id!r} of {state.name}: expected a non-empty text")
    if not isinstance(offsets, Mapping | None):
        raise InvalidOptionError(
            f"consumer {consumer_id!r} of {state.name}: offsets are {offsets!r}, expected a mapping bucket → offset",
        )
    for bucket, offset in (offsets or {}).items():
        end = state.ends.get(bucket)
        if end is None or type(offset) is not int or not 0 <= offset <= end:
            expected = f"0 to {end}" if end is not None else f"buckets 0 to {state.num_buckets - 1}"
            raise InvalidOptionError(
                f"consumer {consumer_id!r} of {state.name}: offset {offset!r} of bucket {bucket!r}, "
                f"expected {expected}",
            )
