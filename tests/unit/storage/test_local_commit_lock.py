"""The commit lock of a local disk: bounded waits, released once the object is visible."""

from __future__ import annotations

import fcntl
import os
import pickle
import threading
from pathlib import Path

import pytest

from streamhouse_spark.core.clock import World
from streamhouse_spark.storage import local
from streamhouse_spark.storage.local import LocalCommitLock, LocalStorage, only_process

S_MAX = 60


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / ".lock"


def is_locked(path: Path) -> bool:
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def test_another_process_waits_until_the_lock_is_released(path, monkeypatch):
    monkeypatch.setattr(local, "WAIT_MS_MAX", 1000 * S_MAX)
    events: list[str] = []

    def wait() -> None:
        with LocalCommitLock(World()).hold(str(path)):
            events.append("second")

    with LocalCommitLock(World()).hold(str(path)):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.05)
        events.append("first")
    thread.join(S_MAX)
    assert events == ["first", "second"]


def test_a_stopped_process_does_not_stop_the_others(path):
    with LocalCommitLock(World()).hold(str(path)):
        with LocalCommitLock(World()).hold(str(path)):
            assert is_locked(path)
        assert is_locked(path), "the second process gives up its wait, not the first one's lock"
    assert not is_locked(path)


def test_a_missing_folder_is_reported_by_the_put_and_not_by_the_lock(tmp_path):
    with LocalCommitLock(World()).hold(str(tmp_path / "none" / ".lock")):
        pass


def test_the_lock_is_released_when_the_object_is_visible(tmp_path):
    storage = LocalStorage(str(tmp_path))
    storage.put_if_absent("c/1", b"")
    with storage.commit_lock("c/.lock"):
        storage.put_if_absent("d/1", b"")
        assert is_locked(tmp_path / "c" / ".lock")
        storage.put_if_absent("c/2", b"")
        assert not is_locked(tmp_path / "c" / ".lock")


def test_a_store_can_be_sent_to_another_process(tmp_path):
    sent = pickle.loads(pickle.dumps(LocalStorage(str(tmp_path))))
    with sent.commit_lock(".lock"):
        assert is_locked(tmp_path / ".lock")


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / ".tmp-work"
    with only_process(str(path)) as first:
        with only_process(str(path)) as second:
            assert (first, second) == (True, False)
        assert path.exists()
    assert not path.exists()
    with only_process(str(path)) as again, only_process(None) as elsewhere:
        assert again
        assert elsewhere
    with only_process(str(tmp_path / "no folder" / "file")) as alone:
        assert alone
