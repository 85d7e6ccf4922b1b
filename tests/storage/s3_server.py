"""An S3 server of the tests' own: moto in a process of its own, as a real server is."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from faults.sim import SimClock

ACCESS_KEY_ID = "test-access-key"
SECRET_ACCESS_KEY = "canary-secret-4711"

_PROGRAM = Path(__file__).with_name("s3_process.py")
_START_SECONDS_MAX = 240


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server. `new_bucket` makes a bucket that nobody else uses."""

    host: str
    port: int
    _numbers: count[int]

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def new_bucket(self) -> str:
        name = f"bucket-{next(self._numbers)}"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=240)
        try:
            connection.request("PUT", f"/{name}")
            assert connection.getresponse().status == 200
        finally:
            connection.close()
        return name


class ServerClock(SimClock):
    """The server's wall clock, so that slow requests make no difference to it; sleeping still costs no time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def settings_for(endpoint: str) -> dict[str, str]:
    """Warehouse settings for a server at ``endpoint``."""
    return {
        "s3.endpoint": endpoint,
        "s3.access-key-id": ACCESS_KEY_ID,
        "s3.secret-access-key": SECRET_ACCESS_KEY,
        "s3.region": "us-east-1",
    }


@contextmanager
def running_s3_server(*options: str) -> Iterator[S3Server]:
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield S3Server("127.0.0.1", int(process.stdout.readline()), count(1))
        finally:
            process.terminate()
            process.wait(_START_SECONDS_MAX)
