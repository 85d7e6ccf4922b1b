"""Joining the manifests of a lake table, for the formats where that is a commit of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManifestReport:
    """What joining manifests did, or with ``dry_run`` would do."""

    removed: int = 0
    added: int = 0
    snapshot_id: int | None = None
    """The snapshot that it made; None where nothing was to be done, and of a dry run."""
