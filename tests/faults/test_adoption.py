"""A fault at every storage call of an adoption: the lake table keeps its rows, and can be adopted afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, Fault, FaultyStorage, RecordedStore, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import SimClock, sim_world
from interop.paimon_cases import Stock
from kit.rows import ids
from streamhouse_spark import CommitConflictError, LakeMismatchError, StreamhouseError, TableExistsError, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.maintenance.tiering import tier_table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
OLD = [{"id": i, "text": "old"} for i in range(3)]
NEW = [{"id": 10, "text": "new"}]
DAY_MS = 24 * 3600 * 1000


class Iceberg:
    """pyiceberg, which knows nothing of us."""

    def __init__(self, folder: Path) -> None:
        pass

    def make(self, storage: Storage, key: Sequence[str]) -> None:
        made = self._catalog(storage).create_table("d.t", SCHEMA, properties={"format-version": "2"})
        made.append(pa.Table.from_pylist(OLD, schema=SCHEMA))

    def append(self, storage: Storage, rows: list[dict]) -> None:
        self._catalog(storage).load_table("d.t").append(pa.Table.from_pylist(rows, schema=SCHEMA))

    def ids(self, storage: Storage) -> list[int]:
        return ids(self._catalog(storage).load_table("d.t").scan().to_arrow())

    def owner(self, storage: Storage) -> str | None:
        return self._catalog(storage).load_table("d.t").properties.get(TABLE_UUID_PROPERTY)

    def _catalog(self, storage: Storage) -> FileCatalog:
        return FileCatalog(storage, world=sim_world(9))


class Paimon:
    """pypaimon, which knows nothing of us."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stock: Stock | None = None

    def make(self, storage: Storage, key: Sequence[str]) -> None:
        stock = Stock(storage, self._folder / "made")
        options = {"primary_key": key, "bucket": "2"} if key else {}
        stock.make("d.t", SCHEMA, OLD[:2], OLD[2:], **options)

    def append(self, storage: Storage, rows: list[dict]) -> None:
        self._stock_of(storage).append("d.t", rows)

    def ids(self, storage: Storage) -> list[int]:
        return sorted(row["id"] for row in self._stock_of(storage).read("d.t"))

    def owner(self, storage: Storage) -> str | None:
        return self._stock_of(storage).options("d.t").get(TABLE_UUID_PROPERTY)

    def _stock_of(self, storage: Storage) -> Stock:
        self._stock = self._stock or Stock(storage, self._folder / "read")
        return self._stock.on(storage)


@pytest.fixture(params=[Iceberg, Paimon], ids=["iceberg", "paimon"])
def engine(request, tmp_path):
    return request.param(tmp_path)


def opened(storage: Storage, seed: int, clock: SimClock | None = None) -> Warehouse:
    return Warehouse("wh", storage=storage, world=sim_world(seed, clock))


def prepared(
    engine: Iceberg | Paimon, *, left_behind: bool, clock: SimClock | None = None, key: Sequence[str] = ()
) -> MemoryStorage:
    """A lake table with rows; with ``left_behind`` one that an adoption died on, which had claimed it already."""
    storage = MemoryStorage(sim_world(0, clock))
    warehouse = opened(storage, 1, clock)
    warehouse.create_database("d")
    engine.make(storage, key)
    if left_behind:
        warehouse.adopt_table("d.t", primary_key=key)
        storage.delete("d/t/names/00000001.json")
    return storage


def check(engine: Iceberg | Paimon, storage: Storage, key: Sequence[str] = ()) -> str:
    """Whatever the attempt left: one adoption later the table is there, and takes rows."""
    warehouse = opened(storage, 3)
    assert engine.ids(storage) == [0, 1, 2]
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
    assert engine.ids(storage) == [0, 1, 2, 10] == ids(table.to_arrow())
    assert engine.owner(storage) == table.uuid
    with pytest.raises(LakeMismatchError, match=r"is the lake of table d\.t"):
        warehouse.adopt_table("d.other", "d.t", primary_key=key)
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("engine", "left_behind", "key"),
    [
        pytest.param(Iceberg, False, (), id="iceberg, new"),
        pytest.param(Iceberg, True, (), id="iceberg, taken over"),
        pytest.param(Iceberg, False, ("id",), id="iceberg, keyed"),
        pytest.param(Paimon, False, (), id="paimon, new"),
        pytest.param(Paimon, True, (), id="paimon, taken over", marks=pytest.mark.soak),
        pytest.param(Paimon, False, ("id",), id="paimon, keyed"),
    ],
    indirect=["engine"],
)
def test_every_fault_at_every_call_of_an_adoption(engine, own_cache, monkeypatch, left_behind, key, share):
    outcomes: Counter[str] = Counter()
    begin = prepared(engine, left_behind=left_behind, key=key)

    def run(storage: Storage) -> None:
        clear_manifest_cache()
        opened(storage, 2).adopt_table("d.t", primary_key=key)

    whole = WRITES - {"create.write", "create.open"}
    rest = {"create.write", "create.open", "read", "read_ranges", "size_bytes", "list", "list_names"}
    with one_thing_at_a_time():
        sweeps = [(whole, tuple(Fault)), (rest, (Fault.ERROR_BEFORE,))]
        for methods, faults in sweeps[:1] if left_behind or key else sweeps:  # reads fail alike in all of them
            for attempt in sweep(begin, run, methods=methods, faults=faults, share=share, each_state_once=True):
                try:
                    close_tablets()  # tables of all attempts have the same identity
                    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(own_cache / str(outcomes.total())))
                    found = check(engine, attempt.store, key)
                except (AssertionError, StreamhouseError) as error:
                    raise AssertionError(f"{attempt}: {error}") from error
                outcomes[f"{type(attempt.raised).__name__}, {found}"] += 1
    print(dict(outcomes))  # noqa: T201 - figures are what a sweep is read for
    if share.is_rest:  # a sample may have one of the two alone
        assert sum(n for name, n in outcomes.items() if name.endswith("adopted later")) > 5
        assert sum(n for name, n in outcomes.items() if name.endswith("was adopted")) > 5


