"""A state in the hint of checkpoints is help, not truth: it counts only where the log has the record it ends with."""

from __future__ import annotations

import itertools

import pytest

from faults.sim import sim_world
from kit.round_trips import RemoteStorage
from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.core.warehouse_layout import checkpoint_hint_key, checkpoint_key, commit_key
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.log import checkpoint
from streamhouse_spark.log.checkpoint import (
    CHECKPOINT_INTERVAL,
    HINT_EVERY,
    list_checkpoints,
    parse_hint,
    read_hinted_state,
)

ROWS = CHECKPOINT_INTERVAL + HINT_EVERY + 5


@pytest.fixture
def table(remote, world):
    table = Warehouse("wh", storage=remote, world=world).create_table("t", "id BIGINT")
    for number in range(ROWS):
        table.append([{"id": number}])
    return table


_seeds = itertools.count(7)


def opened(store):
    """Open the table in a process of its own, whose identities nobody else has."""
    return Warehouse("wh", storage=store, world=sim_world(next(_seeds))).table("t")


def right(store, rows: int = ROWS) -> None:
    assert opened(store).to_arrow()["id"].to_pylist() == list(range(rows))


def held(store, table):
    return read_hinted_state(store.read(checkpoint_hint_key(table.uuid)), table.uuid)


def test_the_writer_of_each_twentieth_record_puts_its_state_there(table, remote, world):
    assert held(remote, table).state.version == CHECKPOINT_INTERVAL + HINT_EVERY
    assert held(remote, table).stored == list_checkpoints(remote, table.uuid)[-1] == CHECKPOINT_INTERVAL
    others = [opened(remote) for _ in range(3)]
    hints = 0
    for number in range(60):
        before = remote.read(checkpoint_hint_key(table.uuid))
        others[number % 3].append([{"id": ROWS + number}])
        hints += remote.read(checkpoint_hint_key(table.uuid)) != before
    assert hints <= 3 + 2 * len(others), "each twentieth record once, and checkpoints of all that saw forty records"
    right(remote, ROWS + 60)


def test_a_process_that_began_at_such_a_state_still_makes_checkpoints(table, remote):
    for number in range(60):
        opened(remote).append([{"id": ROWS + number}])
    assert list_checkpoints(remote, table.uuid)[-1] >= ROWS + 60 - CHECKPOINT_INTERVAL
    right(remote, ROWS + 60)


def test_a_store_without_requests_has_the_number_alone(memory, world):
    table = Warehouse("wh", storage=memory, world=world).create_table("t", "id BIGINT")
    for number in range(ROWS):
        table.append([{"id": number}])
    assert memory.read(checkpoint_hint_key(table.uuid)) == str(CHECKPOINT_INTERVAL).encode()
    right(RemoteStorage(memory))


def test_a_large_state_is_left_out(remote, world, monkeypatch):
    monkeypatch.setattr(checkpoint, "HINT_BYTES_MAX", 100)
    table = Warehouse("wh", storage=remote, world=world).create_table("t", "id BIGINT")
    for number in range(ROWS):
        table.append([{"id": number}])
    assert remote.read(checkpoint_hint_key(table.uuid)) == str(CHECKPOINT_INTERVAL).encode()
    right(remote)


def test_any_damage_of_it_costs_time_and_nothing_else(table, remote, memory):
    hint = remote.read(checkpoint_hint_key(table.uuid))
    assert parse_hint(hint) == CHECKPOINT_INTERVAL
    shortened = [hint[:length] for length in range(0, len(hint), 97)]
    flipped = [hint[:at] + bytes([hint[at] ^ 4]) + hint[at + 1 :] for at in range(0, len(hint), 61)]
    for damaged in [*shortened, *flipped, b"0" + hint[2:], b"\n" + hint.partition(b"\n")[2]]:
        memory.put(checkpoint_hint_key(table.uuid), damaged)
        assert opened(remote).state.version == table.state.version
    right(remote)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_hint_that_a_restore_left_behind_is_passed_over(memory, world, is_gone):
    """The log was restored to an earlier record, and others follow it; the hint is of the history before."""
    remote = RemoteStorage(memory)
    table = Warehouse("wh", storage=remote, world=world).create_table("t", "id BIGINT")
    for number in range(HINT_EVERY + 2):
        table.append([{"id": number}])
    hint = remote.read(checkpoint_hint_key(table.uuid))
    assert held(remote, table).state.version == HINT_EVERY
    for number in range(11, HINT_EVERY + 4):
        memory.delete(commit_key(table.uuid, number))
    restored = opened(RemoteStorage(memory))
    assert restored.state.version == 10
    kept = 9
    if not is_gone:
        for number in range(20):
            restored.append([{"id": 100 + number}])
        kept += 20
    memory.put(checkpoint_hint_key(table.uuid), hint)
    found = opened(RemoteStorage(memory))
    assert found.to_arrow().num_rows == kept
    assert found.state.attempt == restored.state.attempt


def test_a_failure_of_its_put_fails_no_commit(memory, world):
    class Refusing(RemoteStorage):
        def put(self, key: str, data: bytes) -> None:
            raise StorageError("refused")

    table = Warehouse("wh", storage=Refusing(memory), world=world).create_table("t", "id BIGINT")
    for number in range(HINT_EVERY + 1):
        table.append([{"id": number}])
    with pytest.raises(ObjectNotFoundError):
        memory.read(checkpoint_hint_key(table.uuid))
    right(RemoteStorage(memory), HINT_EVERY + 1)


def test_a_process_far_behind_goes_on_from_it(table, remote):
    behind = opened(remote)
    for number in range(300):
        table.append([{"id": ROWS + number}])
    remote.delete(checkpoint_key(table.uuid, list_checkpoints(remote, table.uuid)[-1]))
    with remote.measured() as cost:
        assert behind.refresh().version == table.state.version
    assert cost.depth <= 4, cost


def test_after_cleaning_it_is_of_no_use_and_harms_nobody(table, remote, memory, clock):
    """Records up to the one that the state ends with were voided and deleted since."""
    hint = memory.read(checkpoint_hint_key(table.uuid))
    for number in range(2 * CHECKPOINT_INTERVAL):
        table.append([{"id": ROWS + number}])
    for _ in range(2):
        table.maintain()
        clock.advance(25 * 3_600_000)
    with pytest.raises(ObjectNotFoundError):
        memory.read(commit_key(table.uuid, CHECKPOINT_INTERVAL + HINT_EVERY))
    memory.put(checkpoint_hint_key(table.uuid), hint)
    found = Warehouse("wh", storage=remote, world=sim_world(7, clock)).table("t")
    assert found.to_arrow()["id"].to_pylist() == list(range(ROWS + 2 * CHECKPOINT_INTERVAL))
