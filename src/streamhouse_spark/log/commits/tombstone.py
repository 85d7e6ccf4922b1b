"""Condemned files, which are deleted after the grace period."""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TombstonedFile:
    """The record that condemned a file, and its time."""

    commit: int
    time_ms: int
    orphan: bool
    """Whether no record ever named the file, so that a slow writer may still use it."""
