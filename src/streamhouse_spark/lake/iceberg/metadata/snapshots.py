"""Snapshots in a table's metadata, as far as log offsets need them, parsed without Iceberg's library.

`ParsedSnapshots` has these parts of the library's metadata under the same names, so that `offsets` works with both.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass

_REMEMBERED: Final = 8
_DAMAGE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class AnySnapshot(Protocol):
    """A snapshot, parsed here or by the library."""

    @property
    def snapshot_id(self) -> int: ...

    @property
    def parent_snapshot_id(self) -> int | None: ...

    @property
    def sequence_number(self) -> int | None: ...

    @property
    def timestamp_ms(self) -> int: ...

    @property
    def summary(self) -> Mapping[str, Any] | None: ...


class AnyRef(Protocol):
    """A tag or branch, parsed here or by the library."""

    @property
    def snapshot_id(self) -> int: ...


SnapshotT = TypeVar("SnapshotT", bound=AnySnapshot)
AnySnapshot_co = TypeVar("AnySnapshot_co", bound=AnySnapshot, covariant=True)


class AnySnapshots(Protocol[AnySnapshot_co]):
    """Metadata with its snapshots, parsed here or by the library."""

    @property
    def location(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def snapshots(self) -> Sequence[AnySnapshot_co]: ...

    @property
    def refs(self) -> Mapping[str, AnyRef]: ...

    @property
    def current_snapshot_id(self) -> int | None: ...

    def current_snapshot(self) -> AnySnapshot_co | None: ...

    def snapshot_by_id(self, snapshot_id: int) -> AnySnapshot_co | None: ...


@dataclass(frozen=True, slots=True)
class ParsedSnapshot:
    """An `AnySnapshot` parsed here."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int | None
    timestamp_ms: int
    summary: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class ParsedRef:
    """An `AnyRef` parsed here."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class ParsedSnapshots:
    """`AnySnapshots` parsed here."""

    location: str
    properties: Mapping[str, str]
    snapshots: Sequence[ParsedSnapshot]
    refs: Mapping[str, ParsedRef]
    current_snapshot_id: int | None

    def current_snapshot(self) -> ParsedSnapshot | None:
        return None if self.current_snapshot_id is None else self.snapshot_by_id(self.current_snapshot_id)

    def snapshot_by_id(self, snapshot_id: int) -> ParsedSnapshot | None:
        return next((snapshot for snapshot in self.snapshots if snapshot.snapshot_id == snapshot_id), None)


_parsed: OrderedDict[bytes, ParsedSnapshots] = OrderedDict()
_lock = new_lock()


def read_snapshots(data: bytes) -> ParsedSnapshots | None:
    """Parse metadata of format version 2, or return None for other versions and damage, which Iceberg's library
    reports.

    The cache is keyed by content, so never stale.
    """
    with _lock:
        snapshots = _parsed.get(data)
        if snapshots is not None:
            _parsed.move_to_end(data)
            return snapshots
    try:
        snapshots = _parse_snapshots(json.loads(data))
    except _DAMAGE:
        return None
    with _lock:
        _parsed[data] = snapshots
        while len(_parsed) > _REMEMBERED:
            _parsed.popitem(last=False)
    return snapshots


def _parse_snapshots(metadata: Mapping[str, Any]) -> ParsedSnapshots:
    if _parse_number(metadata["format-version"]) != 2:
        raise ValueError("another format version")
    current, refs = metadata.get("current-snapshot-id"), metadata.get("refs", {})
    snapshots = ParsedSnapshots(
        location=_parse_text(metadata["location"]),
        properties=_parse_texts(metadata.get("properties", {})),
        snapshots=[_parse_snapshot(snapshot) for snapshot in metadata.get("snapshots", ())],
        refs={name: ParsedRef(_parse_number(ref["snapshot-id"])) for name, ref in refs.items()},
        current_snapshot_id=None if current in (None, -1) else _parse_number(current),
    )
    if snapshots.current_snapshot_id is not None and snapshots.current_snapshot() is None:
        raise ValueError("the current snapshot is missing")
    return snapshots


def _parse_snapshot(snapshot: Mapping[str, Any]) -> ParsedSnapshot:
    parent, summary = snapshot.get("parent-snapshot-id"), snapshot.get("summary")
    return ParsedSnapshot(
        snapshot_id=_parse_number(snapshot["snapshot-id"]),
        parent_snapshot_id=None if parent is None else _parse_number(parent),
        sequence_number=_parse_number(snapshot.get("sequence-number", 0)),
        timestamp_ms=_parse_number(snapshot["timestamp-ms"]),
        summary=None if summary is None else _parse_texts(summary),
    )


def _parse_number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    return value


def _parse_text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not a text")
    return value


def _parse_texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _parse_text(value) for name, value in values.items()}
