"""When lake snapshots were made, where a clock ran ahead for a while. Pure.

The formats want times that never go back: engines refuse, or do not find, a snapshot that says less than the one before
it. So a snapshot that follows one from the future says the same time, and its own beside it (`TIME_PROPERTY`). Here, as
with records of the log, later and smaller times correct one from the future. Other engines read the times as they
stand, and keep such snapshots until their time comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

TIME_PROPERTY: Final = "streamhouse-time-ms"
"""The time of a snapshot's commit, where the snapshot itself had to say a later one."""


def said_ms(now_ms: int, newest_ms: int) -> tuple[int, dict[str, str]]:
    """What a snapshot says that follows one that says ``newest_ms``: its time, and what stands beside it."""
    return max(now_ms, newest_ms), {TIME_PROPERTY: str(now_ms)} if now_ms < newest_ms else {}


def own_ms(timestamp_ms: int, properties: Mapping[str, str]) -> int:
    """The time by the clock of who made the snapshot."""
    text = properties.get(TIME_PROPERTY, "")
    return int(text) if text.isascii() and text.isdigit() else timestamp_ms


def latest_ms(own: Sequence[int]) -> list[int]:
    """The latest time that each snapshot can have been made at, by the own times of all, in their order.

    It was made before those behind it.
    """
    times = list(own)
    for place in range(len(times) - 2, -1, -1):
        times[place] = min(times[place], times[place + 1])
    return times


def aged_ms(own: Sequence[int], now_ms: int) -> list[int]:
    """The time that each snapshot's age counts from: its own, if that has passed, and never that of an older one.

    One from the future has the latest that it can have. So neither a clock that ran ahead keeps snapshots for ever, nor
    one that ran behind makes them go early.
    """
    found: list[int] = []
    for mine, latest in zip(own, latest_ms(own), strict=True):
        time_ms = mine if mine <= now_ms else latest
        newest_ms = found[-1] if found and found[-1] <= now_ms else time_ms
        found.append(max(time_ms, newest_ms))
    return found
