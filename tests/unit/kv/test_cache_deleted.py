"""The cache of rows by key is deleted, full or closed to us, at any moment: built again, or a typed error."""

from __future__ import annotations

import errno
import os
import shutil
from unittest import mock

import pytest

from kit.rows import rows_by_id
from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.kv.tablet import close_tablets

ROWS = [{"id": i, "v": i} for i in range(100)]


@pytest.fixture
def table(warehouse_path, own_cache):
    table = Warehouse(warehouse_path).create_table("t", "id INT, v BIGINT", primary_key=["id"], buckets=2)
    table.upsert(ROWS)
    return table


def cached_files(cache):
    return sorted(path.name for path in cache.rglob("data.mdb"))


class TestDeletedInUse:
    def test_every_verb_goes_on(self, table, own_cache):
        expected = {row["id"]: row for row in ROWS}
        for number in range(6):
            shutil.rmtree(own_cache, ignore_errors=True)
            table.upsert([{"id": number, "v": -1}, {"id": 1000 + number, "v": 1}])
            expected |= {number: {"id": number, "v": -1}, 1000 + number: {"id": 1000 + number, "v": 1}}
            shutil.rmtree(own_cache, ignore_errors=True)
            table.delete([50 + number])
            del expected[50 + number]
            shutil.rmtree(own_cache, ignore_errors=True)
            assert table.lookup([number, 50 + number])["v"].to_pylist() == [-1, None]
        assert rows_by_id(table) == [expected[key] for key in sorted(expected)]

    def test_it_is_built_again_for_others(self, table, own_cache):
        shutil.rmtree(own_cache)
        table.upsert([{"id": i, "v": 7} for i in range(100)])
        table.upsert([{"id": i, "v": 8} for i in range(100)])
        assert cached_files(own_cache) == ["data.mdb", "data.mdb"]
        close_tablets()
        assert table.lookup([3])["v"].to_pylist() == [8]

    def test_while_it_is_closed(self, table, own_cache):
        """As it is around a fork."""
        from streamhouse_spark.core import concurrency

        for owner in list(concurrency._put_away):
            owner.before_fork()
            owner.after_fork()
        shutil.rmtree(own_cache)
        assert table.lookup([3])["v"].to_pylist() == [3]
        table.upsert([{"id": 3, "v": 4}])
        assert table.lookup_one(3) == {"id": 3, "v": 4}

    def test_a_deleted_cache_of_one_bucket_is_rebuilt(self, table, own_cache):
        for folder in [path.parent for path in own_cache.rglob("data.mdb")]:
            shutil.rmtree(folder)
        table.upsert([{"id": i, "v": 9} for i in range(100)])
        assert table.lookup([3, 4])["v"].to_pylist() == [9, 9]
        assert len(cached_files(own_cache)) == 2

    def test_growing_gives_its_room_to_nobody_else(self, table, own_cache):
        shutil.rmtree(own_cache)
        large = [{"id": i, "v": i} for i in range(60_000)]
        table.upsert(large)
        assert table.lookup([59_999])["v"].to_pylist() == [59_999]
        assert len(rows_by_id(table)) == 60_000


class TestUnusable:
    def test_what_is_not_writable_is_an_error_of_its_own(self, table, own_cache):
        close_tablets()
        shutil.rmtree(own_cache)
        own_cache.write_bytes(b"a file")
        before = table.refresh().version
        for call in (lambda: table.upsert([{"id": 1, "v": 5}]), lambda: table.delete([1]), lambda: table.lookup([1])):
            with pytest.raises(StorageError, match="STREAMHOUSE_CACHE_DIR"):
                call()
        assert table.refresh().version == before
        assert len(rows_by_id(table)) == 100  # reading needs no cache
        own_cache.unlink()
        table.upsert([{"id": 1, "v": 5}])
        assert table.lookup([1])["v"].to_pylist() == [5]

    def test_a_full_disk_before_the_commit_is_typed_and_behind_it_no_matter(self, table, own_cache):
        """Each call that opens a file of the cache fails once: the write stands, or nothing was written."""
        texts, stored = [], 0
        for at in range(12):
            close_tablets()
            if at % 2:
                shutil.rmtree(own_cache, ignore_errors=True)
            calls = iter(range(1000))

            def full(path, *args, real=os.open, calls=calls, at=at, **kwargs):
                if str(path).startswith(str(own_cache)) and next(calls) == at:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(path, *args, **kwargs)

            expected = rows_by_id(table)
            given = {"id": at, "v": 10_000 + at}
            with mock.patch.object(os, "open", full):
                try:
                    table.upsert([given])
                    expected = sorted([*(r for r in expected if r["id"] != at), given], key=lambda row: row["id"])
                    stored += 1
                except StorageError as error:
                    texts.append(str(error))
            assert rows_by_id(table) == expected
        assert stored
        assert texts
        assert all("local cache" in text for text in texts)


class TestBehindTheCommit:
    def fails_once_committed(self, table, monkeypatch, error):
        """Every write to a tablet fails once the record is there."""
        from streamhouse_spark.kv.tablet import Tablet

        def write(self, action):
            raise error

        real = table.log.commit

        def commit(*args, **kwargs):
            committed = real(*args, **kwargs)
            monkeypatch.setattr(Tablet, "_write", write)
            return committed

        monkeypatch.setattr(table.log, "commit", commit)

    @pytest.mark.parametrize(
        "error", [FileNotFoundError("gone"), PermissionError("no"), MemoryError(), ValueError("?")]
    )
    def test_no_error_of_the_cache_fails_a_write(self, table, monkeypatch, caplog, error):
        self.fails_once_committed(table, monkeypatch, error)
        assert table.upsert([{"id": 1, "v": 5}]).num_rows == 2
        assert "the change is stored" in caplog.text
        monkeypatch.undo()
        assert table.lookup([1])["v"].to_pylist() == [5]
        self.fails_once_committed(table, monkeypatch, error)
        assert table.delete([1]).num_rows == 1
        monkeypatch.undo()
        assert table.lookup([1])["v"].to_pylist() == [None]
