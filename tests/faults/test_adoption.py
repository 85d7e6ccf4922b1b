"""A fault at every storage call of an adoption: the Iceberg table keeps its rows, and can be adopted afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, Fault, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import SimClock, sim_world
from streamhouse_spark.datasource.tiering_job import tier_table
from streamhouse_spark.errors import LakeMismatchError, StreamhouseError, TableExistsError
from streamhouse_spark.kv.tablets import close_tablets
from streamhouse_spark.lake.file_catalog import FileCatalog
from streamhouse_spark.lake.offsets import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.tiering import run_tasks_locally
from streamhouse_spark.storage import Storage
from streamhouse_spark.storage_memory import MemoryStorage
from streamhouse_spark.warehouse import Warehouse

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
OLD = [{"id": i, "text": "old"} for i in range(3)]
NEW = [{"id": 10, "text": "new"}]
DAY_MS = 24 * 3600 * 1000


def opened(storage: Storage, seed: int, clock: SimClock | None = None) -> Warehouse:
    return Warehouse("wh", storage=storage, world=sim_world(seed, clock))


def prepared(*, left_behind: bool, clock: SimClock | None = None, key: Sequence[str] = ()) -> MemoryStorage:
    """An Iceberg table with rows; with ``left_behind`` one that an adoption died on, which had claimed it already."""
    storage = MemoryStorage(sim_world(0, clock))
    warehouse = opened(storage, 1, clock)
    warehouse.create_database("d")
    catalog = FileCatalog(storage, world=warehouse.world)
    made = catalog.create_table("d.t", SCHEMA, properties={"format-version": "2"})
    made.append(pa.Table.from_pylist(OLD, schema=SCHEMA))
    if left_behind:
        warehouse.adopt_table("d.t", primary_key=key)
        storage.delete("d/t/names/00000001.json")
    return storage


def copied(storage: MemoryStorage) -> MemoryStorage:
    """The other engine's names are not those of a seed, so that all attempts begin with one and the same table."""
    other = MemoryStorage(sim_world())
    other._objects = dict(storage._objects)
    return other


def ids(found: pa.Table) -> list[int]:
    return sorted(found["id"].to_pylist())


def check(storage: Storage, key: Sequence[str] = ()) -> str:
    """Whatever the attempt left: one adoption later the table is there, and takes rows."""
    warehouse = opened(storage, 3)
    catalog = FileCatalog(storage, world=warehouse.world)
    assert ids(catalog.load_table("d.t").scan().to_arrow()) == [0, 1, 2]
    try:
        warehouse.adopt_table("d.t", primary_key=key)
        found = "adopted later"
    except TableExistsError:
        found = "was adopted"
    table = warehouse.table("d.t")
    assert ids(table.to_arrow()) == [0, 1, 2] == ids(table.lake.to_arrow())
    if key:
        table.upsert([*NEW, {"id": 1, "text": "changed"}])
        assert table.lookup([0, 1])["text"].to_pylist() == ["old", "changed"]
    else:
        table.append(NEW)
    tier_table(table, run_tasks_locally(storage, table.settings, table.world))
    lake = catalog.load_table("d.t")
    assert ids(lake.scan().to_arrow()) == [0, 1, 2, 10] == ids(table.to_arrow())
    assert lake.properties[TABLE_UUID_PROPERTY] == table.uuid
    with pytest.raises(LakeMismatchError, match=r"is the lake of table d\.t"):
        warehouse.adopt_table("d.other", "d.t", primary_key=key)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_behind", "key"),
    [(False, ()), (True, ()), (False, ("id",))],
    ids=["new", "taken over", "keyed"],
)
def test_every_fault_at_every_call_of_an_adoption(own_cache, monkeypatch, left_behind, key):
    outcomes: Counter[str] = Counter()
    begin = prepared(left_behind=left_behind, key=key)

    def run(storage: Storage) -> None:
        clear_manifest_cache()
        opened(storage, 2).adopt_table("d.t", primary_key=key)

    whole = WRITES - {"create.write", "create.open"}
    rest = {"create.write", "create.open", "read", "read_ranges", "size_bytes", "list", "list_names"}
    with one_thing_at_a_time():
        sweeps = [(whole, tuple(Fault)), (rest, (Fault.ERROR_BEFORE,))]
        for methods, faults in sweeps[:1] if left_behind or key else sweeps:  # reads fail alike in all of them
            for attempt in sweep(lambda: copied(begin), run, methods=methods, faults=faults):
                try:
                    close_tablets()  # tables of all attempts have the same identity
                    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(own_cache / str(outcomes.total())))
                    found = check(attempt.store, key)
                except (AssertionError, StreamhouseError) as error:
                    raise AssertionError(f"{attempt}: {error}") from error
                outcomes[f"{type(attempt.raised).__name__}, {found}"] += 1
    print(dict(outcomes))  # noqa: T201 - figures are what a sweep is read for
    assert sum(n for name, n in outcomes.items() if name.endswith("adopted later")) > 5
    assert sum(n for name, n in outcomes.items() if name.endswith("was adopted")) > 5


def test_cleaning_after_a_dead_adoption_frees_the_lake():
    clock = SimClock()
    storage = prepared(left_behind=True, clock=clock)
    warehouse = opened(storage, 4, clock)
    for _ in range(5):
        clock.advance(2 * DAY_MS)
        warehouse.clean_dropped()
    lake = FileCatalog(storage, world=warehouse.world).load_table("d.t")
    assert TABLE_UUID_PROPERTY not in lake.properties
    assert ids(lake.scan().to_arrow()) == [0, 1, 2]
    assert check(storage) == "adopted later"


def test_an_adopter_that_slept_is_stopped():
    """It wakes up behind its claim, when another has adopted the lake."""
    from streamhouse_spark import adoption

    storage = prepared(left_behind=False)
    slow = opened(storage, 5)
    point = adoption.names.point

    def late(*arguments):
        adoption.names.point = point
        opened(storage, 6).adopt_table("d.other", "d.t")
        return point(*arguments)

    adoption.names.point = late
    try:
        slow.adopt_table("d.t")
    finally:
        adoption.names.point = point
    assert not opened(storage, 7).exists("d.t")
    assert ids(opened(storage, 7).table("d.other").to_arrow()) == [0, 1, 2]
