"""Large local files are sent to the disk while they are written."""

import os

import pytest

from streamhouse_spark.storage import local as storage_local
from streamhouse_spark.storage.local import LocalStorage


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
