"""Tags: named versions of a table, whose log files, records and lake snapshots are retained.

**Commit point:** the record that adds or removes the name. Before it, the state of the version is stored in an object,
which cleaning deletes if the record is never committed. The record is committed only if every log file of the version
belongs to the table, because then no concurrent cleaning deletes it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import tag_key
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, SnapshotExpiredError, quote
from streamhouse_spark.log.actions import Action, DropTag, Tag
from streamhouse_spark.log.catalog.branches import BRANCH_TAG, find_branch, require_no_branch
from streamhouse_spark.log.checkpoint import write_tagged
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState, find_tag_of_version
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.table_handle import TableHandle

NAME_CHARS_MAX: Final = 128
_NAME = re.compile(r"[a-z_][a-z0-9_.\-]*\Z")
_TRIES = 5
_VERSION_MAX = 10**19
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TableTag:
    """A named version of a table."""

    name: str
    version: int
    created_ms: int
    expires_ms: int | None = None
    """Time when maintenance drops the tag; None for never."""
    lake_snapshot: int | None = None
    """The lake snapshot of the version."""


def list_tags(state: TableState) -> list[TableTag]:
    """Return the tags, ordered by name, except tags of branches and clones."""
    return [
        TableTag(name, tag.version, tag.time_ms, tag.until_ms, tag.lake_snapshot)
        for name, tag in sorted(state.tags.items())
        if not name.startswith(BRANCH_TAG)
    ]


def resolve_version(state: TableState, version: int | str) -> int:
    """Return the commit number of a number or a tag. Raises `InvalidOptionError` for an unknown tag."""
    if isinstance(version, int) and not isinstance(version, bool):
        return min(max(version, 0), _VERSION_MAX)  # the read reports an unknown number
    if not isinstance(version, str):
        raise InvalidOptionError(f"version of {state.name} is {quote(version)}, expected a commit number or a tag")
    text = version.strip()
    if text.lower() in state.tags:
        return state.tags[text.lower()].version
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    tag_names = ", ".join(tag.name for tag in list_tags(state)) or "none"
    raise InvalidOptionError(
        f"{state.name} VERSION AS OF {quote(version)}: expected a commit number of {state.name}$commits or a tag "
        f"(tags: {tag_names}); read snapshot ids, tags and branches of the lake from {state.name}$lake"
    )


def list_segments(snapshot: ReadSnapshot) -> Iterator[Segment]:
    """Yield the segments of the log and of key-value snapshots that a read snapshot uses."""
    for bucket, offsets in snapshot.hot.items():
        yield from (s for s in snapshot.state.buckets[bucket].segments if s.end_offset > offsets.start)
    for base in snapshot.bases.values():
        yield from base.segments


def create_tag(table: TableHandle, name: str, version: int | str | None, retain_ms: int | None) -> TableTag:
    """Tag a version; see `Table.create_tag`."""
    require_no_branch(table.state, "a tag")
    name = _parse_tag_name(name)
    if retain_ms is not None and (type(retain_ms) is not int or retain_ms < 1):
        raise InvalidOptionError(
            f"tag {name!r}: retain_ms is {quote(retain_ms)}, expected at least 1 millisecond, or None"
        )

    def create(current: TableState, target: TableState) -> TableState:
        _require_free_name(current, name)
        retain_version(table, name, target, list_segments(take_latest_snapshot(target)), retain_ms)
        return target

    target = call_with_version(table, version, create)
    _require_lake_snapshot(table, name, target)
    return next(tag for tag in list_tags(table.refresh()) if tag.name == name)


def call_with_version(
    table: TableHandle, version: int | str | None, work: Callable[[TableState, TableState], _T]
) -> _T:
    """Return the result of ``work`` with the latest state and the state of a version, by default the latest.

    If the latest version is compacted or trimmed concurrently, so that ``work`` raises `SnapshotExpiredError`, retries
    with the new latest version.
    """
    for attempt in itertools.count(1):
        current = table.refresh()
        target = current if version is None else state_at(table.log, table.storage, resolve_version(current, version))
        try:
            return work(current, target)
        except SnapshotExpiredError:
            if version is not None or attempt == _TRIES:
                raise
    raise AssertionError


def drop_tag(table: TableHandle, name: str) -> None:
    """Remove a tag; see `Table.drop_tag`."""
    name = _parse_tag_name(name)

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        return (DropTag((name,)),) if name in state.tags else ()

    if name not in table.refresh().tags:
        tag_names = ", ".join(tag.name for tag in list_tags(table.state)) or "none"
        raise InvalidOptionError(f"{table.name} has no tag {name!r}; available: {tag_names}")
    table.log.commit(plan)


def _parse_tag_name(name: str) -> str:
    """Return the name in lower case. Raises `InvalidOptionError` for an invalid name."""
    folded = name.lower() if name.isascii() else ""
    if not _NAME.match(folded) or len(folded) > NAME_CHARS_MAX or folded == "main":
        raise InvalidOptionError(
            f"tag {quote(name)}: expected at most {NAME_CHARS_MAX} letters (a-z), digits, underscores, dots and "
            "hyphens, starting with a letter or underscore, and not 'main'; choose such a name"
        )
    return folded


def _require_free_name(state: TableState, name: str) -> None:
    if find_branch(state, name) is not None:
        raise InvalidOptionError(
            f"{state.name} has a branch {name!r}, and a tag cannot have the name of a branch; choose another name"
        )
    if name in state.tags:
        raise InvalidOptionError(
            f"{state.name} already has a tag {name!r} of version {state.tags[name].version}; drop it first, or choose "
            "another name"
        )


def retain_version(
    table: TableHandle, name: str, target: TableState, segments: Iterable[Segment], retain_ms: int | None = None
) -> None:
    """Tag a version, so that its lake snapshot, its log files and ``segments`` are retained.

    Raises `SnapshotExpiredError` if the segments no longer belong to the table, and no other tag retains them.
    """
    uuid, segments = table.world.ids.new_uuid(), list(segments)
    lake_snapshot = target.lake.snapshot_id if target.lake is not None else None
    if lake_snapshot is not None:
        table.open_lake().snapshot(lake_snapshot)
    _require_live(table.state, target, segments)
    write_tagged(table.storage, target, uuid)

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        if (existing := state.tags.get(name)) is not None and existing.uuid == uuid:
            return ()
        _require_free_name(state, name)
        _require_live(state, target, segments)
        _require_not_expiring(state, target, lake_snapshot)
        if tag_key(state.table_uuid, uuid) in state.condemned:
            raise CommitConflictError(
                f"cannot create tag {name!r} of {state.name}: it took longer than the grace period; run it again"
            )
        return (Tag(name, target.version, uuid, lake_snapshot, retain_ms),)

    table.log.commit(plan)


def _require_live(state: TableState, target: TableState, segments: Iterable[Segment]) -> None:
    """Raise `SnapshotExpiredError` unless the segments belong to the table, or another tag retains the version.

    Other segments are marked as deleted, and their files may be deleted at any time.
    """
    if find_tag_of_version(state.tags, target.version) is not None:
        return
    live = {(s.uuid, s.commit if s.uuid is None else 0) for s in state.kept_segments()}
    needed = {(s.uuid, s.commit if s.uuid is None else 0) for s in segments}
    if state.lake_location != target.lake_location or not needed <= live:
        raise SnapshotExpiredError(
            f"{state.name} as of commit {target.version} cannot be tagged: its rows were compacted, trimmed or deleted "
            f"since, and the old files may be deleted at any time; choose a later commit of {state.name}$history, and "
            "tag versions while they are new"
        )


def _require_not_expiring(state: TableState, target: TableState, lake_snapshot: int | None) -> None:
    """Raise if the lake snapshot is being expired; see `table.maintenance.lake.make_expiry_claim`."""
    if lake_snapshot in state.expiring:
        raise _expired_error(state.name, target.version, lake_snapshot)


def _require_lake_snapshot(table: TableHandle, name: str, target: TableState) -> None:
    """Drop the tag and raise if another engine, which ignores tags, expired the lake snapshot concurrently."""
    tag = table.refresh().tags.get(name)
    if tag is None or tag.lake_snapshot is None:
        return
    try:
        table.open_lake().snapshot(tag.lake_snapshot)
    except SnapshotExpiredError as error:
        table.log.commit(lambda state, _: (DropTag((name,)),) if state.tags.get(name) == tag else ())
        raise _expired_error(table.name, target.version, tag.lake_snapshot) from error


def _expired_error(name: str, version: int, lake_snapshot: int | None) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"{name} as of commit {version} cannot be tagged: its lake snapshot {lake_snapshot} was expired concurrently; "
        "choose a later version"
    )
