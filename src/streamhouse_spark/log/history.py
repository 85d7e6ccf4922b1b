"""Time travel: computes the state after an older record from the checkpoint before it and the records between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.errors import (
    CorruptDataError,
    FormatVersionError,
    InvalidOptionError,
    ObjectNotFoundError,
    SnapshotExpiredError,
)
from streamhouse_spark.log.checkpoint import list_checkpoints, read_checkpoint, read_tagged
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.record import iter_records, read_record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState, find_tag_of_version, fold
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch


def state_at(log: CommitLog, storage: Storage, version: int) -> TableState:
    """Return the state after record ``version``.

    Records below the low watermark are void. The result counts only if the low watermark, read after the records, is at
    most the first record that was read.

    Raises `InvalidOptionError` for a record that does not exist yet, `SnapshotExpiredError` for an expired state.
    """
    newest = log.state if version <= log.state.version else log.refresh()
    if not 1 <= version <= newest.version:
        raise InvalidOptionError(
            f"{newest.name} has no commit {version}: its commits are 1 to {newest.version}, see {newest.name}$commits",
        )
    if version == newest.version:
        return newest
    if (tag := find_tag_of_version(newest.tags, version)) is not None:
        return read_tagged(storage, log.table_uuid, version, tag.uuid)
    base = _find_checkpoint_before(storage, log.table_uuid, version)
    first = base.version + 1 if base is not None else 1
    try:
        state = _fold_records(storage, log.table_uuid, base, version)
    except (ObjectNotFoundError, CorruptDataError) as error:
        if log.refresh_low_watermark() <= first and isinstance(error, CorruptDataError):
            raise
        raise _expired_error(newest, version) from error
    if log.refresh_low_watermark() > first:
        raise _expired_error(newest, version)
    return state


def state_with_snapshots(log: CommitLog, storage: Storage, version: int) -> TableState:
    """Return the state after record ``version``, even below the low watermark. Only its KV snapshots may be used.

    Below the low watermark, a slow writer may have put another record under a deleted number. KV snapshots are correct
    in any case: every writer's snapshot has the rows of its bucket at its offset. They can be read until the records
    are deleted, at least a day after they were the latest. Raises `SnapshotExpiredError`.
    """
    base = _find_checkpoint_before(storage, log.table_uuid, version)
    try:
        return _fold_records(storage, log.table_uuid, base, version)
    except (ObjectNotFoundError, CorruptDataError) as error:
        first = base.version + 1 if base is not None else 1
        if isinstance(error, CorruptDataError) and log.refresh_low_watermark() <= first:
            raise
        raise _expired_error(log.state, version) from error


def find_latest_state_within(
    log: CommitLog, storage: Storage, newest: TableState, is_within: Callable[[TableState], bool]
) -> tuple[TableState | None, TableState]:
    """Return the latest state before ``newest`` for which ``is_within`` is true, and the next state.

    ``is_within`` must be monotonic: true for every state before a state for which it is true. States whose records
    expired are skipped: the first result is None if no retained state is within, and the second result may be some
    records later. Reads a logarithmic number of checkpoints, and the records after one checkpoint.
    """
    uuid = log.table_uuid
    numbers = sorted(number for number in list_checkpoints(storage, uuid) if number < newest.version)
    base: TableState | None = None
    beyond = newest
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        checkpoint = _read_if_whole(storage, uuid, numbers[middle])
        if checkpoint is not None and not is_within(checkpoint):
            high, beyond = middle, checkpoint
        else:
            low, base = middle + 1, base if checkpoint is None else checkpoint
    within = state = base
    first = base.version + 1 if base is not None else 1
    try:
        for record in iter_records(Prefetch(storage), uuid, first):
            if record.number >= beyond.version:
                break
            state = fold(state, record)
            if not is_within(state):
                beyond = state
                break
            within = state
    except CorruptDataError:  # also raised for a deleted manifest
        return base, _find_oldest_retained(storage, uuid, numbers[high:], newest)
    if log.refresh_low_watermark() > first:
        return base, _find_oldest_retained(storage, uuid, numbers[high:], newest)
    return within, beyond


def _find_oldest_retained(storage: Storage, table_uuid: str, numbers: Iterable[int], newest: TableState) -> TableState:
    states = (_read_if_whole(storage, table_uuid, number) for number in numbers)
    return next((state for state in states if state is not None), newest)


def _read_if_whole(storage: Storage, table_uuid: str, number: int) -> TableState | None:
    try:
        return read_checkpoint(storage, table_uuid, number)
    except FormatVersionError:
        raise
    except (ObjectNotFoundError, CorruptDataError):  # the retained records have the same content
        return None


def _find_checkpoint_before(storage: Storage, table_uuid: str, version: int) -> TableState | None:
    for number in reversed(list_checkpoints(storage, table_uuid)):
        if number > version:
            continue
        if (state := _read_if_whole(storage, table_uuid, number)) is not None:
            return state
    return None


def _fold_records(storage: Storage, table_uuid: str, base: TableState | None, version: int) -> TableState:
    state = base
    for number in range(base.version + 1 if base is not None else 1, version + 1):
        state = fold(state, read_record(storage, table_uuid, number)[0])
    assert state is not None
    return state


def _expired_error(newest: TableState, version: int) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"{newest.name} as of commit {version}: the records have expired; choose a later "
        f"commit of {newest.name}$commits, or a snapshot of {newest.name}$lake",
    )


def require_retained_segments(log: CommitLog, state: TableState, segments: Iterable[Segment]) -> None:
    """Raise `SnapshotExpiredError` unless the segments of an older state are live, or condemned and not yet deleted.

    Inline rows are retained until the low watermark is above their record.
    """
    newest = log.state
    if newest.version <= state.version or find_tag_of_version(newest.tags, state.version) is not None:
        return
    live = {(s.uuid, s.commit if s.uuid is None else 0) for s in newest.kept_segments()}
    watermark = log.refresh_low_watermark()
    for segment in segments:
        if segment.uuid is None:
            is_retained = segment.commit >= watermark or (None, segment.commit) in live
        else:
            is_condemned = segment_key(state.table_uuid, segment.uuid) in newest.condemned
            is_retained = is_condemned or (segment.uuid, 0) in live
        if not is_retained:
            raise SnapshotExpiredError(
                f"{newest.name} as of commit {state.version}: the former segment of rows {segment.offsets} of bucket "
                f"{segment.bucket} has expired; choose a later commit of {newest.name}$commits",
            )
