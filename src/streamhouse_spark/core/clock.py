"""Time, randomness and identity. The only module that may ask the system for them.

Everything else gets a `World`, so that a seeded test can run each step of a protocol under a simulated one.
"""

from __future__ import annotations

import getpass
import random
import socket
import sys
import time
import uuid
from dataclasses import field
from typing import NamedTuple, Protocol

from streamhouse_spark.core.background import IN_CALL, IN_THREAD, Background
from streamhouse_spark.core.lazy_dataclass import dataclass


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since 1970-01-01 UTC. May jump; never decides correctness."""

    def boot_ms(self) -> int:
        """Give the milliseconds since some fixed moment, never going back, counting while the machine sleeps."""

    def sleep_ms(self, duration_ms: float) -> None: ...


class Ids(Protocol):
    def new_uuid(self) -> str:
        """Draw 32 lower-case hexadecimal digits, never given out before."""

    def jitter(self) -> float:
        """Draw a number in [0, 1), for spreading retries."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        # CLOCK_BOOTTIME counts suspended time; macOS has no such clock but its monotonic one does.
        clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime_ns(clock_id) // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000)


class SystemIds:
    def new_uuid(self) -> str:
        return uuid.uuid4().hex

    def jitter(self) -> float:
        return random.random()


class Author(NamedTuple):
    """The user and the engine of a process, as its commits name them; nothing is decided by either."""

    user: str
    engine: str
    """Name and version of what runs the process: ``python``, ``spark`` or ``cli``."""


def system_author(engine: str) -> Author:
    """Return the author of an engine's commits in this process; a user without a name is empty."""
    version = sys.modules["streamhouse_spark"].__version__  # loaded before its modules, which may not import it
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no entry
        user = ""
    return Author(user, f"{engine}/{version}")


def host_name() -> str:
    """Return the name that this host has for itself; nothing is decided by it."""
    return socket.gethostname()


RETRY_WAIT_MS = 25
RETRY_WAIT_MS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class World:
    """The clock and the source of identities that a component runs under, and the author of its commits."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    author: Author | None = None
    background: Background | None = None
    """The place of work behind calls; None for a thread, or for the call itself under another clock than the
    system's."""

    @property
    def after_calls(self) -> Background:
        """The place of work behind calls."""
        if self.background is not None:
            return self.background
        return IN_THREAD if type(self.clock) is SystemClock else IN_CALL

    def wait_to_retry(self, attempt: int) -> None:
        """Sleep before try number ``attempt``: not before 0, then for longer each time, with a random part so that
        processes spread.
        """
        if attempt:
            wait_ms = min(RETRY_WAIT_MS * 2**attempt, RETRY_WAIT_MS_MAX)
            self.clock.sleep_ms(wait_ms * (0.5 + self.ids.jitter()))
