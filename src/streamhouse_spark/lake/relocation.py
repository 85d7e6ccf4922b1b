"""What relocating a warehouse needs of a lake, in any format."""

from __future__ import annotations

from typing import Protocol


class LakeRelocation(Protocol):
    """The lake table of one table, which may say that it lies elsewhere."""

    num_written: int
    """Files that were written anew so far."""

    def recorded_root(self) -> str | None:
        """The root that the lake's metadata names, where it is another than the one that was opened."""

    def needed(self) -> set[str]:
        """Keys of all files inside the warehouse that a snapshot needs."""

    def relocate(self, new_uuid: str | None) -> None:
        """Let all metadata name the files where they lie. With ``new_uuid`` the lake belongs to that table.

        What is done already is not done again. Raises `CommitConflictError`, `CommitStateUnknownError`.
        """
