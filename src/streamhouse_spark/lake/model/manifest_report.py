"""Joining the manifests of a lake table, for formats in which that is a commit of its own."""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ManifestReport:
    """Manifests that were joined, or with ``dry_run`` would be."""

    removed: int = 0
    added: int = 0
    snapshot_id: int | None = None
    """The new snapshot; None if there was nothing to do, and for a dry run."""
