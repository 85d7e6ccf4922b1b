"""Times of lake snapshots, corrected for a clock that ran ahead for a while. Pure.

The formats want times that never go back: engines refuse, or do not find, a snapshot with an earlier time than the one
before it. So a snapshot that follows one from the future has the same time, and its own beside it (`TIME_PROPERTY`).
Here, as with records of the log, later and smaller times correct one from the future. Other engines read the times as
they stand, and keep such snapshots until their time comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

TIME_PROPERTY: Final = "streamhouse-time-ms"
"""The time of a snapshot's commit, if the snapshot itself had to take a later one."""


def next_snapshot_time_ms(now_ms: int, newest_ms: int) -> tuple[int, dict[str, str]]:
    """Return the time of a snapshot that follows one of ``newest_ms``, and the property beside it."""
    return max(now_ms, newest_ms), {TIME_PROPERTY: str(now_ms)} if now_ms < newest_ms else {}


def own_ms(timestamp_ms: int, properties: Mapping[str, str]) -> int:
    """Return the time by the clock of the snapshot's writer."""
    text = properties.get(TIME_PROPERTY, "")
    return int(text) if text.isascii() and text.isdigit() else timestamp_ms


def latest_ms(own: Sequence[int]) -> list[int]:
    """Return the latest time at which each snapshot can have been made, by the own times of all, in their order.

    It was made before those behind it.
    """
    times = list(own)
    for place in range(len(times) - 2, -1, -1):
        times[place] = min(times[place], times[place + 1])
    return times


def effective_times_ms(own: Sequence[int], now_ms: int) -> list[int]:
    """Return the time from which each snapshot's age counts: its own, if that has passed, and never that of an older
    one.

    One from the future has the latest possible time. So neither a clock that ran ahead keeps snapshots for ever, nor
    one that ran behind makes them go early.
    """
    times_ms: list[int] = []
    for mine, latest in zip(own, latest_ms(own), strict=True):
        time_ms = mine if mine <= now_ms else latest
        newest_ms = times_ms[-1] if times_ms and times_ms[-1] <= now_ms else time_ms
        times_ms.append(max(time_ms, newest_ms))
    return times_ms
