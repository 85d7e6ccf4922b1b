"""Time and identities that a seed decides: the same seed gives the same run."""

from __future__ import annotations

import random
import threading

from streamhouse_spark.core.clock import World

START_MS = 1_750_000_000_000


class SimClock:
    """A clock that moves only when told, or when somebody sleeps."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._boot_ms = 1_000_000.0
        self._wall_lead_ms = now_ms - self._boot_ms
        self.slept_ms: list[float] = []

    def now_ms(self) -> int:
        return int(self._boot_ms + self._wall_lead_ms)

    def boot_ms(self) -> int:
        return int(self._boot_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        self.slept_ms.append(duration_ms)
        self.advance(duration_ms)

    def copy(self) -> SimClock:
        """Return another clock at the same time."""
        other = SimClock()
        other._boot_ms, other._wall_lead_ms = self._boot_ms, self._wall_lead_ms
        return other

    def advance(self, duration_ms: float) -> None:
        """Time passes, for both clocks."""
        assert duration_ms >= 0
        with self._lock:
            self._boot_ms += duration_ms

    def jump(self, by_ms: float) -> None:
        """The wall clock is set forward or back; no time passes."""
        with self._lock:
            self._wall_lead_ms += by_ms


class SimIds:
    """Seeded identities and jitter."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def new_uuid(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def jitter(self) -> float:
        return self._random.random()


def sim_world(seed: int = 0, clock: SimClock | None = None) -> World:
    """A world of its own, or one that shares a clock with others (one per simulated process)."""
    return World(clock or SimClock(), SimIds(seed))
