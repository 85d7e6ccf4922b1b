"""The newest floor is found in few requests, by whoever slept however long, although old ones were deleted."""

from __future__ import annotations

import random

import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import CorruptDataError, FormatVersionError, Warehouse
from streamhouse_spark.core.warehouse_layout import watermark_key, watermarks_prefix
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.log.gc import garbage_collection
from streamhouse_spark.log.low_watermark import (
    LANDMARK_EVERY,
    find_latest_watermark,
    find_watermark_before,
    list_superfluous_watermarks,
    read_low_watermark,
    write_low_watermark,
)
from streamhouse_spark.storage.memory import MemoryStorage

UUID = "a" * 32
YEAR = 52_560


def put_floors(storage, numbers) -> None:
    for index in numbers:
        write_low_watermark(storage, UUID, index, 50 * index)


def cleaned_chain(newest: int) -> MemoryStorage:
    """What cleaning leaves of so many floors."""
    storage = MemoryStorage(sim_world(1))
    last = newest // LANDMARK_EVERY * LANDMARK_EVERY
    kept = [i for i in range(1, newest + 1) if i <= LANDMARK_EVERY or i >= last or i % LANDMARK_EVERY == 0]
    put_floors(storage, kept)
    assert list_superfluous_watermarks(storage, UUID, newest) == []
    return storage


def requests(storage, known: int = 0) -> int:
    counting = FaultyStorage(storage)
    find_latest_watermark(counting, UUID, known)
    return len(counting.trace)


@pytest.mark.parametrize("newest", [0, 1, 2, 255, 256, 257, 511, 512, 513, 1000, 5000])
def test_every_sleeper_finds_the_latest_low_watermark(newest):
    storage = cleaned_chain(newest)
    draw = random.Random(newest)
    for known in {0, newest, max(0, newest - 1), *(draw.randrange(newest + 1) for _ in range(200))}:
        index, watermark = find_latest_watermark(storage, UUID, known)
        assert index == newest
        assert (watermark is None) == (known == newest)
        assert watermark is None or watermark.number == 50 * newest


def test_the_latest_low_watermark_is_found_at_every_step_of_a_deletion():
    """Deleted one by one, in any order: between any two deletions every sleeper learns of the newest."""
    storage = MemoryStorage(sim_world(1))
    newest = 3 * LANDMARK_EVERY + 5
    put_floors(storage, range(1, newest + 1))
    doomed = list_superfluous_watermarks(storage, UUID, newest)
    assert len(doomed) == 2 * (LANDMARK_EVERY - 1)
    draw = random.Random(3)
    draw.shuffle(doomed)
    for key in doomed:
        storage.delete(key)
        for known in (0, draw.randrange(newest), int(key.rpartition("/")[2]), int(key.rpartition("/")[2]) - 1):
            assert find_latest_watermark(storage, UUID, known)[0] == newest


def test_a_year_of_floors_is_found_in_few_requests_and_few_are_kept():
    storage = cleaned_chain(YEAR)
    assert len(storage.list(watermarks_prefix(UUID))) < 3 * LANDMARK_EVERY
    assert requests(storage, YEAR) == 2, "who knows the newest"
    assert requests(storage) < 50, "who knows none"
    assert requests(cleaned_chain(100), 100) == 1
    assert requests(cleaned_chain(0)) == 1


def test_where_all_were_kept_by_an_older_version_they_are_found_as_fast():
    storage = MemoryStorage(sim_world(1))
    for index in range(1, 3001):
        header = {"table": UUID, "floor": 50 * index, "time_ms": index}
        storage.put_if_absent(watermark_key(UUID, index), encode_frame("floor", header))
    assert find_latest_watermark(storage, UUID)[0] == 3000
    assert requests(storage) < 50
    assert list_superfluous_watermarks(storage, UUID, 3000) == [], "an older version reads on floor by floor"
    put_floors(storage, range(3001, 4001))
    doomed = list_superfluous_watermarks(storage, UUID, 4000)
    assert doomed[0] == watermark_key(UUID, 3073)
    assert doomed[-1] == watermark_key(UUID, 3839)


def test_an_older_version_stops_at_a_landmark():
    storage = MemoryStorage(sim_world(1))
    put_floors(storage, [LANDMARK_EVERY])
    with pytest.raises(FormatVersionError):
        decode_frame("floor", storage.read(watermark_key(UUID, LANDMARK_EVERY)), "a floor")


def test_opening_a_table_reads_no_floor_below_the_one_of_its_checkpoint(memory, world, clock, monkeypatch):
    monkeypatch.setattr(garbage_collection, "WATERMARK_STEP_MIN", 1)
    wh = Warehouse("wh", storage=memory, world=world)
    table = wh.create_table("t", "id BIGINT")
    for i in range(30):
        table.append([{"id": i}])
        table.maintain()
    newest = table.log.watermark_index
    assert newest > 20
    counting = FaultyStorage(memory)
    Warehouse("wh", storage=counting, world=sim_world(5, clock)).table("t")
    floors = [call for call in counting.trace if "/floors/" in str(call)]
    assert len(floors) <= 8, "those since its checkpoint, which lies a floor or two behind"


def test_the_settled_floor_is_the_newest_that_is_old_enough():
    storage = MemoryStorage(sim_world(1))
    for index in range(1, 2001):
        header = {"table": UUID, "floor": 50 * index, "time_ms": 10 * index}
        storage.put_if_absent(watermark_key(UUID, index), encode_frame("floor", header))
    assert find_watermark_before(storage, UUID, 2000, 19_500) == 50 * 1950
    assert find_watermark_before(storage, UUID, 2000, 5) == 0
    assert find_watermark_before(storage, UUID, 2000, 3_000) == 50 * LANDMARK_EVERY
    assert find_watermark_before(storage, UUID, 0, 3_000) == 0
    counting = FaultyStorage(storage)
    find_watermark_before(counting, UUID, 2000, 12_000)
    assert len(counting.trace) <= 10


def test_a_floor_is_whole_while_one_copy_is():
    storage = MemoryStorage(sim_world(1))
    put_floors(storage, [1])
    whole = storage.read(watermark_key(UUID, 1))
    part = len(whole) // 3
    for first in range(3):
        damaged = bytearray(len(whole))
        damaged[first * part : (first + 1) * part] = whole[first * part : (first + 1) * part]
        storage.put(watermark_key(UUID, 1), bytes(damaged))
        if first == 0:  # the first is whole together with those behind it only
            with pytest.raises(CorruptDataError):
                read_low_watermark(storage, UUID, 1)
        else:
            assert read_low_watermark(storage, UUID, 1).number == 50
