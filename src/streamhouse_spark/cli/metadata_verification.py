"""The metadata part of ``verify``: commit records, checkpoints, hint and tags of a log, and older lake metadata.

A cleaner may run concurrently, so a file counts as missing only if nothing explains its deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.paths import checkpoint_hint_key, checkpoint_key, commit_key, commits_prefix, parse_numbers
from streamhouse_spark.errors import ObjectNotFoundError, StreamhouseError
from streamhouse_spark.log.commits.checkpoint import (
    list_checkpoints,
    parse_hint,
    read_checkpoint,
    read_hint,
    read_hinted_state,
    read_tagged,
)
from streamhouse_spark.log.commits.record import read_record
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.tags import TaggedVersion
from streamhouse_spark.log.segments.reader import verify_segment
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.storage.base import url_of
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.tags import list_pinned_segments

REWRITTEN = "reads go on without it, and the next checkpoint writes it again"


def metadata_problems(table: Table, state: TableState) -> Iterator[str]:
    """Yield the damaged or missing metadata files of the log."""
    yield from _record_problems(table, state)
    yield from _checkpoint_problems(table, state)
    yield from _hint_problems(table)
    for name, tag in sorted(state.tags.items()):
        yield from (f"tag '{name}': {problem}" for problem in _tag_problems(table, state, tag))


def lake_metadata_problems(table: Table) -> Iterator[str]:
    """Yield the damaged or missing lake metadata, apart from the recorded snapshot."""
    try:
        yield from table.open_lake().metadata_problems()
    except StreamhouseError as error:
        yield str(error)


def _record_problems(table: Table, state: TableState) -> Iterator[str]:
    listed = parse_numbers(table.storage.list_names(commits_prefix(table.uuid)))
    first = max(table.log.refresh_floor(), 1 if not state.former_uuids else min(listed, default=1))
    missing = partial(_missing_record, table)
    yield from _problems(
        range(first, state.version + 1), lambda number: read_record(table.storage, table.uuid, number), missing
    )


def _missing_record(table: Table, number: int) -> str | None:
    if number < table.log.refresh_floor():
        return None  # cleaned up concurrently
    return f"{url_of(table.storage, commit_key(table.uuid, number))} is missing; restore it"


def _checkpoint_problems(table: Table, state: TableState) -> Iterator[str]:
    numbers = list_checkpoints(table.storage, table.uuid)
    yield from _problems(
        [number for number in numbers if number <= state.version],
        lambda number: read_checkpoint(table.storage, table.uuid, number),
        lambda _: None,  # a cleaner deleted it
    )


def _hint_problems(table: Table) -> Iterator[str]:
    numbers = list_checkpoints(table.storage, table.uuid)
    hint = read_hint(table.storage, table.uuid)
    where = url_of(table.storage, checkpoint_hint_key(table.uuid))
    if not hint:
        if numbers:
            yield f"{where} is missing; {REWRITTEN}"
        return
    named = parse_hint(hint)
    has_state = b"\n" in hint
    if (named is None and not has_state) or (has_state and read_hinted_state(hint, table.uuid) is None):
        yield f"{where} cannot be read; {REWRITTEN}"
    elif named is not None and named not in list_checkpoints(table.storage, table.uuid):
        key = checkpoint_key(table.uuid, named)
        if parse_hint(read_hint(table.storage, table.uuid)) == named:
            yield f"{url_of(table.storage, key)} is missing, and the hint names it; {REWRITTEN}"


def _tag_problems(table: Table, state: TableState, tag: TaggedVersion) -> Iterator[str]:
    try:
        tagged = read_tagged(table.storage, table.uuid, tag.version, tag.uuid)
    except StreamhouseError as error:
        yield str(error)
        return
    checked = {(segment.uuid, segment.part) for segment in state.kept_segments()}  # verified by `verify_log`
    pin = take_latest_snapshot(tagged)
    of_keys = {(segment.uuid, segment.part) for base in pin.bases.values() for segment in base.segments}
    for segment in list_pinned_segments(pin):
        place = segment.uuid, segment.part
        if segment.uuid is None or place in checked:
            continue
        schema_of = tagged.schemas.__getitem__ if place in of_keys else tagged.written_schema
        try:
            verify_segment(table.storage, table.uuid, segment, schema_of(segment.schema_id).arrow)
        except StreamhouseError as error:
            yield str(error)
    if tag.lake_snapshot is not None:
        try:
            table.open_lake(tagged).plan_read(snapshot_id=tag.lake_snapshot, schema=tagged.schema)
        except StreamhouseError as error:
            yield str(error)


def _problems(
    numbers: Sequence[int], read: Callable[[int], object], missing: Callable[[int], str | None]
) -> Iterable[str]:
    """Return the errors of reading each number, and ``missing`` for those that do not exist."""

    def problem(number: int) -> str | None:
        try:
            read(number)
        except ObjectNotFoundError:
            return missing(number)
        except StreamhouseError as error:
            return str(error)
        return None

    return filter(None, parallel_map(problem, numbers))
