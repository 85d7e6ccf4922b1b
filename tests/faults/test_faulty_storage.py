"""The fault injector injects what it says, so that the tests that use it prove something."""

from __future__ import annotations

import pytest

from faults.faulty_storage import WRITES, Crash, Fault, FaultyStorage, ListingLag, clock_of, sweep
from faults.sim import START_MS, SimClock, SimIds, sim_world
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage

CREATE_OPS = {"create.open": 0, "create.write": 1, "create.close": 2}


def new_store() -> MemoryStorage:
    return MemoryStorage(sim_world())


def write_segment(storage: Storage, key: str = "segments/a") -> None:
    with storage.create(key) as sink:
        sink.write(b"rows")


@pytest.mark.parametrize(
    ("fault", "raised", "applied"),
    [
        (Fault.CRASH_BEFORE, Crash, False),
        (Fault.CRASH_AFTER, Crash, True),
        (Fault.LOST_ACK, StorageError, True),
        (Fault.OWN_EXISTS, ObjectExistsError, True),
        (Fault.ERROR_BEFORE, StorageError, False),
    ],
)
def test_each_fault_applies_and_raises_what_it_says(fault, raised, applied):
    storage = FaultyStorage(new_store(), {1: fault})
    storage.put_if_absent("commits/0", b"zero")
    with pytest.raises(raised) as caught:
        storage.put_if_absent("commits/1", b"one")
    assert type(caught.value) is raised
    assert [info.key for info in storage.inner.list("commits/1")] == (["commits/1"] if applied else [])
    assert storage.faults_fired == [((1, "put_if_absent", "commits/1"), fault)]


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("at", CREATE_OPS)
@pytest.mark.parametrize("fault", Fault)
def test_a_large_write_is_visible_only_where_its_close_was_applied(at, fault, kind, tmp_path):
    inner = new_store() if kind == "memory" else LocalStorage(str(tmp_path), fsync=False)
    storage = FaultyStorage(inner, {CREATE_OPS[at]: fault})
    with pytest.raises((Crash, StorageError)):
        write_segment(storage)
    closed = at == "create.close" and fault in (Fault.CRASH_AFTER, Fault.LOST_ACK, Fault.OWN_EXISTS)
    assert [info.key for info in storage.inner.list("")] == (["segments/a"] if closed else [])
    assert storage.trace[-1][1] == at


def test_a_failing_writer_leaves_nothing_and_its_error_passes():
    storage = FaultyStorage(new_store())

    def write_and_fail() -> None:
        with storage.create("segments/a") as sink:
            sink.write(b"rows")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert storage.inner.list("") == []


def test_a_crashed_storage_refuses_everything():
    storage = FaultyStorage(new_store(), {0: Fault.CRASH_AFTER})
    with pytest.raises(Crash):
        storage.put("hint", b"1")
    with pytest.raises(Crash):
        storage.delete("hint")
    assert storage.inner.read("hint") == b"1"
    assert len(storage.trace) == 1


def test_an_answer_that_is_lost_hides_what_it_said():
    storage = FaultyStorage(new_store(), {0: Fault.LOST_ACK, 1: Fault.OWN_EXISTS})
    with pytest.raises(StorageError) as caught:
        storage.read("absent")
    assert not isinstance(caught.value, ObjectNotFoundError)
    with pytest.raises(StorageError) as caught:
        storage.read("absent")
    assert not isinstance(caught.value, ObjectNotFoundError | ObjectExistsError)


def test_a_callable_plan_sees_number_method_and_key():
    storage = FaultyStorage(
        new_store(), lambda _, method, key: Fault.ERROR_BEFORE if (method, key) == ("put", "b") else None
    )
    storage.put("a", b"")
    with pytest.raises(StorageError):
        storage.put("b", b"")
    storage.put_if_absent("b", b"")


