"""Servers of others on loopback that end with the run that started them, however that ends, also by `kill -9`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from interop.ends_with_input import ENDING_S_MAX
from kit.waiting import wait_for

SERVERS = Path(__file__).resolve().parents[2] / "artifacts" / "servers"
"""`make interop-servers` puts them there."""


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    is_ready: Callable[[], bool],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Start a command, and go on once it is ready. Its output goes to ``log``, and into the error if it ends early."""
    own = {key: value for key, value in os.environ.items() if key != "JDK_JAVA_OPTIONS"}  # those of tests of Spark
    program = [sys.executable, Path(__file__).with_name("ends_with_input.py")]
    with (
        log.open("w") as lines,
        subprocess.Popen(
            [*program, *command],
            cwd=cwd,
            env=own | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        assert process.stdin is not None

        def is_ready_or_gone() -> bool:
            assert process.poll() is None, f"it ended with {process.returncode}: {log.read_text()[-3000:]}"
            return is_ready()

        try:
            wait_for(is_ready_or_gone, f"the start of what logs to {log}")
            yield
        finally:
            process.stdin.close()
            process.wait(2 * ENDING_S_MAX)


def installed(name: str) -> Path:
    """Return the folder of a server. Raises `AssertionError` where nobody fetched it."""
    folder = SERVERS / name
    assert (folder / "stamp").exists(), f"{folder} is missing: make interop-servers fetches it"
    return folder
