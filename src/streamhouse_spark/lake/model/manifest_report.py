"""Joining the manifests of a lake table, for formats in which that is a commit of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ManifestReport:
    """Manifests that were joined, or with ``dry_run`` would be."""

    removed: int = 0
    added: int = 0
    snapshot_id: int | None = None
    """The new snapshot; None if there was nothing to do, and for a dry run."""


@runtime_checkable
class HasManifests(Protocol):
    """A `LakeTable` whose manifests can be joined."""

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        """Join manifests to few large ones, those of delete files too. **Commit point:** the lake's metadata version.

        Rows, files and offsets stay. Rounds join small manifests by themselves, so this is for tables that other
        engines wrote to, or whose partition spec changed. Raises `CommitConflictError`, `LakeMismatchError`,
        `CommitStateUnknownError`.
        """
