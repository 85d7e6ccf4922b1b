"""Checkpoints and hints are derived: damaged, stale or missing ones cost time and nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from kit.round_trips import RemoteStorage
from streamhouse_spark import CorruptDataError, StorageError, StreamhouseError, Warehouse
from streamhouse_spark.core.warehouse_layout import (
    checkpoint_hint_key,
    checkpoint_key,
    checkpoints_prefix,
    commit_key,
    watermark_key,
)
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.log import checkpoint
from streamhouse_spark.log.checkpoint import (
    CHECKPOINT_INTERVAL,
    HINT_EVERY,
    list_checkpoints,
    parse_hint,
    read_checkpoint,
    read_hinted_state,
    write_checkpoint,
)
from streamhouse_spark.log.gc.garbage_collection import clean, verify_checkpoints

COMMITS = 3 * CHECKPOINT_INTERVAL + 7


@pytest.fixture
def table(memory, world):
    table = Warehouse("wh", storage=memory, world=world).create_table("t", "id BIGINT")
    for i in range(COMMITS):
        table.append([{"id": i}])
    return table


def reopened(memory):
    return Warehouse("wh", storage=memory, world=sim_world(7)).table("t")


def right(table) -> None:
    assert table.to_arrow()["id"].to_pylist() == list(range(COMMITS))


def test_they_are_written_as_the_log_grows(table, memory):
    numbers = list_checkpoints(memory, table.uuid)
    assert len(numbers) == 3
    assert memory.read(checkpoint_hint_key(table.uuid)) == str(numbers[-1]).encode()
    right(reopened(memory))


@pytest.mark.parametrize(
    "hint",
    [b"", b"x", b"-5", b"0", b"1", b"99999999999999999999999999", b"\xff\xfe", b"101 ", "٣".encode(), b"5" * 5000],
)
def test_a_log_opens_whatever_its_hint_holds(table, memory, hint):
    memory.put(checkpoint_hint_key(table.uuid), hint)
    right(reopened(memory))


def test_a_log_opens_without_a_hint(table, memory):
    memory.delete(checkpoint_hint_key(table.uuid))
    right(reopened(memory))


def test_a_log_opens_from_a_stale_hint(table, memory):
    first = list_checkpoints(memory, table.uuid)[0]
    memory.put(checkpoint_hint_key(table.uuid), str(first).encode())
    right(reopened(memory))


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: d[:-1], lambda d: d[:50], lambda d: d[:-9] + b"\x00" + d[-8:]]
)
def test_a_log_opens_despite_damaged_checkpoints(table, memory, damage):
    for number in list_checkpoints(memory, table.uuid)[1:]:
        key = checkpoint_key(table.uuid, number)
        memory.put(key, damage(memory.read(key)))
    right(reopened(memory))


def test_a_log_opens_without_any_checkpoint(table, memory):
    for info in memory.list(checkpoints_prefix(table.uuid)):
        memory.delete(info.key)
    right(reopened(memory))


def test_a_checkpoint_of_another_table_or_number_is_ignored(table, memory, world):
    other = Warehouse("wh", storage=memory, world=world).create_table("other", "id BIGINT")
    other.log.checkpoint(other.refresh())
    numbers = list_checkpoints(memory, table.uuid)
    memory.put(checkpoint_key(table.uuid, numbers[-1]), memory.read(checkpoint_key(other.uuid, 1)))
    memory.put(checkpoint_key(table.uuid, numbers[-2]), memory.read(checkpoint_key(table.uuid, numbers[0])))
    right(reopened(memory))


def test_after_cleaning_the_records_a_lost_checkpoint_is_an_error_not_fewer_rows(table, memory, clock):
    table.maintain()
    clock.advance(25 * 3_600_000)
    table.maintain()
    with pytest.raises(StreamhouseError):
        memory.read(commit_key(table.uuid, 1))
    right(Warehouse("wh", storage=memory, world=sim_world(7, clock)).table("t"))
    for info in memory.list(checkpoints_prefix(table.uuid)):
        memory.delete(info.key)
    with pytest.raises(StreamhouseError, match=r"CORRUPT_DATA: .*/checkpoints/ .*records were deleted.*restore"):
        Warehouse("wh", storage=memory, world=sim_world(8, clock)).table("t")


def test_a_record_that_is_missing_in_the_middle_is_an_error_not_fewer_rows(table, memory):
    memory.delete(commit_key(table.uuid, COMMITS - 3))
    for info in memory.list(checkpoints_prefix(table.uuid)):
        memory.delete(info.key)
    with pytest.raises(CorruptDataError):
        reopened(memory).to_arrow()


def test_opening_after_a_thousand_commits_costs_what_it_costs_after_ten(memory, world):
    counting = FaultyStorage(memory)
    wh = Warehouse("wh", storage=counting, world=world)
    table = wh.create_table("long", "id BIGINT", properties={"table.datalake.enabled": "false"})
    for i in range(1234):
        table.append([{"id": i}])
    counting.trace.clear()
    opened = Warehouse("wh", storage=counting, world=sim_world(5)).table("long")
    assert len(counting.trace) < CHECKPOINT_INTERVAL + 10
    assert opened.to_arrow()["id"].to_pylist() == list(range(1234))
    assert len(opened.state.live_segments()) < 100, "inline rows are merged by their writers"


def flips(data):
    for at in range(len(data)):
        for bit in range(0, 8, 3):
            yield data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


@pytest.fixture
def cleaned(table, memory, clock):
    """A table whose first records were voided and deleted."""
    table.maintain()
    clock.advance(25 * 3_600_000)
    table.maintain()
    with pytest.raises(StreamhouseError):
        memory.read(commit_key(table.uuid, 1))
    return table


@pytest.mark.parametrize("what", ["checkpoint", "hint", "floor"])
def test_no_flipped_bit_in_the_newest_makes_the_table_unreadable(cleaned, memory, clock, what):
    newest = list_checkpoints(memory, cleaned.uuid)[-1]
    key = {
        "checkpoint": checkpoint_key(cleaned.uuid, newest),
        "hint": checkpoint_hint_key(cleaned.uuid),
        "floor": watermark_key(cleaned.uuid, cleaned.log.watermark_index),
    }[what]
    whole = memory.read(key)
    for damaged in list(flips(whole))[:: 1 if len(whole) < 600 else 29]:
        memory.put(key, damaged)
        opened = Warehouse("wh", storage=memory, world=sim_world(7, clock)).table("t")
        assert opened.state.version == cleaned.log.state.version
    right(Warehouse("wh", storage=memory, world=sim_world(7, clock)).table("t"))


def test_a_checkpoint_that_was_stored_wrong_is_not_pointed_to_and_lets_no_record_go(memory, world, clock):
    class Rotten(FaultyStorage):
        """Stores a checkpoint with one bit flipped, and reports success."""

        def put_if_absent(self, key, data):
            rots = checkpoints_prefix(table.uuid) in key
            super().put_if_absent(key, next(flips(bytes(data)[::-1]))[::-1] if rots else data)

    table = Warehouse("wh", storage=memory, world=world).create_table("t", "id BIGINT")
    rotten = Warehouse("wh", storage=Rotten(memory), world=sim_world(3, clock)).table("t")
    for i in range(COMMITS):
        rotten.append([{"id": i}])
    for _ in range(2):
        rotten.maintain()
        clock.advance(25 * 3_600_000)
    assert list_checkpoints(memory, table.uuid)
    with pytest.raises(ObjectNotFoundError):
        memory.read(checkpoint_hint_key(table.uuid))
    assert rotten.log.refresh_low_watermark() == 0
    right(reopened(memory))


def test_one_checkpoint_alone_gives_no_floor(table, memory, clock):
    for number in list_checkpoints(memory, table.uuid):
        memory.delete(checkpoint_key(table.uuid, number))
    table.log.checkpoint(table.refresh())
    clean(table.log, memory)
    assert table.log.refresh_low_watermark() == 0
    table.append([{"id": COMMITS}])
    table.log.checkpoint(table.refresh())
    clean(table.log, memory)
    assert 0 < table.log.refresh_low_watermark() <= list_checkpoints(memory, table.uuid)[0]


def test_a_checkpoint_that_says_something_else_does_not_count(table, memory):
    """Whole by its checksum, and wrong: only the records tell."""
    newest = list_checkpoints(memory, table.uuid)[-1]
    stored = read_checkpoint(memory, table.uuid, newest)
    memory.delete(checkpoint_key(table.uuid, newest))
    write_checkpoint(memory, replace(stored, properties={"table.log.ttl": "1d"}))
    counted = verify_checkpoints(memory, table.refresh())
    assert [state.version for state in counted] == list_checkpoints(memory, table.uuid)[:-1][::-1]


def test_records_stay_while_a_checkpoint_at_the_floor_is_damaged(table, memory, clock):
    table.maintain()
    clock.advance(25 * 3_600_000)
    for number in list_checkpoints(memory, table.uuid)[-2:]:
        key = checkpoint_key(table.uuid, number)
        memory.put(key, memory.read(key)[:-1])
    clean(table.log, memory)
    assert memory.read(commit_key(table.uuid, 1))
    for i in range(2):
        table.append([{"id": COMMITS + i}])
        table.log.checkpoint(table.refresh())
    clean(table.log, memory)
    with pytest.raises(ObjectNotFoundError):
        memory.read(commit_key(table.uuid, 1))
    assert Warehouse("wh", storage=memory, world=sim_world(9, clock)).table("t").to_arrow().num_rows == COMMITS + 2


def test_damage_to_all_checkpoints_names_a_file(cleaned, memory, clock):
    for number in list_checkpoints(memory, cleaned.uuid):
        key = checkpoint_key(cleaned.uuid, number)
        memory.put(key, memory.read(key)[:-1])
    with pytest.raises(CorruptDataError, match=rf"{checkpoint_key(cleaned.uuid, number)} .*; restore"):
        Warehouse("wh", storage=memory, world=sim_world(8, clock)).table("t")


NUM_ROWS = CHECKPOINT_INTERVAL + HINT_EVERY + 5


@pytest.fixture
def hinted_table(remote, world):
    hinted_table = Warehouse("wh", storage=remote, world=world).create_table("t", "id BIGINT")
    for number in range(NUM_ROWS):
        hinted_table.append([{"id": number}])
    return hinted_table


_seeds = itertools.count(7)


def opened(store):
    """Open the table in a process of its own, whose identities nobody else has."""
    return Warehouse("wh", storage=store, world=sim_world(next(_seeds))).table("t")


def require_all_rows(store, rows: int = NUM_ROWS) -> None:
    assert opened(store).to_arrow()["id"].to_pylist() == list(range(rows))


def held(store, hinted_table):
    return read_hinted_state(store.read(checkpoint_hint_key(hinted_table.uuid)), hinted_table.uuid)


def test_the_writer_of_each_twentieth_record_puts_its_state_there(hinted_table, remote, world):
    assert held(remote, hinted_table).state.version == CHECKPOINT_INTERVAL + HINT_EVERY
    assert held(remote, hinted_table).stored == list_checkpoints(remote, hinted_table.uuid)[-1] == CHECKPOINT_INTERVAL
    others = [opened(remote) for _ in range(3)]
    hints = 0
    for number in range(60):
        before = remote.read(checkpoint_hint_key(hinted_table.uuid))
        others[number % 3].append([{"id": NUM_ROWS + number}])
        hints += remote.read(checkpoint_hint_key(hinted_table.uuid)) != before
    assert hints <= 3 + 2 * len(others), "each twentieth record once, and checkpoints of all that saw forty records"
    require_all_rows(remote, NUM_ROWS + 60)


def test_a_process_that_began_at_such_a_state_still_makes_checkpoints(hinted_table, remote):
    for number in range(60):
        opened(remote).append([{"id": NUM_ROWS + number}])
    assert list_checkpoints(remote, hinted_table.uuid)[-1] >= NUM_ROWS + 60 - CHECKPOINT_INTERVAL
    require_all_rows(remote, NUM_ROWS + 60)


def test_a_store_without_requests_has_the_number_alone(memory, world):
    hinted_table = Warehouse("wh", storage=memory, world=world).create_table("t", "id BIGINT")
    for number in range(NUM_ROWS):
        hinted_table.append([{"id": number}])
    assert memory.read(checkpoint_hint_key(hinted_table.uuid)) == str(CHECKPOINT_INTERVAL).encode()
    require_all_rows(RemoteStorage(memory))


def test_a_large_state_is_left_out(remote, world, monkeypatch):
    monkeypatch.setattr(checkpoint, "HINT_BYTES_MAX", 100)
    hinted_table = Warehouse("wh", storage=remote, world=world).create_table("t", "id BIGINT")
    for number in range(NUM_ROWS):
        hinted_table.append([{"id": number}])
    assert remote.read(checkpoint_hint_key(hinted_table.uuid)) == str(CHECKPOINT_INTERVAL).encode()
    require_all_rows(remote)


def test_any_damage_of_it_costs_time_and_nothing_else(hinted_table, remote, memory):
    hint = remote.read(checkpoint_hint_key(hinted_table.uuid))
    assert parse_hint(hint) == CHECKPOINT_INTERVAL
    shortened = [hint[:length] for length in range(0, len(hint), 97)]
    flipped = [hint[:at] + bytes([hint[at] ^ 4]) + hint[at + 1 :] for at in range(0, len(hint), 61)]
    for damaged in [*shortened, *flipped, b"0" + hint[2:], b"\n" + hint.partition(b"\n")[2]]:
        memory.put(checkpoint_hint_key(hinted_table.uuid), damaged)
        assert opened(remote).state.version == hinted_table.state.version
    require_all_rows(remote)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_hint_that_a_restore_left_behind_is_passed_over(memory, world, is_gone):
    """The log was restored to an earlier record, and others follow it; the hint is of the history before."""
    remote = RemoteStorage(memory)
    hinted_table = Warehouse("wh", storage=remote, world=world).create_table("t", "id BIGINT")
    for number in range(HINT_EVERY + 2):
        hinted_table.append([{"id": number}])
    hint = remote.read(checkpoint_hint_key(hinted_table.uuid))
    assert held(remote, hinted_table).state.version == HINT_EVERY
    for number in range(11, HINT_EVERY + 4):
        memory.delete(commit_key(hinted_table.uuid, number))
    restored = opened(RemoteStorage(memory))
    assert restored.state.version == 10
    kept = 9
    if not is_gone:
        for number in range(20):
            restored.append([{"id": 100 + number}])
        kept += 20
    memory.put(checkpoint_hint_key(hinted_table.uuid), hint)
    found = opened(RemoteStorage(memory))
    assert found.to_arrow().num_rows == kept
    assert found.state.attempt == restored.state.attempt


def test_a_failure_of_its_put_fails_no_commit(memory, world):
    class Refusing(RemoteStorage):
        def put(self, key: str, data: bytes) -> None:
            raise StorageError("refused")

    hinted_table = Warehouse("wh", storage=Refusing(memory), world=world).create_table("t", "id BIGINT")
    for number in range(HINT_EVERY + 1):
        hinted_table.append([{"id": number}])
    with pytest.raises(ObjectNotFoundError):
        memory.read(checkpoint_hint_key(hinted_table.uuid))
    require_all_rows(RemoteStorage(memory), HINT_EVERY + 1)


def test_a_process_far_behind_goes_on_from_it(hinted_table, remote):
    behind = opened(remote)
    for number in range(300):
        hinted_table.append([{"id": NUM_ROWS + number}])
    remote.delete(checkpoint_key(hinted_table.uuid, list_checkpoints(remote, hinted_table.uuid)[-1]))
    with remote.measured() as cost:
        assert behind.refresh().version == hinted_table.state.version
    assert cost.depth <= 4, cost


def test_after_cleaning_it_is_of_no_use_and_harms_nobody(hinted_table, remote, memory, clock):
    """Records up to the one that the state ends with were voided and deleted since."""
    hint = memory.read(checkpoint_hint_key(hinted_table.uuid))
    for number in range(2 * CHECKPOINT_INTERVAL):
        hinted_table.append([{"id": NUM_ROWS + number}])
    for _ in range(2):
        hinted_table.maintain()
        clock.advance(25 * 3_600_000)
    with pytest.raises(ObjectNotFoundError):
        memory.read(commit_key(hinted_table.uuid, CHECKPOINT_INTERVAL + HINT_EVERY))
    memory.put(checkpoint_hint_key(hinted_table.uuid), hint)
    found = Warehouse("wh", storage=remote, world=sim_world(7, clock)).table("t")
    assert found.to_arrow()["id"].to_pylist() == list(range(NUM_ROWS + 2 * CHECKPOINT_INTERVAL))
