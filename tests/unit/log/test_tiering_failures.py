"""The note of failed rounds: what is in it, what of it is over, and that nothing else takes it for more than a hint."""

from __future__ import annotations

import json

import pytest

from faults.sim import sim_world
from kit.tables import TableCase, tier
from streamhouse_spark import LakeMismatchError, StorageError, Warehouse
from streamhouse_spark.core.lazy_dataclass import replace
from streamhouse_spark.core.warehouse_layout import table_prefix, tiering_failures_key
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.log.tiering_failures import (
    FAILURES_MAX,
    TEXT_CHARS_MAX,
    TieringFailure,
    describe_failure,
    list_failures,
    read_failures,
    record_failure,
    record_success,
)

UUID = "ab" * 16


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


TABLE = TableCase("s.t", "id BIGINT", rows=[{"id": 1}])


def failure(error: Exception | None = None, now_ms: int = 1_000, work="tiering", host="a") -> TieringFailure:
    error = error or StorageError("the store is away")
    return describe_failure(work, error, host=host, rows=7, now_ms=now_ms, duration_ms=20)


def test_failures_of_a_kind_are_counted_and_few_kinds_are_kept(memory):
    for now_ms in (1_000, 2_000, 5_000):
        record_failure(memory, UUID, failure(now_ms=now_ms))
    (found,) = read_failures(memory, UUID)
    assert (found.times, found.first_ms, found.last_ms) == (3, 1_000, 5_000)
    assert (found.error, found.host, found.rows, found.duration_ms) == ("StorageError", "a", 7, 20)
    for number in range(FAILURES_MAX + 2):
        record_failure(memory, UUID, failure(LakeMismatchError(f"lake {number}"), now_ms=6_000 + number))
    found = read_failures(memory, UUID)
    assert [one.last_ms for one in found] == [6_006, 6_005, 6_004, 6_003, 6_002]
    record_failure(memory, UUID, failure(StorageError("x" * 10_000)))
    assert len(memory.read(tiering_failures_key(UUID))) < 6 * 1024


def test_a_success_ends_failures_of_its_work_and_the_next_one_is_counted_anew(memory):
    record_success(memory, UUID, "tiering", 500)
    assert memory.list(table_prefix(UUID)) == [], "nothing is put where nothing failed"
    record_failure(memory, UUID, failure(work="maintenance"))
    record_failure(memory, UUID, failure())
    record_success(memory, UUID, "tiering", 3_000)
    assert [(one.work, one.mended_ms) for one in read_failures(memory, UUID)] == [
        ("tiering", 3_000),
        ("maintenance", None),
    ]
    record_success(memory, UUID, "tiering", 9_000)
    record_failure(memory, UUID, failure(now_ms=10_000))
    assert [(one.times, one.mended_ms) for one in read_failures(memory, UUID)][:2] == [(1, None), (1, 3_000)]


@pytest.mark.parametrize(
    "damage",
    [b"", b"\xff{", b"[]", b"{}", b'{"failures": 5}', b'{"failures": [{}]}', b'{"failures": [{"work": "theft"}]}'],
)
def test_a_damaged_note_says_nothing_and_is_written_anew(memory, damage):
    memory.put(tiering_failures_key(UUID), damage)
    assert read_failures(memory, UUID) == ()
    record_failure(memory, UUID, failure())
    assert len(read_failures(memory, UUID)) == 1


def test_who_shows_a_table_goes_on_where_the_store_gives_no_note(memory):
    class Refusing:
        def read(self, key):
            raise StorageError("away")

    assert list_failures(Refusing(), UUID) == ()
    with pytest.raises(StorageError):
        read_failures(Refusing(), UUID)


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "hunter2",
        "wJalrXUtnFEMI",
        "c2lnbmF0dXJl",
    ],
)
def test_a_note_has_no_credentials(memory, secret):
    text = (
        "asked https://ann:hunter2@store:9000/b?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE&X-Amz-Signature=c2lnbmF0dXJl as "
        "AKIAIOSFODNN7EXAMPLE with password=hunter2 and token: wJalrXUtnFEMI"
    )
    record_failure(memory, UUID, failure(StorageError(text)))
    stored = memory.read(tiering_failures_key(UUID)).decode()
    assert secret not in stored
    assert "https://***@store:9000/b?***&***" in stored


