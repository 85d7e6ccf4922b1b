"""Whose a slot is: told rightly in every way that a put can go, and by everything that takes slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from pypaimon.snapshot.snapshot import Snapshot

from faults.faulty_storage import Crash, Fault, FaultyStorage, sweep
from faults.sim import sim_world
from faults.slot_model import check_all_ways, check_chain
from streamhouse_spark import StorageError, StreamhouseError
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.paimon.schema import paimon_schema
from streamhouse_spark.lake.paimon.snapshots import SnapshotManager, commit_of
from streamhouse_spark.lake.paimon.table_binding import PaimonTableBinding
from streamhouse_spark.lake.snapshot_properties import COMMIT_PROPERTY
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import COMMIT_USER
from streamhouse_spark.log.bootstrap import put_first_record
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.low_watermark import read_low_watermark, write_low_watermark
from streamhouse_spark.log.record import Record, read_attempt
from streamhouse_spark.log.state import fold
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.warehouse.creation import make_create_action

PATH = TablePath("sales", "orders")
UUID = "0" * 32
LAKE = ("sales", "orders")
PAIMON = {"table.datalake.format": "paimon"}
CREATE = make_create_action(PATH, "id BIGINT", primary_key=(), partition_by=(), buckets=1, properties=PAIMON)


def test_every_way_in_which_taking_a_slot_can_go():
    assert check_all_ways() > 1000


@pytest.mark.parametrize("seed", range(100))
def test_a_chain_has_each_item_where_its_writer_was_told(seed):
    check_chain(seed)


@dataclass(frozen=True)
class Taker:
    """Something that takes slots. ``take`` lets ``who``, mine or the rival's, have the slot, and tells whether it has;
    ``owner`` reads who has it.
    """

    take: Callable[[Storage, str], bool]
    owner: Callable[[Storage], str | None]
    prepare: Callable[[Storage], object] = lambda _: None
    has_rivals: bool = True


def _uuid(who: str) -> str:
    return {"mine": "a", "rivals": "b"}[who] * 32


def _who(uuid: str | None) -> str | None:
    return None if uuid is None else {"a": "mine", "b": "rivals"}[uuid[0]]


def _take_version(storage: Storage, who: str) -> bool:
    catalog = FileCatalog(storage, world=sim_world(len(who)))
    table = catalog.load_table(LAKE)
    if "who" in table.properties:
        return table.properties["who"] == who
    try:
        catalog.commit_table(
            table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (SetPropertiesUpdate(updates={"who": who}),)
        )
    except CommitFailedException:
        return False
    except CommitStateUnknownException as error:
        raise StorageError(str(error)) from error
    return True


def _created(storage: Storage) -> None:
    import pyarrow as pa

    FileCatalog(storage, world=sim_world()).create_table(LAKE, pa.schema([("id", pa.int64())]))


def _snapshot(who: str) -> Snapshot:
    return Snapshot(
        version=3, id=1, schema_id=0, base_manifest_list="m1", delta_manifest_list="m2", total_record_count=0,
        delta_record_count=0, commit_user=COMMIT_USER, commit_identifier=1, commit_kind="APPEND", time_millis=1,
        properties={COMMIT_PROPERTY: _uuid(who)},
    )  # fmt: skip


def _snapshot_owner(storage: Storage) -> str | None:
    found = SnapshotManager(storage, "lake/sales/orders").find(1)
    return _who(commit_of(found)) if found else None


def _first_record(who: str) -> Record:
    return Record(1, UUID, _uuid(who), 1, (CREATE,))


def _place(storage: Storage) -> PaimonTableBinding:
    return PaimonTableBinding(storage, LakeTableSpec.of(fold(None, _first_record("mine"))), world=sim_world())


def _put_schema(storage: Storage, who: str) -> bool:
    place = _place(storage)
    made = paimon_schema(place.spec, 1)
    made.options["who"] = who
    place.put_schema(made)
    return _schema_owner(storage) == who


def _schema_owner(storage: Storage) -> str | None:
    inner = storage.inner if isinstance(storage, FaultyStorage) else storage  # the look is the next one's
    table = _place(inner).find()
    return table.schema.options["who"] if table else None


def _put_first(storage: Storage, who: str) -> bool:
    put_first_record(storage, _first_record(who))
    return True


def _floor_owner(storage: Storage) -> str | None:
    watermark = read_low_watermark(storage, UUID, 1)
    return None if watermark is None else {50: "mine", 60: "rivals"}[watermark.number]


def _dropped(storage: Storage) -> str | None:
    return "mine" if FileCatalog(storage, world=sim_world()).find_dropped_owner(LAKE) is not None else None


def _drop(storage: Storage, _who: str) -> bool:
    try:
        FileCatalog(storage, world=sim_world()).drop_table(LAKE)
    except CommitStateUnknownException as error:
        raise StorageError(str(error)) from error
    return True


NO_POINTER = names.NamePointer(0, None)
NO_DATABASE = names.DatabasePointer("sales", 0, exists=False)
TAKERS = {
    "name": Taker(
        lambda storage, who: names.put_name_pointer(storage, PATH, NO_POINTER, _uuid(who), sim_world(len(who))),
        lambda storage: _who(names.resolve(storage, PATH).uuid),
    ),
    "database": Taker(
        lambda storage, who: names.put_database_pointer(
            storage, NO_DATABASE, sim_world(len(who)), exists=True, comment=who
        ),
        lambda storage: names.resolve_database(storage, "sales").comment,
    ),
    "floor": Taker(
        lambda storage, who: write_low_watermark(storage, UUID, 1, {"mine": 50, "rivals": 60}[who]),
        _floor_owner,
    ),
    "first record": Taker(_put_first, lambda storage: _who(read_attempt(storage, UUID, 1)), has_rivals=False),
    "version of an Iceberg table": Taker(
        _take_version,
        lambda storage: FileCatalog(storage, world=sim_world()).load_table(LAKE).properties.get("who"),
        _created,
    ),
    "dropped Iceberg table": Taker(_drop, _dropped, _created, has_rivals=False),
    "snapshot of a Paimon table": Taker(
        lambda storage, who: SnapshotManager(storage, "lake/sales/orders").put(_snapshot(who)), _snapshot_owner
    ),
    "schema of a Paimon table": Taker(_put_schema, _schema_owner),
}
"""Records of a log and relocations have sweeps of their own: test_every_call.py, test_relocation_calls.py."""


def _prepared(taker: Taker) -> MemoryStorage:
    store = MemoryStorage(sim_world())
    taker.prepare(store)
    return store


@pytest.mark.parametrize("name", TAKERS)
def test_each_taker_is_told_the_truth_at_every_fault(name):
    taker = TAKERS[name]
    told: list[bool] = []
    for attempt in sweep(lambda: _prepared(taker), lambda storage: told.append(taker.take(storage, "mine"))):
        store = attempt.store
        if attempt.raised is None:
            assert told[-1], attempt
            assert taker.owner(store) == "mine", attempt
        elif not (taker.owner(store) == "mine" or isinstance(attempt.raised, Crash)):
            assert isinstance(attempt.raised, StorageError), attempt
        if taker.owner(store) is None:
            assert taker.take(store, "mine"), attempt
            assert taker.owner(store) == "mine", attempt


@pytest.mark.parametrize("fault", [None, *Fault])
@pytest.mark.parametrize("name", [name for name, taker in TAKERS.items() if taker.has_rivals])
def test_each_taker_is_told_that_a_rival_was_faster(name, fault):
    taker = TAKERS[name]
    store = _prepared(taker)

    def plan(_number: int, method: str, _key: str) -> Fault | None:
        if method != "put_if_absent" or taker.owner(store) is not None:
            return None
        assert taker.take(store, "rivals")
        return fault

    try:
        assert not taker.take(FaultyStorage(store, plan), "mine")
    except Crash:
        assert fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
    assert taker.owner(store) == "rivals"


@pytest.mark.parametrize("name", TAKERS)
def test_no_taker_believes_in_an_object_that_may_not_stay(name):
    """Visible, after an answer that was an error, on a disk that failed to sync."""
    taker = TAKERS[name]
    store = _prepared(taker)

    def not_on_the_disk(key: str) -> None:
        raise StorageError(f"{key}: check the disk")

    store.ensure_durable = not_on_the_disk  # type: ignore[method-assign]
    plan = lambda _, method, __: Fault.LOST_ACK if method == "put_if_absent" else None  # noqa: E731
    with pytest.raises(StreamhouseError):
        taker.take(FaultyStorage(store, plan), "mine")
    assert taker.owner(store) == "mine"
