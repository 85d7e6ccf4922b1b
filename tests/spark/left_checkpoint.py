"""Checkpoints that a kill left as Spark does not take them."""

from __future__ import annotations

from pathlib import Path


def clear(checkpoint: Path) -> None:
    """Take away the file for which Spark refuses a checkpoint whose first batch was killed while its end was being
    written.
    """
    commits = checkpoint / "commits"
    if not any(commits.glob("[0-9]*")):
        for left in commits.glob(".*"):
            left.unlink()
