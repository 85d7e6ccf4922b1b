"""A Spark driver killed in the middle of a batch and started again from its checkpoint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark.session import COLUMNS, ids, rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 2
ROWS = 1500
ROWS_PER_BATCH = 50


def test_killed_driver_loses_and_doubles_nothing(wh, tmp_path):
    source = wh.create_table("kill.source", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    target = wh.create_table("kill.target", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    source.append(rows(ROWS))
    command = [sys.executable, str(Path(__file__).with_name("copy_job.py")), wh.url, source.name, target.name]
    command += [str(tmp_path / "checkpoint")]
    chance = random.Random(0)
    for _ in range(ROUNDS):
        reached = target.refresh().version
        job = subprocess.Popen(
            [*command, str(ROWS_PER_BATCH)],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_until(lambda before=reached: target.refresh().version > before + 1, job)
            time.sleep(chance.uniform(0.0, 0.6))
            assert job.poll() is None
        finally:
            os.killpg(job.pid, signal.SIGKILL)  # the JVM too
            job.wait()
        found = ids(target)
        assert len(found) == len(set(found)) < ROWS
    subprocess.run([*command, str(ROWS)], check=True, capture_output=True, timeout=600)
    assert ids(target) == list(range(ROWS))


def _wait_until(condition, job):
    end = time.monotonic() + 300
    while not condition():
        assert job.poll() is None, "the job ended by itself"
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