def test_listings_lag_by_the_newest_objects_until_advanced():
    lag = ListingLag(2)
    storage = FaultyStorage(new_store(), lag=lag)
    for name in "abcd":
        storage.put_if_absent(f"t/{name}/1", b"")
    assert storage.list_names("t/") == ["a", "b"]
    assert {info.key for info in storage.list("t/")} == {"t/a/1", "t/b/1"}
    assert storage.read("t/d/1") == b""
    lag.advance(1)
    assert storage.list_names("t/") == ["a", "b", "c"]
    assert FaultyStorage(storage.inner, lag=lag).list_names("t/") == ["a", "b", "c"]
    lag.advance()
    assert storage.list_names("t/") == ["a", "b", "c", "d"]


def test_sweep_meets_every_call_with_every_fault():
    def scenario(storage: Storage) -> None:
        write_segment(storage)
        storage.put_if_absent("commits/0", b"segments/a")
        storage.list("commits/")

    attempts = list(sweep(new_store, scenario))
    assert len(attempts) == 5 * len(Fault)
    assert {(a.op[1], a.fault) for a in attempts} == {
        (method, fault) for method in (*CREATE_OPS, "put_if_absent", "list") for fault in Fault
    }
    for attempt in attempts:
        assert attempt.raised is not None, attempt
        committed = bool(attempt.store.list("commits/"))
        assert not committed or attempt.store.read("segments/a") == b"rows", attempt
    assert {a.op[1] for a in sweep(new_store, scenario, methods=WRITES)} == {*CREATE_OPS, "put_if_absent"}


def test_attempts_of_a_sweep_start_with_the_objects_and_the_time_of_its_store():
    start = MemoryStorage(sim_world(), "first")
    start.put("a", b"1")
    clock_of(start).advance(7)

    def scenario(storage: FaultyStorage) -> None:
        assert (storage.url, storage.read("a"), storage.now_ms()) == (start.url, b"1", start.now_ms())
        clock_of(storage).advance(1000)
        storage.put("a", b"2")

    assert len(list(sweep(start, scenario))) == 2 * len(Fault)
    assert (start.read("a"), start.now_ms()) == (b"1", START_MS + 7)


def test_a_sweep_yields_attempts_that_end_alike_once():
    waited_ms = 0

    def scenario(storage: FaultyStorage) -> None:
        storage.read("a")
        storage.read("a")
        clock_of(storage).advance(waited_ms)
        storage.put("b", b"1")

    start = MemoryStorage(sim_world())
    start.put("a", b"1")
    states = [(a.op[0], a.fault) for a in sweep(start, scenario, each_state_once=True)]
    assert states == [(0, Fault.CRASH_BEFORE), (0, Fault.LOST_ACK), (2, Fault.CRASH_AFTER), (2, Fault.LOST_ACK)]
    waited_ms = 5
    states = [(a.op[0], a.fault) for a in sweep(start, scenario, each_state_once=True)]
    at_the_write = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_ACK, Fault.ERROR_BEFORE]
    assert states[2:] == [(2, fault) for fault in at_the_write]


def test_the_same_seed_gives_the_same_trace():
    def run(seed: int) -> tuple[list[object], list[float]]:
        world = sim_world(seed)
        storage = FaultyStorage(MemoryStorage(world), lambda *_: Fault.LOST_ACK if world.ids.jitter() < 0.3 else None)
        for _ in range(50):
            try:
                storage.put_if_absent(f"segments/{world.ids.new_uuid()}", b"")
            except StorageError:
                world.clock.sleep_ms(100 * world.ids.jitter())
        return list(storage.trace), world.clock.slept_ms

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_sim_clock_advances_and_jumps():
    clock = SimClock()
    boot_ms = clock.boot_ms()
    assert clock.now_ms() == START_MS
    clock.sleep_ms(250)
    clock.jump(-3_600_000)
    assert clock.now_ms() == START_MS + 250 - 3_600_000
    assert clock.boot_ms() == boot_ms + 250
    assert clock.slept_ms == [250]


def test_sim_ids_are_uuids_in_the_form_that_keys_need():
    ids = SimIds(1)
    made = {ids.new_uuid() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(u) == 32 and int(u, 16) >= 0 for u in made)
    assert 0 <= ids.jitter() < 1
