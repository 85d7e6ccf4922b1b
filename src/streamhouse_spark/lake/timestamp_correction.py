"""Times of lake snapshots, corrected for a clock that was ahead. Pure.

The formats require times that never decrease: engines reject or miss a snapshot with an earlier time than its parent. A
snapshot after one from the future takes the same time, and stores its own in `TIME_PROPERTY`. Here later, smaller times
correct one from the future, as with log records. Other engines read the stored times, and retain such snapshots until
their time comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

TIME_PROPERTY: Final = "streamhouse-time-ms"
"""The commit time of a snapshot that had to take a later one."""


def next_snapshot_time_ms(now_ms: int, newest_ms: int) -> tuple[int, dict[str, str]]:
    """Return the time of a snapshot after one of ``newest_ms``, and its property."""
    return max(now_ms, newest_ms), {TIME_PROPERTY: str(now_ms)} if now_ms < newest_ms else {}


def own_ms(timestamp_ms: int, properties: Mapping[str, str]) -> int:
    """Return the time by the clock of the snapshot's writer."""
    text = properties.get(TIME_PROPERTY, "")
    return int(text) if text.isascii() and text.isdigit() else timestamp_ms


def latest_ms(own: Sequence[int]) -> list[int]:
    """Return the latest possible time of each snapshot, from the own times of all in commit order.

    A snapshot was made before its successors.
    """
    times = list(own)
    for place in range(len(times) - 2, -1, -1):
        times[place] = min(times[place], times[place + 1])
    return times


def effective_times_ms(own: Sequence[int], now_ms: int) -> list[int]:
    """Return the time from which each snapshot's age counts: its own if that has passed, and never less than an older
    one's.

    A time from the future becomes the latest possible one. So a fast clock does not retain snapshots forever, and a
    slow one does not expire them early.
    """
    times_ms: list[int] = []
    for own_time_ms, latest in zip(own, latest_ms(own), strict=True):
        time_ms = own_time_ms if own_time_ms <= now_ms else latest
        newest_ms = times_ms[-1] if times_ms and times_ms[-1] <= now_ms else time_ms
        times_ms.append(max(time_ms, newest_ms))
    return times_ms
