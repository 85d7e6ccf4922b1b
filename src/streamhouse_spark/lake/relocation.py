"""Interface for relocating a lake in any format."""

from __future__ import annotations

from typing import Protocol


class LakeRelocation(Protocol):
    """The lake table of one table, whose metadata may name another root."""

    num_written: int
    """Number of files rewritten so far."""

    def recorded_root(self) -> str | None:
        """Return the root that the lake's metadata names, if it differs from the opened one."""

    def needed(self) -> set[str]:
        """Return the keys of all files inside the warehouse that a snapshot needs."""

    def relocate(self, new_uuid: str | None) -> None:
        """Make all metadata name the files at their present locations. With ``new_uuid`` the lake belongs to that
        table.

        Completed work is not repeated. Raises `CommitConflictError`, `CommitStateUnknownError`.
        """
