"""A server that a run starts goes with the run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interop.own_process import running
from kit.waiting import wait_for

SERVER = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
RUN = """
import sys, time
from pathlib import Path
from interop.own_process import running

log = Path(sys.argv[1])
with running([sys.executable, "-c", sys.argv[2]], log, lambda: log.exists() and log.read_text().endswith("\\n")):
    print("ready", flush=True)
    time.sleep(600)
"""


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_run_that_is_killed_leaves_no_server(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", RUN, str(log), SERVER]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"ready\n"
        server = int(log.read_text())
        assert is_there(server)
        run.kill()
    wait_for(lambda: not is_there(server), "the end of the server")


def test_a_server_ends_with_its_block_and_says_why_it_did_not_start(tmp_path):
    log, command = tmp_path / "log", [sys.executable, "-c", SERVER]
    with running(command, log, lambda: log.read_text().endswith("\n")):
        server = int(log.read_text())
    wait_for(lambda: not is_there(server), "the end of the server")
    began, failing = time.monotonic(), [sys.executable, "-c", "raise SystemExit('the port is taken')"]
    with (
        pytest.raises(AssertionError, match="it ended with 1: the port is taken"),
        running(failing, log, lambda: False),
    ):
        pass
    assert time.monotonic() - began < 60
