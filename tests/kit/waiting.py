"""Waiting for other threads and processes: as long as a busy machine needs, and no longer than a test may take."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S_MAX = 240
"""A process that gets a tenth of a core needs some 20 s for its imports alone."""


def wait_for(happened: Callable[[], object], what: str) -> None:
    """Raises `AssertionError`, which says ``what`` did not happen, if ``happened`` stays false for `WAIT_S_MAX`."""
    until = time.monotonic() + WAIT_S_MAX
    while not happened():
        assert time.monotonic() < until, f"{what} did not happen within {WAIT_S_MAX} s"
        time.sleep(0.02)
