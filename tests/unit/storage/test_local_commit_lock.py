"""Turns of processes of one host: bounded waits, and offers that are taken once, withdrawn, or of the dead."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamhouse_spark.core.clock import World
from streamhouse_spark.storage import local_commit_lock
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.local_commit_lock import OFFERS, LocalCommitLocks, only_process

S_MAX = 60


@pytest.fixture
def lock(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(local_commit_lock, "WAIT_MS_MAX", 1000 * S_MAX)
    return tmp_path / ".lock"


@contextmanager
def waiting(
    lock: Path, offer: bytes | None = b"rows", turns: LocalCommitLocks | None = None
) -> Iterator[dict[str, object]]:
    """Another process waits for its turn, with an offer, in the block; ends with what came of it."""
    told: dict[str, object] = {}

    def wait() -> None:
        with (turns or LocalCommitLocks(World())).turn(str(lock), lambda: offer) as turn:
            told["was_taken"] = turn.was_taken
            told["has_turn"] = turn.file is not None

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield told
    finally:
        thread.join(S_MAX)
        assert not thread.is_alive()


def wait_for_offers(lock: Path, number: int = 1) -> None:
    done = threading.Event()
    for _ in range(S_MAX * 200):
        if len(local_commit_lock._list_offers(str(lock.parent / OFFERS))) == number:
            return
        done.wait(0.005)
    raise AssertionError("no offer came")


def left(lock: Path) -> list[str]:
    folder = lock.parent / OFFERS
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_an_offer_is_taken_once_and_its_owner_goes_on_without_a_turn(lock):
    with LocalCommitLocks(World()).turn(str(lock), None) as turn:
        with waiting(lock) as told:
            wait_for_offers(lock)
            assert turn.take() == [b"rows"]
            assert turn.take() == []
            turn.release()
        assert told == {"was_taken": True, "has_turn": False}
    assert left(lock) == []


def test_the_owner_waits_for_the_end_of_the_turn_that_took_it(lock):
    with LocalCommitLocks(World()).turn(str(lock), None) as turn, waiting(lock) as told:
        wait_for_offers(lock)
        assert turn.take() == [b"rows"]
        turn.end()  # the object is put, and not yet durable
        assert told == {}
        turn.release()
    assert told["was_taken"] is True


@pytest.fixture
def deaf(monkeypatch):
    """Whoever misses its bell waits for ever."""
    monkeypatch.setattr(local_commit_lock, "BELL_MS", 1000.0 * S_MAX * 10)


@pytest.mark.usefixtures("deaf")
@pytest.mark.skipif(sys.platform != "linux", reason="bells are sockets in Linux's abstract namespace")
@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "not taken"])
def test_the_end_of_a_turn_wakes_one_that_waits(lock, is_taken):
    with LocalCommitLocks(World()).turn(str(lock), None) as turn, waiting(lock) as told:
        wait_for_offers(lock)
        if is_taken:
            assert turn.take() == [b"rows"]
            turn.end()  # wakes nobody whose offer was taken
            assert told == {}
        turn.release()
    assert told["was_taken"] is is_taken


def test_where_no_bell_rings_there_are_looks(lock, monkeypatch):
    monkeypatch.setattr(local_commit_lock, "_ring", lambda *_, **__: None)  # as of an older version
    turns = LocalCommitLocks(World())
    for number in range(local_commit_lock.DEAF_MAX + 2):
        with LocalCommitLocks(World()).turn(str(lock), None) as turn, waiting(lock, turns=turns) as told:
            wait_for_offers(lock)
            assert turn.take() == [b"rows"]
            turn.release()
        assert told["was_taken"] is True
        assert turns._num_deaf == number + 1


@pytest.mark.parametrize("error", [OSError("none here"), None], ids=["no sockets", "no such names"])
def test_where_there_are_no_bells_there_are_looks(lock, monkeypatch, error):
    def refused(*_: object) -> str:
        if error is not None:
            raise error
        return str(lock.parent / "no folder" / "bell")

    monkeypatch.setattr(local_commit_lock, "_address", refused)
    with LocalCommitLocks(World()).turn(str(lock), None) as turn, waiting(lock) as told:
        wait_for_offers(lock)
        assert turn.take() == [b"rows"]
        turn.release()
    assert told["was_taken"] is True


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


def test_an_offer_that_nobody_takes_is_withdrawn_with_the_turn(lock):
    with LocalCommitLocks(World()).turn(str(lock), None) as turn, waiting(lock) as told:
        wait_for_offers(lock)
        turn.release()
    assert told == {"was_taken": False, "has_turn": True}
    assert left(lock) == []


def test_who_offers_nothing_waits_for_the_turn(lock):
    with LocalCommitLocks(World()).turn(str(lock), None) as turn, waiting(lock, None) as told:
        assert turn.take() == []
        turn.release()
    assert told == {"was_taken": False, "has_turn": True}


def test_one_that_was_stopped_with_an_offer_stops_nobody(lock, monkeypatch):
    monkeypatch.setattr(local_commit_lock, "WAIT_MS_MAX", 20)
    with LocalCommitLocks(World()).turn(str(lock), None) as turn:
        with waiting(lock) as told:
            wait_for_offers(lock)
            turn.take()
        assert told["was_taken"] is True
    assert left(lock) == []


def _offer_and_die(lock: str) -> None:
    with LocalCommitLocks(World())._offer(str(Path(lock).parent), b"rows of the dead", "0"):
        os._exit(9)


def test_offers_of_the_dead_are_never_taken(lock):
    process = multiprocessing.get_context("spawn").Process(target=_offer_and_die, args=(str(lock),))
    process.start()
    process.join(S_MAX)
    assert process.exitcode == 9
    assert len(left(lock)) == 1
    with LocalCommitLocks(World()).turn(str(lock), None) as turn:
        assert turn.take() == []
    assert left(lock) == []


def test_whoever_has_the_turn_waits_a_moment_for_those_who_were_there_before(lock, monkeypatch):
    monkeypatch.setattr(local_commit_lock, "COMPANY_MS_MAX", 1000 * S_MAX)
    turns = LocalCommitLocks(World())
    with turns.turn(str(lock), None) as turn, waiting(lock, b"first"):
        wait_for_offers(lock)
        assert turn.take() == [b"first"]
        turn.release()
    with turns.turn(str(lock), None) as turn:
        found: list[list[bytes]] = []
        taker = threading.Thread(target=lambda: found.append(turn.take()))
        taker.start()
        with waiting(lock, b"second"):
            taker.join(S_MAX)
            assert found == [[b"second"]]
            turn.release()
    monkeypatch.setattr(local_commit_lock, "COMPANY_MS_MAX", 1)
    for _ in range(2):
        with turns.turn(str(lock), None) as turn:
            assert turn.take() == []
    monkeypatch.setattr(local_commit_lock, "COMPANY_MS_MAX", 1000 * S_MAX)
    with turns.turn(str(lock), None) as turn:
        assert turn.take() == [], "nobody was there in the turn before, so nobody is waited for"


def test_a_turn_ends_when_its_object_is_put(tmp_path):
    storage = LocalStorage(str(tmp_path))
    storage.put_if_absent("c/1", b"")
    with storage.commit_lock("c/.lock"):
        storage.put_if_absent("d/1", b"")
        assert is_locked(tmp_path / "c" / ".lock")
        storage.put_if_absent("c/2", b"")
        assert not is_locked(tmp_path / "c" / ".lock")


def test_offers_are_hidden_and_cleaned(tmp_path, lock):
    storage = LocalStorage(str(tmp_path))
    (tmp_path / OFFERS).mkdir()
    (tmp_path / OFFERS / ".tmp-offered-1").write_bytes(b"x")
    assert storage.list("") == []
    assert storage.list_names("") == []
    assert [info.key for info in storage.list_temporary("")] == [f"{OFFERS}/.tmp-offered-1"]


def test_a_store_can_be_sent_to_another_process(tmp_path):
    sent = pickle.loads(pickle.dumps(LocalStorage(str(tmp_path))))
    with sent.commit_lock("a/.lock") as turn:
        assert turn.take() == []


def is_locked(path: Path) -> bool:
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False
