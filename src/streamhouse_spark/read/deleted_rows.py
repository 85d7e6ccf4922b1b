"""Deletions of rows as a reader of the log meets them: those that it was told of stay left out, later ones may be news.

A reader of plain rows cannot take back a row that it handed out. So a deletion that came after a position, of rows
before it, is an error to all who go on from there; rows that are deleted before they are read are left out. Rows of
partitions that are dropped before they are read are left out, too, and nobody is told of those dropped later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError
from streamhouse_spark.log.commits.deletions import Deletions, joined
from streamhouse_spark.log.commits.state import TableState


def known_at(state: TableState, commit: int) -> TableState:
    """Return the state with the deletions up to a commit alone, so that a read of it can be repeated."""
    if not state.deletions or state.deletions[-1].commit <= commit:
        return state
    return replace(state, deletions=Deletions(d for d in state.deletions if d.first_commit <= commit))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of dropped partitions that a reader of the log leaves out."""

    rows: Mapping[int, OffsetRuns]
    """Bucket → those that the log still holds."""
    lake_may_lack: bool
    """Whether all rows that the lake lacks below the log's start are to be left out."""


def dropped_by(state: TableState, commit: int) -> LeftOut:
    """Return the rows of partitions that were dropped up to a commit, so that a read of it can be repeated."""
    named = joined(deletion for deletion in state.dropped_rows.named if deletion.first_commit <= commit)
    has_dropped = state.lake is not None and state.lake.dropped_rows > 0
    return LeftOut(named, has_dropped and state.dropped_rows.newest <= commit)


def require_undeleted(state: TableState, positions: Mapping[int, int], commit: int, *, who: str, advice: str) -> None:
    """Require that no row before the ``positions`` was deleted after a commit. Raises `OffsetsTrimmedError`."""
    for deletion in state.deletions:
        if deletion.commit <= commit:
            continue
        if deletion.files:
            raise OffsetsTrimmedError(
                f"commit {deletion.commit} deleted rows of {state.name} that have no offsets any more, and {who} may "
                f"have read them while they had some: what was made of them is out of date; {advice}"
            )
        if deletion.is_in_lake:
            raise OffsetsTrimmedError(
                f"commit {deletion.commit} deleted rows of {state.name} that were tiered and trimmed since, and {who} "
                f"may have read them: what was made of them is out of date; {advice}"
            )
        for bucket, runs in deletion.rows.items():
            read = runs.within(OffsetRange(0, positions.get(bucket, 0)))
            if read:
                raise OffsetsTrimmedError(
                    f"commit {deletion.commit} deleted rows of {state.name} that {who} has read, the first of them "
                    f"offset {read.range.start} of bucket {bucket}: what was made of them is out of date; {advice}"
                )


def require_changes_told(state: TableState, what: str) -> None:
    """Require that the changes of a log table are its appended rows. Raises `InvalidOptionError`."""
    if state.deletions:
        deletion = state.deletions[-1]
        raise InvalidOptionError(
            f"{what} cannot tell of deleted rows yet, and commit {deletion.commit} deleted some; read the rows that "
            "are there from the table itself"
        )
