"""Time, randomness and process identity. Only this module reads them from the system.

All other code receives a `World`, so that a seeded test can run each step of a protocol in a simulated world.
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

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.post_commit import IN_CALL, IN_THREAD, BackgroundRunner


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970 UTC. It may jump; correctness does not depend on it."""

    def boot_ms(self) -> int:
        """Return monotonic milliseconds since a fixed moment, including time while the machine sleeps."""

    def sleep_ms(self, duration_ms: float) -> None: ...


class Ids(Protocol):
    def new_uuid(self) -> str:
        """Return a new UUID as 32 lower-case hexadecimal digits."""

    def jitter(self) -> float:
        """Return a random number in [0, 1), for the delays of retries."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        # CLOCK_BOOTTIME includes suspended time. So does the monotonic clock of macOS, which has no CLOCK_BOOTTIME.
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
    """The user and the engine of a process, which its commits record. Informational only."""

    user: str
    engine: str
    """Name and version of the engine that runs the process: ``python``, ``spark`` or ``cli``."""


def system_author(engine: str) -> Author:
    """Return the author of an engine's commits in this process. A user without a name is empty."""
    version = sys.modules["streamhouse_spark"].__version__  # always loaded; importing it here would be a cycle
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no entry
        user = ""
    return Author(user, f"{engine}/{version}")


def host_name() -> str:
    """Return the host name. Informational only."""
    return socket.gethostname()


RETRY_WAIT_MS = 25
RETRY_WAIT_MS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class World:
    """The clock, id source and commit author of a component."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    author: Author | None = None
    background: BackgroundRunner | None = None
    """Executor of post-commit work; the default is a thread, or the calling thread under a simulated clock."""

    @property
    def post_commit_executor(self) -> BackgroundRunner:
        if self.background is not None:
            return self.background
        return IN_THREAD if type(self.clock) is SystemClock else IN_CALL

    def wait_to_retry(self, attempt: int) -> None:
        """Sleep before attempt number ``attempt``, with exponential back-off and jitter. Attempt 0 does not wait."""
        if attempt:
            wait_ms = min(RETRY_WAIT_MS * 2**attempt, RETRY_WAIT_MS_MAX)
            self.clock.sleep_ms(wait_ms * (0.5 + self.ids.jitter()))
