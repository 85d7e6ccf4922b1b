"""A catalog of files has one winner per version, and cached metadata equals parsed metadata."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.exceptions import TableAlreadyExistsError as IcebergTableExistsError
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate

from faults.faulty_storage import FaultyStorage
from interop.lake_cases import PLAIN, lake_of, tier
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import ObjectExistsError, StorageError
from streamhouse_spark.lake.iceberg import catalog as kept
from streamhouse_spark.lake.iceberg.catalog import FLOOR_GRACE_MS, FileCatalog
from streamhouse_spark.lake.iceberg.metadata_versions import DROPPED
from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage

TABLE = ("sales", "orders")
METADATA = "lake/sales/orders/metadata"
SCHEMA = pa.schema([("id", pa.int64())])


class ManualClock:
    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def boot_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.time_ms += int(duration_ms)


class FlakyStorage(MemoryStorage):
    """Loses the acknowledgement of writes that happened, or the writes themselves."""

    lost_acks = 0
    lost_writes = 0
    unreadable = False

    def put_if_absent(self, key: str, data: Bytes) -> None:
        if self.lost_writes:
            self.lost_writes -= 1
            raise StorageError("connection refused")
        super().put_if_absent(key, data)
        if self.lost_acks:
            self.lost_acks -= 1
            raise ObjectExistsError("the client retried and met its own write")

    def read(self, key: str) -> bytes:
        if self.unreadable and ".metadata.json" in key:
            raise StorageError("503")
        return super().read(key)


def _set(table: Table, key: str, value: str) -> None:
    """One commit, without pyiceberg's retries."""
    assert table.catalog is not None
    table.catalog.commit_table(
        table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (SetPropertiesUpdate(updates={key: value}),)
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> FlakyStorage:
    return FlakyStorage(World(clock))


@pytest.fixture
def catalog(storage: FlakyStorage, clock: ManualClock) -> FileCatalog:
    catalog = FileCatalog(storage, world=World(clock))
    catalog.create_table(TABLE, SCHEMA)
    return catalog


def _version(catalog: FileCatalog) -> int:
    return int(catalog.load_table(TABLE).metadata_location.rpartition("/v")[2].split(".")[0])


def test_create_load_list_drop_and_bring_back(catalog: FileCatalog) -> None:
    assert catalog.table_exists(TABLE)
    assert catalog.list_namespaces() == [("sales",)]
    assert catalog.list_tables("sales") == [TABLE]
    assert catalog.namespace_exists("sales")
    assert not catalog.namespace_exists("other")
    with pytest.raises(IcebergTableExistsError):
        catalog.create_table(TABLE, SCHEMA)
    catalog.drop_table(TABLE)
    with pytest.raises(NoSuchTableError):
        catalog.load_table(TABLE)
    assert catalog.list_tables("sales") == []
    assert catalog.undrop_table(TABLE).schema().column_names == ["id"]


def test_a_place_stays_taken_after_purge(catalog: FileCatalog, storage: FlakyStorage) -> None:
    catalog.purge_table(TABLE)
    assert [info.key for info in storage.list("lake/")] == [f"{METADATA}/floors/{DROPPED}"]
    with pytest.raises(IcebergTableExistsError):
        catalog.create_table(TABLE, SCHEMA)


@pytest.mark.parametrize("identifier", ["one", "a.b.c", ("a", ".."), ("a", "b/c"), ("", "b")])
def test_names_cannot_leave_the_catalog(catalog: FileCatalog, identifier: str | tuple[str, ...]) -> None:
    with pytest.raises(NoSuchTableError):
        catalog.load_table(identifier)


@pytest.mark.parametrize("hint", [None, b"1", b"7", b"not a number", b"-3", b""])
def test_the_newest_version_is_found_whatever_the_hint_says(
    catalog: FileCatalog, storage: FlakyStorage, hint: bytes | None
) -> None:
    for i in range(5):
        _set(catalog.load_table(TABLE), "i", str(i))
    key = f"{METADATA}/version-hint.text"
    storage.delete(key)
    if hint is not None:
        storage.put(key, hint)
    assert _version(catalog) == 6


@pytest.mark.parametrize(("hint", "requests_max"), [(b"2000", 4), (b"1999", 5), (None, 25), (b"1", 25), (b"300", 25)])
def test_two_thousand_versions_cost_few_requests(
    catalog: FileCatalog, storage: FlakyStorage, clock: ManualClock, hint: bytes | None, requests_max: int
) -> None:
    first = storage.read(f"{METADATA}/v1.metadata.json")
    for number in range(2, 2001):
        storage.put(f"{METADATA}/v{number}.metadata.json", first)
    key = f"{METADATA}/version-hint.text"
    storage.delete(key)
    if hint is not None:
        storage.put(key, hint)
    counting = FaultyStorage(storage)
    assert _version(FileCatalog(counting, world=World(clock))) == 2000
    assert len(counting.trace) <= requests_max


def test_a_stale_handle_is_rebased_when_its_requirements_hold(catalog: FileCatalog) -> None:
    stale = catalog.load_table(TABLE)
    _set(catalog.load_table(TABLE), "a", "1")
    _set(stale, "b", "2")
    assert catalog.load_table(TABLE).properties.items() >= {("a", "1"), ("b", "2")}


def test_another_table_at_the_same_place_is_refused(storage: FlakyStorage, clock: ManualClock) -> None:
    catalog = FileCatalog(storage, world=World(clock))
    old = catalog.create_table(TABLE, SCHEMA)
    for info in storage.list("lake/"):
        storage.delete(info.key)
    catalog.create_table(TABLE, SCHEMA)
    with pytest.raises(CommitFailedException, match="was replaced"):
        _set(old, "a", "1")


def test_exists_for_ones_own_write_is_a_success(catalog: FileCatalog, storage: FlakyStorage) -> None:
    table = catalog.load_table(TABLE)
    storage.lost_acks = 1
    _set(table, "a", "1")
    assert catalog.load_table(TABLE).properties["a"] == "1"
    assert _version(catalog) == 2


def test_exists_for_anothers_write_is_a_conflict(catalog: FileCatalog, storage: FlakyStorage) -> None:
    table = catalog.load_table(TABLE)
    put = storage.put_if_absent
    storage.put_if_absent = lambda key, data: put(key, data.replace(b'"a":"1"', b'"a":"2"'))  # type: ignore[method-assign]
    storage.lost_acks = 1
    with pytest.raises(CommitFailedException, match="another writer"):
        _set(table, "a", "1")


def test_a_lost_write_is_repeated(catalog: FileCatalog, storage: FlakyStorage) -> None:
    table = catalog.load_table(TABLE)
    storage.lost_writes = 2
    _set(table, "a", "1")
    assert _version(catalog) == 2


def test_an_outcome_that_nobody_can_tell_is_said_so(catalog: FileCatalog, storage: FlakyStorage) -> None:
    table = catalog.load_table(TABLE)
    storage.lost_writes = 99
    with pytest.raises(CommitStateUnknownException):
        _set(table, "a", "1")


def test_equal_commits_of_two_writers_have_one_winner(catalog: FileCatalog, storage: FlakyStorage) -> None:
    """Same change, same millisecond: only the attempt's uuid tells the two apart."""
    table = catalog.load_table(TABLE)
    put = storage.put_if_absent
    raced = False

    def race(key: str, data: Bytes) -> None:
        nonlocal raced
        if not raced and key.endswith("v2.metadata.json"):
            raced = True
            _set(catalog.load_table(TABLE), "a", "1")
        put(key, data)

    storage.put_if_absent = race  # type: ignore[method-assign]
    with pytest.raises(CommitFailedException, match="another writer"):
        _set(table, "a", "1")


def test_versions_are_deleted_a_day_after_the_floor_above_them(
    catalog: FileCatalog, storage: FlakyStorage, clock: ManualClock
) -> None:
    for i in range(3):
        _set(catalog.load_table(TABLE), "i", str(i))
    assert catalog.prune_versions(TABLE) == []
    clock.time_ms += FLOOR_GRACE_MS - 1
    assert catalog.prune_versions(TABLE) == []
    clock.time_ms += 1
    assert len(catalog.prune_versions(TABLE, dry_run=True)) == 3
    assert catalog.prune_versions(TABLE) == [f"{METADATA}/v{n}.metadata.json" for n in (1, 2, 3)]
    assert _version(catalog) == 4
    storage.delete(f"{METADATA}/version-hint.text")
    assert _version(catalog) == 4
    storage.put(f"{METADATA}/version-hint.text", b"2")
    assert _version(catalog) == 4


def test_a_writer_that_slept_over_the_cleaning_does_not_win_a_freed_slot(
    catalog: FileCatalog, storage: FlakyStorage, clock: ManualClock
) -> None:
    table = catalog.load_table(TABLE)
    put = storage.put_if_absent
    slept = False

    def sleep_then_put(key: str, data: Bytes) -> None:
        nonlocal slept
        if not slept and key.endswith("v2.metadata.json"):
            slept = True
            for i in range(3):
                _set(catalog.load_table(TABLE), "i", str(i))
            catalog.prune_versions(TABLE)
            clock.time_ms += FLOOR_GRACE_MS
            catalog.prune_versions(TABLE)
        put(key, data)

    storage.put_if_absent = sleep_then_put  # type: ignore[method-assign]
    with pytest.raises(CommitFailedException, match="another writer"):
        _set(table, "lost", "1")
    newest = catalog.load_table(TABLE)
    assert newest.properties["i"] == "2"
    assert "lost" not in newest.properties


def test_pyiceberg_reads_the_table_by_path(tmp_path: object) -> None:
    catalog = FileCatalog(LocalStorage(str(tmp_path)))
    table = catalog.create_table(TABLE, SCHEMA)
    for i in range(3):
        table.append(pa.table({"id": pa.array([i], pa.int64())}))
    alone = StaticTable.from_metadata(f"{tmp_path}/lake/sales/orders")
    assert sorted(alone.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_a_hint_that_was_left_behind_is_mended(catalog: FileCatalog, storage: FlakyStorage) -> None:
    """By a writer that died behind its commit: engines that open a table by its path read what the hint says."""
    key = f"{METADATA}/version-hint.text"
    _set(catalog.load_table(TABLE), "a", "1")
    storage.put(key, b"1")
    catalog.load_table(TABLE)
    assert storage.read(key) == b"1", "reading writes nothing"
    catalog.repair_hint(TABLE)
    assert storage.read(key) == b"2"
    storage.put(key, b"1")
    catalog.repair_hint(TABLE)
    assert storage.read(key) == b"1", "there was no look since"


def _rows(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + 3), "name": ["x"] * 3}, schema=PLAIN.arrow)