def test_of_errors_of_others_the_class_alone_is_told(memory):
    record_failure(memory, UUID, failure(RuntimeError("my row is 4711")))
    (found,) = read_failures(memory, UUID)
    assert (found.error, found.text) == ("RuntimeError", "")


def test_a_long_text_ends_with_its_first_line(memory):
    record_failure(memory, UUID, failure(StorageError("é" * 1_000 + "\nmore")))
    assert read_failures(memory, UUID)[0].text == f"STORAGE: {'é' * 1_000}"[:TEXT_CHARS_MAX]


def test_a_failure_is_over_after_a_later_success(table, clock):
    state = table.state
    now_ms = table.storage.now_ms()
    failed, upkeep = failure(now_ms=now_ms), failure(now_ms=now_ms, work="maintenance")
    assert not failed.is_resolved(state)
    clock.advance(5)
    tier(table)
    tiered = table.refresh()
    assert failed.is_resolved(tiered), "a snapshot was recorded since"
    assert not upkeep.is_resolved(tiered), "nothing in the log says that"
    later = failure(now_ms=now_ms + 1_000_000)
    assert later.is_resolved(tiered), "nothing waits"
    table.append([{"id": 2}])
    assert not later.is_resolved(table.state)
    assert replace(upkeep, mended_ms=5).is_resolved(state)


def test_a_failure_is_described_in_one_line(table):
    state, hour_ms = table.state, 3_600_000
    found = replace(failure(), times=3, first_ms=0, last_ms=600_000)
    text = found.describe(state, 620_000)
    assert text == "failed 3 times in 10 min, last 20 s ago on a: STORAGE: the store is away"
    assert found.describe(state, 600_000 + 50 * hour_ms).endswith("; no service has retried since")
    assert "last 2 days ago" in found.describe(state, 600_000 + 50 * hour_ms)
    mended = replace(failure(RuntimeError("x")), mended_ms=2_000)
    assert mended.describe(state, 2_000) == (
        "failed last 1 s ago on a: RuntimeError, whose text is in the log of that process; it succeeded later"
    )
    assert json.dumps(found.to_json(state))


def test_cleaning_leaves_it_a_clone_has_none_and_it_goes_with_the_table(wh, table, memory, clock):
    key = tiering_failures_key(table.uuid)
    record_failure(memory, table.uuid, failure())
    tier(table)
    copy = wh.clone_table("s.t", "s.copy")
    assert read_failures(memory, copy.uuid) == ()
    wh.drop_table("s.copy")
    for _ in range(4):
        clock.advance(GRACE_MS + 1)
        table.maintain()
        wh.clean_dropped()
    assert read_failures(memory, table.uuid)
    wh.drop_table("s.t")
    for _ in range(3):
        clock.advance(GRACE_MS + 1)
        wh.clean_dropped()
    assert key not in {info.key for info in memory.list(table_prefix(table.uuid))}
    record_failure(memory, table.uuid, failure())  # of a service that slept
    clock.advance(GRACE_MS + 1)
    wh.clean_dropped()
    assert read_failures(memory, table.uuid) == ()


def test_a_log_elsewhere_has_it_there(tmp_path):
    place = tmp_path / "place"
    wh = Warehouse(str(tmp_path / "wh"), world=sim_world(1))
    table = wh.create_table("s.t", "id BIGINT", properties={"table.log.location": str(place)})
    record_failure(table.storage, table.uuid, failure())
    assert (place / tiering_failures_key(table.uuid)).exists()
    assert read_failures(table.storage, table.uuid)
