"""Features that only a directory has: links, fsync, temporary files, the commit lock, and errors of the system."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import stat
import threading
from pathlib import Path

import pytest

from faults.sim import SimClock, sim_world
from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.errors import (
    CorruptDataError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
)
from streamhouse_spark.storage import local
from streamhouse_spark.storage import local as storage_local
from streamhouse_spark.storage.local import LocalStorage, hold_lock_file, try_hold_lock_file


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "wh"


@pytest.fixture
def store(root) -> LocalStorage:
    return LocalStorage(str(root))


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, str]]:
    """The calls that make things durable and visible, in their order."""
    made: list[tuple[str, str]] = []
    names: dict[int, str] = {}
    real_open, real_fsync, real_link = os.open, os.fsync, os.link

    def opened(path, *args, **kwargs):
        fd = real_open(path, *args, **kwargs)
        names[fd] = Path(path).name
        return fd

    def shown(name: str) -> str:
        return "temporary" if name.startswith(".tmp-") else name

    def synced(fd):
        made.append(("fsync", shown(names[fd])))
        real_fsync(fd)

    def linked(source, target):
        made.append(("link", Path(target).name))
        real_link(source, target)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    return made


class TestDurability:
    def test_data_before_the_name_and_the_name_before_the_answer(self, store, calls):
        store.put_if_absent("a/1", b"x")
        calls.clear()
        store.put_if_absent("a/2", b"x")
        assert calls == [("fsync", "temporary"), ("link", "2"), ("fsync", "a")]
        calls.clear()
        with store.create("a/3") as sink:
            sink.write(b"x")
        assert calls == [("fsync", "temporary"), ("link", "3"), ("fsync", "a")]

    def test_new_folders_are_synced_into_their_parents(self, store, root, calls):
        store.put_if_absent("a/b/c", b"x")
        synced = [name for what, name in calls if what == "fsync"]
        assert synced[:3] == [root.parent.name, root.name, "a"]
        assert synced[-2:] == ["temporary", "b"]

    def test_without_fsync_nothing_is_synced(self, root, calls):
        store = LocalStorage(str(root), fsync=False)
        store.put_if_absent("a/1", b"x")
        store.put("hint", b"x")
        with store.create("a/2") as sink:
            sink.write(b"x")
        assert {what for what, _ in calls} == {"link"}

    def test_a_folder_that_could_not_be_synced_stays_suspect(self, store, monkeypatch):
        store.put_if_absent("a/1", b"x")
        real = os.fsync

        def fail_on_folders(fd):
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(errno.EIO, "bad")
            real(fd)

        monkeypatch.setattr(os, "fsync", fail_on_folders)
        with pytest.raises(StorageError, match="cannot write"):
            store.put_if_absent("a/2", b"x")
        monkeypatch.undo()
        assert store.read("a/2") == b"x", "visible, but nobody knows whether it lasts"
        with pytest.raises(StorageError, match="could not be synced"):
            store.ensure_durable("a/2")
        store.put_if_absent("b/1", b"x")
        store.ensure_durable("b/1")


class TestTemporaryFiles:
    def test_failed_writes_leave_no_temporary_file(self, store, root):
        store.put_if_absent("a", b"1")
        for ask in (lambda: store.put_if_absent("a", b"2"), lambda: enter(store, "a")):
            with pytest.raises(ObjectExistsError):
                ask()
        with pytest.raises(ZeroDivisionError), store.create("b"):
            _ = 1 / 0
        store.put("a", b"3")
        store.check_writable()
        assert [p.name for p in root.rglob("*")] == ["a"]

    def test_left_ones_are_listed_apart(self, store, root):
        store.put_if_absent("d/a", b"1")
        (root / "d" / ".tmp-x").write_bytes(b"half")
        assert [i.key for i in store.list("")] == ["d/a"]
        assert store.list_names("d/") == ["a"]
        assert [i.key for i in store.list_temporary("d/")] == ["d/.tmp-x"]
        assert store.list_temporary("e/") == []


def enter(store, key):
    with store.create(key) as sink:
        sink.write(b"x")


class TestErrors:
    @pytest.mark.parametrize(
        ("number", "text"),
        [
            (errno.ENOSPC, "the disk is full .*: free space"),
            (errno.EDQUOT, "quota is used up: free space"),
            (errno.EROFS, "read-only: remount"),
            (errno.EACCES, "permission denied: run as the warehouse's owner or grant this user write access"),
            (errno.EPERM, "hard links"),
            (errno.EMFILE, "ulimit"),
            (errno.EIO, "check the disk"),
        ],
    )
    def test_each_says_what_to_do(self, store, monkeypatch, number, text):
        store.put_if_absent("a", b"1")

        def fail(*_, **__):
            raise OSError(number, "x")

        monkeypatch.setattr(os, "link", fail)
        for ask in (lambda: store.put_if_absent("b", b"1"), lambda: enter(store, "c")):
            with pytest.raises(StorageError, match=text) as error:
                ask()
            is_refused = number in (errno.EROFS, errno.EACCES, errno.EPERM)
            condition = "STORAGE_REFUSED" if is_refused else "STORAGE"
            assert str(error.value).startswith(f"{condition}: cannot write {store.url}/")
        assert [i.key for i in store.list("")] == ["a"]
        assert store.list_temporary("") == []

    def test_an_absent_key_below_a_file_is_not_found(self, store):
        store.put_if_absent("a", b"1")
        for key in ("b", "a/b", "a/b/c"):
            with pytest.raises(ObjectNotFoundError):
                store.read(key)
            store.delete(key)
        with pytest.raises(StorageError, match="choose another path"):
            store.put_if_absent("a/b", b"1")
        assert store.list_names("a/") == []


class TestContentionHint:
    def test_it_waits_a_short_while(self, root):
        clock = SimClock()
        store = LocalStorage(str(root), world=sim_world(0, clock))
        store.put_if_absent("commits/1", b"")
        held = os.open(root / "commits" / ".lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(held, fcntl.LOCK_EX)
        before_ms = clock.boot_ms()
        with store.commit_lock("commits/.lock"):
            assert 50 <= clock.boot_ms() - before_ms < 60, "a holder that was stopped stops nobody"
        os.close(held)
        clock.slept_ms.clear()
        with store.commit_lock("commits/.lock"):
            assert clock.slept_ms == []

    def test_where_it_cannot_lock_it_does_nothing(self, store):
        with store.commit_lock("absent/folder/.lock"):
            assert store.list("") == []

    def test_it_is_released_when_the_block_fails(self, root):
        clock = SimClock()
        store = LocalStorage(str(root), world=sim_world(0, clock))
        store.put_if_absent("c/1", b"")
        with pytest.raises(ZeroDivisionError), store.commit_lock("c/.lock"):
            _ = 1 / 0
        with store.commit_lock("c/.lock"):
            assert clock.slept_ms == []


def test_a_network_file_system_is_refused_before_anything_is_written(root):
    store = LocalStorage(str(root), network_fs="nfs4 at /mnt")
    with pytest.raises(StorageError, match=r"network file system \(nfs4 at /mnt\).*storage\.local\.single-host=true"):
        store.check_writable()
    assert not root.exists()


def test_a_file_system_whose_link_replaces_is_refused(store, root, monkeypatch):
    monkeypatch.setattr(os, "link", lambda source, target: Path(target).write_bytes(Path(source).read_bytes()))
    with pytest.raises(StorageError, match="replace a file; use another one"):
        store.check_writable()
    assert list(root.iterdir()) == []


def test_the_root_is_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    store = LocalStorage("wh")
    assert store.url == f"{tmp_path}/wh"
    store.put_if_absent("a", b"1")
    monkeypatch.chdir("/")
    assert store.read("a") == b"1"


@pytest.mark.parametrize("key", ["../x", "a/../../x", "a/..", "..", "a\0b"])
def test_a_key_leads_nowhere_else(store, root, key):
    """Such keys stand in damaged and forged files alone."""
    root.mkdir()
    (root.parent / "x").write_bytes(b"secret")
    calls = [store.read, store.size_bytes, store.delete, lambda k: list(store.list_names(f"{k}/"))]
    for call in [*calls, lambda k: store.put(k, b"1"), lambda k: store.put_if_absent(k, b"1")]:
        with pytest.raises(CorruptDataError, match="leads out of"):
            call(key)
    assert (root.parent / "x").read_bytes() == b"secret"
    store.put("a..b/..c", b"1")
    assert store.read("a..b/..c") == b"1"


S_MAX = 60


@pytest.fixture
def lock_path(tmp_path) -> Path:
    return tmp_path / ".lock"


def is_locked(lock_path: Path) -> bool:
    file = os.open(lock_path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def test_another_process_waits_until_the_lock_is_released(lock_path, monkeypatch):
    monkeypatch.setattr(local, "WAIT_MS_MAX", 1000 * S_MAX)
    events: list[str] = []

    def wait() -> None:
        with hold_lock_file(str(lock_path), SystemClock()):
            events.append("second")

    with hold_lock_file(str(lock_path), SystemClock()):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.05)
        events.append("first")
    thread.join(S_MAX)
    assert events == ["first", "second"]


def test_a_stopped_process_does_not_stop_the_others(lock_path):
    with hold_lock_file(str(lock_path), SystemClock()):
        with hold_lock_file(str(lock_path), SystemClock()):
            assert is_locked(lock_path)
        assert is_locked(lock_path), "the second process gives up its wait, not the first one's lock"
    assert not is_locked(lock_path)


def test_a_missing_folder_is_reported_by_the_put_and_not_by_the_lock(tmp_path):
    with hold_lock_file(str(tmp_path / "none" / ".lock"), SystemClock()):
        pass


def test_a_store_can_be_sent_to_another_process(tmp_path):
    sent = pickle.loads(pickle.dumps(LocalStorage(str(tmp_path))))
    with sent.commit_lock(".lock"):
        assert is_locked(tmp_path / ".lock")


def test_only_one_process_holds_the_lock(tmp_path):
    lock_path = tmp_path / ".tmp-work"
    with try_hold_lock_file(str(lock_path)) as first:
        with try_hold_lock_file(str(lock_path)) as second:
            assert (first, second) == (True, False)
        assert lock_path.exists()
    assert not lock_path.exists()
    with try_hold_lock_file(str(lock_path)) as again, try_hold_lock_file(None) as elsewhere:
        assert again
        assert elsewhere
    with try_hold_lock_file(str(tmp_path / "no folder" / "file")) as alone:
        assert alone


@pytest.mark.parametrize(("fsync", "expected"), [(True, 2), (False, 0)], ids=["fsync", "no fsync"])
def test_writing_back_begins_early_and_changes_nothing(tmp_path, monkeypatch, fsync, expected):
    begun = []
    monkeypatch.setattr(storage_local, "_WRITEBACK_BYTES", 100)
    monkeypatch.setattr(storage_local, "_writeback_starter", lambda: begun.append)
    storage = LocalStorage(str(tmp_path), fsync=fsync)
    data = os.urandom(330)
    with storage.create("large") as sink:
        for start in range(0, len(data), 30):
            sink.write(data[start : start + 30])
    assert storage.read("large") == data
    assert len(begun) == expected  # after each 120 bytes


def test_a_system_without_the_call_writes_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_local, "_WRITEBACK_BYTES", 1)
    monkeypatch.setattr(storage_local, "_writeback_starter", lambda: None)
    storage = LocalStorage(str(tmp_path))
    with storage.create("large") as sink:
        sink.write(b"rows")
    assert storage.read("large") == b"rows"


def test_the_call_takes_an_open_file(tmp_path):
    start = storage_local._writeback_starter()
    with (tmp_path / "file").open("wb") as file:
        file.write(b"rows")
        file.flush()
        assert start is None or start(file.fileno()) == 0