def test_what_is_remembered_is_what_its_text_says(store, world):
    lake = lake_of(store, world=world)
    for i in range(12):
        tier(lake, _rows(3 * i))
    lake.compact()
    lake.expire(keep_last=3, keep_ms=-60_000)
    tier(lake, _rows(36))
    keys = [info.key for info in store.list("lake/") if info.key.endswith(".metadata.json")]
    found = [store.read(key) for key in keys]
    remembered = [data for data in found if kept._parsed_metadata.get(data) is not None]
    assert len(remembered) == 8
    for data in remembered:
        assert kept._parsed_metadata.get(data) == TableMetadataUtil.parse_raw(data.decode())
        assert type(kept.parse_metadata(data).snapshots) is list


def test_older_metadata_stays_as_it_was(store, world):
    lake = lake_of(store, world=world)
    tier(lake, _rows(0))
    before = lake.binding.load().metadata
    text = before.model_dump_json()
    for i in range(1, 4):
        tier(lake, _rows(3 * i))
    lake.expire(keep_last=1, keep_ms=-60_000)
    assert before.model_dump_json() == text
    assert len(lake.binding.load().metadata.snapshots) == 1


def test_documents_are_told_apart_by_every_byte(store, world):
    lake = lake_of(store, world=world)
    tier(lake, _rows(0))
    (key,) = (info.key for info in store.list("lake/") if info.key.endswith("v2.metadata.json"))
    data = store.read(key)
    other = data.replace(b'"streamhouse.table-uuid":"0', b'"streamhouse.table-uuid":"9')
    assert other != data
    assert kept.parse_metadata(other).properties != kept.parse_metadata(data).properties
