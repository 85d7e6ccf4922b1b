"""A fault at every storage call of relocating: the warehouse stays readable or says so, and the same call ends it."""

from __future__ import annotations

from collections import Counter

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, Fault, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import Table, Warehouse, relocate
from streamhouse_spark.errors import InvalidOptionError, LakeMismatchError, TableNotFoundError, WarehouseMovedError
from streamhouse_spark.log.catalog.names import read_warehouse_file
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = [pytest.mark.sampled(14), pytest.mark.usefixtures("own_cache")]

FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
WHOLE = WRITES - {"create.write", "create.open"}
REST = {"create.write", "create.open", "read", "read_ranges", "size_bytes", "list", "list_names"}
HOUR_MS = 3_600_000


def opened(storage: Storage, seed: int) -> Warehouse:
    clear_manifest_cache()
    return Warehouse("wh", storage=storage, world=sim_world(seed))


def filled(lake: str, *, keyed: bool) -> MemoryStorage:
    """Made at one place, with two snapshots (of keyed rows with deletes), a long partition and rows in the log."""
    made = MemoryStorage(sim_world(), "first")
    warehouse = opened(made, 1)
    properties = {"table.datalake.format": lake}
    if keyed:
        table = warehouse.create_table("t", "id INT, p STRING", primary_key=["id"], properties=properties)
        write = table.upsert
    else:
        table = warehouse.create_table("t", "id INT, p STRING", partition_by=["p"], properties=properties)
        write = table.append
    write([{"id": n, "p": "x" * 400} for n in range(4)])
    tier(table)
    write([{"id": n, "p": "y"} for n in range(3, 6)])
    tier(table)
    write([{"id": n, "p": "z"} for n in range(6, 8)])
    return made


def at(made: MemoryStorage, name: str) -> MemoryStorage:
    found = MemoryStorage(sim_world(), name)
    found._objects = dict(made._objects)
    return found


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(
    ("keyed", "faults"),
    [
        pytest.param(True, FEW[:1], id="keyed"),
        pytest.param(False, FEW, id="log"),
        pytest.param(True, tuple(Fault), id="keyed, all faults", marks=pytest.mark.soak),
        pytest.param(False, tuple(Fault), id="log, all faults", marks=pytest.mark.soak),
    ],
)
def test_a_failed_relocation_is_completed_by_the_same_call(lake, copy, keyed, faults, share):
    made = filled(lake, keyed=keyed)
    wanted = ids(opened(made, 2).table("t"))
    first_id = read_warehouse_file(made).id
    first_uuid = opened(made, 2).table("t").uuid

    def work(storage: Storage) -> None:
        relocate(opened(storage, 3), copy=copy)

    outcomes: Counter[str] = Counter()
    with one_thing_at_a_time():
        for methods, met in ((WHOLE, faults), (REST, (Fault.ERROR_BEFORE,) if len(faults) > 1 else ())):
            for attempt in sweep(at(made, "second"), work, methods=methods, faults=met, share=share):
                between = _between(attempt.store, wanted)
                try:
                    work(attempt.store)
                except InvalidOptionError:  # it was done but for the answer, so it is no copy any more
                    assert copy
                    assert between == "home", attempt
                warehouse = opened(attempt.store, 5)
                table = warehouse.table("t")
                assert ids(table) == wanted, attempt
                assert (read_warehouse_file(attempt.store).id == first_id) == (not copy), attempt
                assert (table.uuid == first_uuid) == (not copy), attempt
                assert "relocation.json" not in [i.key for i in attempt.store.list("")], attempt
                for snapshot in table.lake.snapshots()["snapshot_id"].to_pylist():
                    table.lake.to_arrow(as_of_snapshot=snapshot)
                table.upsert([{"id": 99, "p": "y"}]) if keyed else table.append([{"id": 99, "p": "y"}])
                tier(table)
                table.open_lake().compact()
                assert ids(table) == sorted([*wanted, 99]), attempt
                assert sorted(table.lake.to_arrow()["id"].to_pylist()) == sorted([*wanted, 99]), attempt
                assert all(b"/first/" not in data for key, data in _metadata(attempt.store, table)), attempt
                outcomes[between] += 1
    if not share.is_rest:  # a sample may be of one kind alone
        return
    if copy or not keyed or lake == "iceberg":  # else one file is written, which the sample meets
        assert outcomes["moved"], outcomes  # the few calls that leave it home may all be in the sample


def _between(store: Storage, wanted: list[int]) -> str:
    """How the warehouse is after the fault: readable, or in the midst of becoming another's, which the error says."""
    table = None
    try:
        table = opened(store, 4).table("t")
        assert ids(table) == wanted
    except (TableNotFoundError, LakeMismatchError):
        return "between identities"
    try:
        tier(table)
    except WarehouseMovedError:
        return "moved"
    return "home"


def _metadata(store: Storage, table: Table) -> list[tuple[str, bytes]]:
    """What says now where files are, as far as it is text."""
    base = f"{table.refresh().lake_location}/"
    hint = f"{base}metadata/version-hint.text"
    keys = [i.key for i in store.list(base)]
    if hint in keys:
        number = int(store.read(hint))
        keys = [key for key in keys if key.endswith(f"/v{number}.metadata.json")]
    else:
        keys = [key for key in keys if "/snapshot/snapshot-" in key or "/schema/" in key]
    assert keys
    return [(key, store.read(key)) for key in keys]
