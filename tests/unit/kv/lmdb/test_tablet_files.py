"""The folder of the cache of rows by key, where the user's own cannot be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import streamhouse_spark as sh
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.kv.lmdb.tablet_files import cache_folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A directory for temporary files, a home below a file, and no folder by name."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    (tmp_path / "file").touch()
    for name in ("STREAMHOUSE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def ours(temporary: Path) -> Path:
    return temporary / f"streamhouse-{os.getuid()}"


def test_a_home_that_cannot_be_written(temporary, tmp_path):
    table = sh.Warehouse(str(tmp_path / "wh")).create_table("t", "id INT NOT NULL, n INT", primary_key=["id"])
    table.upsert([{"id": 1, "n": 2}])
    assert table.lookup([{"id": 1}])["n"].to_pylist() == [2]
    assert cache_folder().is_relative_to(ours(temporary))
    assert list(ours(temporary).rglob("data.mdb"))
    assert ours(temporary).stat().st_mode & 0o777 == 0o700


def test_a_user_without_a_home_gets_a_temporary_cache(temporary, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert cache_folder().is_relative_to(ours(temporary))


def test_a_home_that_can_be_written_comes_first(temporary, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder().is_relative_to(tmp_path)
    assert not ours(temporary).exists()


def test_a_folder_by_name_comes_before_all(temporary, tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "named"))
    assert cache_folder().is_relative_to(tmp_path / "named")


@pytest.mark.parametrize("kind", ["link", "file", "open to others", "another's"])
def test_a_folder_that_others_may_write_is_refused(temporary, tmp_path, monkeypatch, kind):
    """Anybody may make a folder of that name there, with rows of their own in it."""
    folder = ours(temporary)
    if kind == "link":
        folder.symlink_to(tmp_path)
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777 if kind == "open to others" else 0o700)
    if kind == "another's":
        found = folder.lstat()
        monkeypatch.setattr(os, "getuid", lambda: found.st_uid + 1)
        folder.rename(ours(temporary))
    with pytest.raises(InvalidOptionError, match="STREAMHOUSE_CACHE_DIR"):
        cache_folder()


def test_a_directory_for_temporary_files_that_cannot_be_written(temporary, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(InvalidOptionError, match="STREAMHOUSE_CACHE_DIR"):
        cache_folder()
