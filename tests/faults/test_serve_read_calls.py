"""A fault at every storage call of a system table's document, and of a bulk read: an error, or exactly the rows."""

from __future__ import annotations

import uuid
from random import Random

import pyarrow as pa
import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import Fault, clock_of, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from kit.iceberg_documents import rows_of
from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.read import split_planning
from streamhouse_spark.serve.app_context import OpenTables
from streamhouse_spark.serve.flight.read_service import FlightReadService
from streamhouse_spark.serve.flight.requests import ReadRequest
from streamhouse_spark.serve.iceberg.served_tables import ServedTables
from streamhouse_spark.serve.iceberg.system_table_metadata import SystemTableMetadata
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.sampled(3)
FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
GRACE_MS = 600_000


def opened(storage: Storage, seed: int) -> Warehouse:
    return Warehouse("wh", storage=storage, world=sim_world(seed, clock_of(storage)))


def new_store() -> Storage:
    storage = MemoryStorage(sim_world())
    table = opened(storage, 1).create_table("s.t", "id BIGINT, n INT", buckets=2)
    table.append([{"id": n, "n": 0} for n in range(6)])
    tier(table)
    table.append([{"id": n, "n": 1} for n in range(6, 11)])
    return storage


def shown(storage: Storage, seed: int) -> list[dict[str, object]]:
    document = SystemTableMetadata(grace_ms=GRACE_MS).latest_metadata(opened(storage, seed).table("s.t"), "history")
    return rows_of(storage, document)


def test_a_system_table_is_made(share, monkeypatch):
    """The library names files of its own accord: each run gets the same names."""
    numbers = [Random(0)]
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=numbers[-1].getrandbits(128), version=4))
    expected = shown(new_store(), 90)
    made: list[list[dict[str, object]]] = []

    def make(storage: Storage) -> None:
        clear_manifest_cache()
        numbers.append(Random(1))
        with one_thing_at_a_time():
            made.append(shown(storage, 3))

    for attempt in sweep(new_store(), make, share=share, faults=FEW):
        clear_manifest_cache()
        if not attempt.raised:
            assert made[-1] == expected, attempt
        assert shown(attempt.store, 4) == expected, attempt
        table = opened(attempt.store, 5).table("s.t")
        assert table.refresh().version == 4, "the log has a record of it"
        clock_of(attempt.store).advance(3 * GRACE_MS)
        ServedTables(opened(attempt.store, 6), grace_ms=GRACE_MS).clean()
        assert list(attempt.store.list("lake/.virtual/")) == [], "a folder stays for ever"


def read(storage: Storage, seed: int, *, other: int) -> list[int]:
    """Offer at one server, and read the parts at another one."""
    offer = FlightReadService(OpenTables(opened(storage, seed))).plan_read(ReadRequest("s.t", parts=4))
    reads = FlightReadService(OpenTables(opened(storage, other)))
    found = [batch for ticket in offer.tickets for batch in reads.rows(ticket).batches]
    return sorted(pa.Table.from_batches(found)["id"].to_pylist())


def test_a_bulk_read_has_exactly_the_rows_or_fails(share, monkeypatch):
    monkeypatch.setattr(split_planning, "OPENING_BYTES", 0)
    monkeypatch.setattr(split_planning, "TARGET_BYTES_MIN", 1)
    found: list[list[int]] = []

    def make(storage: Storage) -> None:
        clear_manifest_cache()
        with one_thing_at_a_time():
            found.append(read(storage, 3, other=4))

    for attempt in sweep(new_store(), make, share=share, faults=(*FEW, Fault.CRASH_BEFORE)):
        if not attempt.raised:
            assert found[-1] == list(range(11)), attempt
        assert read(attempt.store, 5, other=6) == list(range(11)), attempt
