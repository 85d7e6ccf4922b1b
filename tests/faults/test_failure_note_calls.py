"""A fault at every storage call of the note of failed rounds: whatever happens to it, nobody hears of it but people."""

from __future__ import annotations

from contextlib import suppress

import pytest

from faults.faulty_storage import Crash, Fault, FaultyStorage
from faults.sim import SimClock, sim_world
from streamhouse_spark import LakeMismatchError, StorageError, Warehouse
from streamhouse_spark.log.tiering_failures import list_failures
from streamhouse_spark.service.tiering_service import FailureRecorder
from streamhouse_spark.storage.memory import MemoryStorage


def life(plan) -> tuple[FaultyStorage, list[str]]:
    """Two kinds of failures, then a success, each call of which must come back; return the errors that are noted."""
    world = sim_world(1, SimClock())
    inner = MemoryStorage(world)
    Warehouse("wh", storage=inner, world=world).create_table("s.t", "id BIGINT")
    table = Warehouse("wh", storage=inner, world=world).table("s.t")
    table.storage = faulty = FaultyStorage(inner, plan)
    notes = FailureRecorder(world.clock)
    with suppress(Crash):
        notes.record_failure(table, "tiering", LakeMismatchError("one"), 0)
        notes.record_failure(table, "maintenance", StorageError("two"), 0)
        notes.note_success(table, "tiering")
        notes.note_success(table, "maintenance")
    found = list_failures(inner, table.uuid)
    return faulty, [f"{one.error} {one.mended_ms is not None}" for one in found]


def test_each_call_with_each_fault():
    faulty, found = life({})
    assert found == ["StorageError True", "LakeMismatchError True"]
    numbers = [number for number, _, _ in faulty.trace]
    assert len(numbers) == 8
    for number in numbers:
        for fault in Fault:
            met, left = life({number: fault})
            assert met.faults_fired, (number, fault)
            assert {line.split()[0] for line in left} <= {"StorageError", "LakeMismatchError"}


def test_a_planted_bug_is_found_an_error_of_the_note_comes_out(monkeypatch):
    from contextlib import nullcontext

    from streamhouse_spark.service import tiering_service

    monkeypatch.setattr(tiering_service, "log_post_commit_errors", lambda *_: nullcontext())
    with pytest.raises(StorageError):
        life({4: Fault.ERROR_BEFORE})