def test_cleaning_after_a_dead_adoption_frees_the_lake(engine):
    clock = SimClock()
    storage = prepared(engine, left_behind=True, clock=clock)
    warehouse = opened(storage, 4, clock)
    for _ in range(5):
        clock.advance(2 * DAY_MS)
        warehouse.clean_dropped()
    assert engine.owner(storage) is None
    assert engine.ids(storage) == [0, 1, 2]
    assert check(engine, storage) == "adopted later"


def test_an_adopter_that_slept_is_stopped(engine):
    """It wakes up behind its claim, when another has adopted the lake."""
    from streamhouse_spark.warehouse import adoption

    storage = prepared(engine, left_behind=False)
    slow = opened(storage, 5)
    point = adoption.names.put_name_pointer

    def late(*arguments):
        adoption.names.put_name_pointer = point
        opened(storage, 6).adopt_table("d.other", "d.t")
        return point(*arguments)

    adoption.names.put_name_pointer = late
    try:
        slow.adopt_table("d.t")
    finally:
        adoption.names.put_name_pointer = point
    assert not opened(storage, 7).exists("d.t")
    assert ids(opened(storage, 7).table("d.other").to_arrow()) == [0, 1, 2]


def _adopts_as_another(engine: Iceberg | Paimon, storage: Storage, key: Sequence[str]) -> None:
    with suppress(LakeMismatchError):  # where the first one is done
        opened(storage, 6).adopt_table("d.other", "d.t", primary_key=key)


def _appends(engine: Iceberg | Paimon, storage: Storage, key: Sequence[str]) -> None:
    engine.append(storage, [{"id": 5, "text": "theirs"}])


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "key"),
    [
        pytest.param(9, (), id="some calls"),
        pytest.param(1, (), id="all calls", marks=pytest.mark.soak),
        pytest.param(1, ("id",), id="all calls, keyed", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("rival", [_adopts_as_another, _appends])
def test_another_comes_between_any_two_calls(engine, own_cache, monkeypatch, rival, step, key):
    """Whole: another adoption of the lake, or a commit of an engine that knows nothing of us."""
    begin = prepared(engine, left_behind=False, key=key)
    outcomes: Counter[str] = Counter()
    at, is_reached = 0, True
    while is_reached:
        storage, is_reached = RecordedStore(begin).copy(), False

        def interrupt(number: int, *_: str) -> None:
            nonlocal is_reached
            if number == at and not is_reached:  # noqa: B023 - called before it changes
                is_reached = True
                rival(engine, storage, key)  # noqa: B023 - as above

        clear_manifest_cache()
        close_tablets()  # tables of all attempts have the same identity
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(own_cache / str(at)))
        with one_thing_at_a_time():
            try:
                opened(FaultyStorage(storage, interrupt), 2).adopt_table("d.t", primary_key=key)
                outcome = "adopted"
            except (CommitConflictError, LakeMismatchError) as error:
                outcome = type(error).__name__
            _require_one_table(engine, storage, key, at, 5 if rival is _appends and is_reached else None)
        outcomes[outcome] += 1
        at += step
    print(dict(outcomes))  # noqa: T201 - as above
    assert set(outcomes) >= {"adopted", "CommitConflictError"}


def _require_one_table(
    engine: Iceberg | Paimon, storage: Storage, key: Sequence[str], at: int, foreign: int | None
) -> None:
    warehouse = opened(storage, 3)
    if not warehouse.tables():
        warehouse.adopt_table("d.t", primary_key=key)
    (name,) = warehouse.tables()
    table = warehouse.table(name)
    if key:
        table.upsert(NEW)
    else:
        table.append(NEW)
    tier_table(table, run_tasks_locally(storage, table.settings, table.world))
    expected = sorted([0, 1, 2, 10, *([] if foreign is None else [foreign])])
    assert ids(table.to_arrow()) == expected == engine.ids(storage), f"at call {at}"
    assert engine.owner(storage) == table.uuid, f"at call {at}"
