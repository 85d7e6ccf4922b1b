"""Space for a tablet's rows: full disks, many processes, file systems of any kind. A page without a place on the disk
would end the process, and so would a file that another process cuts off.
"""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
from contextlib import suppress

import pytest

from streamhouse_spark import StorageError
from streamhouse_spark.kv.lmdb import environment as mmap_file
from streamhouse_spark.kv.lmdb.environment import MAP_BYTES, Environment, MapFile, next_map_bytes

ROW = b"x" * 1000


@pytest.fixture(params=[True, False], ids=["written directly", "copied"])
def directly(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(mmap_file, "_ALLOCATING", frozenset())
    return request.param


@pytest.fixture
def environment(tmp_path, directly):
    found = Environment(tmp_path)
    assert MapFile(tmp_path).is_written_directly == directly, "run the tests on ext4, xfs, tmpfs or overlay"
    yield found
    found.close()


def key(number):
    return b"%08d" % number


def put(environment, numbers):
    environment.write(lambda writer: writer.put([key(i) for i in numbers], [ROW] * len(numbers)))


def num_rows(environment):
    return environment.read(lambda reader: reader.num_rows())


def allocated_bytes(path):
    return path.stat().st_blocks * 512


def test_every_byte_has_its_place(environment, directly):
    put(environment, range(10))
    assert not directly or allocated_bytes(environment.data_file) >= environment.data_file.stat().st_size == MAP_BYTES
    put(environment, range(5000))
    size = environment.data_file.stat().st_size
    assert 5000 * len(ROW) < size < 4 * 5000 * len(ROW)
    assert not directly or allocated_bytes(environment.data_file) >= size
    assert num_rows(environment) == 5000


def test_what_is_expected_runs_once(environment):
    runs = []

    def write(writer):
        runs.append(1)
        writer.expect(3 * 5000 * len(ROW) // 2)
        runs.append(2)
        writer.put([key(i) for i in range(5000)], [ROW] * 5000)

    environment.write(write)
    assert runs == [1, 1, 2], "once to see that it does not fit, once to do it"
    assert num_rows(environment) == 5000


def test_a_smaller_guess_is_made_good(environment):
    def write(writer):
        writer.expect(1)
        writer.put([key(i) for i in range(5000)], [ROW] * 5000)

    environment.write(write)
    assert num_rows(environment) == 5000


def test_growth_is_limited_once_a_map_is_large():
    sizes = [MAP_BYTES]
    while sizes[-1] < 1 << 34:
        sizes.append(next_map_bytes(sizes[-1]))
    assert all(small < large <= 2 * small + (1 << 20) for small, large in itertools.pairwise(sizes))
    assert all(large < small * 1.3 for small, large in itertools.pairwise(sizes) if small >= 64 << 20)


def test_a_full_disk_is_an_error_and_what_is_there_stays(small_disk):
    environment = Environment(small_disk)
    put(environment, range(100))
    with pytest.raises(StorageError, match="STREAMHOUSE_CACHE_DIR"):
        put(environment, range(10_000))  # in a page without a place this would be the end of this process
    assert num_rows(environment) == 100
    put(environment, range(200))
    environment.close()
    assert num_rows(environment) == 200
    environment.close()


def fill(path):
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)


def test_a_full_disk_when_it_begins(small_disk):
    (small_disk / "tablet").mkdir()
    filler = small_disk / "filler"
    fill(filler)
    environment = Environment(small_disk / "tablet")
    with pytest.raises(StorageError, match="STREAMHOUSE_CACHE_DIR"):
        put(environment, range(10))
    filler.unlink()
    put(environment, range(10))
    assert num_rows(environment) == 10
    environment.close()


def test_growing_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    environment = Environment(tmp_path)
    put(environment, range(100))
    before = environment.data_file.stat().st_size

    def fails(file, start, num_bytes):
        os.ftruncate(file, num_bytes)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", fails)
    with pytest.raises(StorageError, match="no space left"):
        put(environment, range(5000))
    assert environment.data_file.stat().st_size == before
    monkeypatch.undo()
    put(environment, range(5000))
    assert num_rows(environment) == 5000
    environment.close()


def _fill(folder, first, num_rounds, barrier):
    environment = Environment(folder)
    barrier.wait(240)
    for number in range(num_rounds):
        put(environment, range(first + 200 * number, first + 200 * (number + 1)))
        if number % 7 == 0:
            environment.close()  # and open it again, with whatever size it has by then
    environment.close()


@pytest.mark.long
def test_processes_that_open_and_grow_it_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_fill, args=(tmp_path, 10_000 * i, 40, barrier)) for i in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    environment = Environment(tmp_path)
    assert num_rows(environment) == 3 * 40 * 200
    environment.close()


def _open_only(folder):
    environment = Environment(folder)
    assert num_rows(environment) == 100
    environment.close()


def test_who_opens_it_does_not_cut_it_off(tmp_path):
    environment = Environment(tmp_path)
    put(environment, range(100))

    environment._resize(8 << 20)  # and nothing is committed yet that would tell others of it
    process = multiprocessing.get_context("spawn").Process(target=_open_only, args=(tmp_path,))
    process.start()
    process.join(240)
    assert process.exitcode == 0
    assert environment.data_file.stat().st_size == 8 << 20
    put(environment, range(5000))
    assert num_rows(environment) == 5000
    environment.close()
