"""Deleted rows of which a round is told beside those at offsets, and where they lay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.core.values import dataclass

if TYPE_CHECKING:
    from streamhouse_spark.log.commits.deletions import Deletion


@dataclass(frozen=True, slots=True)
class DeletedBeside:
    of_files: tuple[Deletion, ...] = ()
    """Deletions of rows of files without offsets."""
    recorded: int | None = None
    """The recorded lake snapshot: it has the rows at offsets that files with offsets no longer have."""
    told: int = 0
    """The newest record whose deleted rows the lake lacked as the round was planned."""


NOTHING_BESIDE: Final = DeletedBeside()


@dataclass(frozen=True, slots=True)
class MovedRows:
    """Deleted rows that no file with offsets has any more."""

    rows: Mapping[int, OffsetRuns]
    """Bucket → offsets."""
    foreign: str | None
    """A file without offsets that may have some."""
