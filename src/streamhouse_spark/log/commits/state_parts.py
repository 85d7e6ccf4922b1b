"""Small parts of a table's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamhouse_spark.log.commits.anchors import HistoryMark


@dataclass(frozen=True, slots=True)
class ConsumerEntry:
    """The position of a named consumer, and the time of its last report."""

    offsets: Mapping[int, int]
    time_ms: int
    history: HistoryMark | None = None
    """See `streamhouse_spark.log.commits.position.LogPosition`."""


@dataclass(frozen=True, slots=True)
class MarkedDeleted:
    commit: int
    time_ms: int
    orphan: bool
    """Whether no record ever named the file, so that a slow writer may still hold it."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The newest record that emptied the table: rows below ``offsets[bucket]`` are no longer the table's."""

    commit: int
    time_ms: int
    offsets: Mapping[int, int]
