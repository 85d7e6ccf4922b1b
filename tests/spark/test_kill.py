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

from kit.waiting import wait_for
from spark import copy_job
from spark.session import COLUMNS, ids, rows

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

ROUNDS = 1
ROWS = 15_000
"""Far more than a job copies before it is killed, however late that is."""
ROWS_PER_BATCH = 50
HELD_ROWS = 250


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


def test_driver_killed_while_a_batch_runs(wh, tmp_path):
    """The second task of a batch waits while the driver is killed: in the first batch, then in a later one."""
    source = wh.create_table("kill.held_source", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    target = wh.create_table("kill.held_target", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    source.append(rows(HELD_ROWS))
    checkpoint, hold = tmp_path / "checkpoint", tmp_path / copy_job.HOLD
    command = [sys.executable, copy_job.__file__, wh.url, source.name, target.name, str(checkpoint)]
    command += [str(ROWS_PER_BATCH), str(tmp_path)]
    for finished in (0, 2):
        if not finished:
            hold.touch()
        job = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until(lambda: len(ids(target)) >= finished * ROWS_PER_BATCH, job)  # noqa: B023
            hold.touch()
            _wait_until((tmp_path / copy_job.RUNNING).exists, job)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            hold.unlink()  # workers of the dead driver go on, and write what they have
            (tmp_path / copy_job.RUNNING).unlink(missing_ok=True)
        begun, ended = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
        assert begun - ended == {max(begun)}, "no batch was under way"
        assert len(ended) >= finished
        found = ids(target)
        assert len(found) == len(set(found)) == len(ended) * ROWS_PER_BATCH
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    assert ids(target) == list(range(HELD_ROWS))
    batches = [c["txn_version"] for c in target.inspect.commits().to_pylist() if c["txn_version"] is not None]
    assert sorted(batches) == list(range(HELD_ROWS // ROWS_PER_BATCH)), "each batch is one commit, in order"


def _numbers(folder):
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.exists() else set()


def _wait_until(condition, job):
    def is_so() -> bool:
        assert job.poll() is None, "the job ended by itself"
        return condition()

    wait_for(is_so, "progress of the job")
