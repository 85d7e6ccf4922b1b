"""Checkpoints that a kill left as Spark does not take them."""

from __future__ import annotations

from pathlib import Path


def clear(checkpoint: Path) -> None:
    """Take away the files for which Spark refuses a checkpoint whose first batch was killed while its offsets, or its
    end, were being written.
    """
    for folder in (checkpoint / "offsets", checkpoint / "commits"):
        if not any(folder.glob("[0-9]*")):
            for left in folder.glob(".*"):
                left.unlink()
