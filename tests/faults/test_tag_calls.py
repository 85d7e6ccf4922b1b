"""A fault at every storage call of naming a version, of dropping the name, of cleaning: what it keeps is there."""

from __future__ import annotations

import functools
from contextlib import suppress

import pytest

from faults.faulty_storage import FaultyStorage, RecordedStore, clock_of, race, sweep
from faults.share import WHOLE, Share
from faults.sim import sim_world
from kit.tables import tier
from streamhouse_spark import CommitConflictError, InvalidOptionError, SnapshotExpiredError, Table, Warehouse
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.log import history
from streamhouse_spark.log import staging as log_append
from streamhouse_spark.log.gc import garbage_collection
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.maintenance import lake
from streamhouse_spark.table.versioning import tags

HOT = {"table.datalake.enabled": "false"}
DAY_MS = 24 * 3600 * 1000
OLD = list(range(8))


def opened(storage: Storage, seed: int) -> Table:
    return Warehouse("wh", storage=storage, world=sim_world(seed, clock_of(storage))).table("t")


def new_store() -> MemoryStorage:
    storage = MemoryStorage(sim_world())
    warehouse = Warehouse("wh", storage=storage, world=storage._world)
    table = warehouse.create_table("t", "id INT", buckets=2, properties=HOT)
    table.append([{"id": n} for n in OLD[:4]])
    table.append([{"id": n} for n in OLD[4:]])
    return storage


def ids(table: Table) -> list[int]:
    return sorted(table.read_version("a")["id"].to_pylist())


def nothing_inline(*_: object) -> int:
    return 0


def names(table: Table) -> list[str]:
    return [tag.name for tag in table.tags()]


@pytest.fixture(params=[True, False], ids=["in the record", "as objects"])
def _size(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(log_append, "inline_bytes_total", nothing_inline)


@pytest.mark.usefixtures("_size")
def test_a_name_is_there_and_all_that_it_keeps_or_nothing():
    for attempt in sweep(new_store(), lambda storage: opened(storage, 3).create_tag("a"), each_state_once=True):
        table = opened(attempt.store, 4)
        assert names(table) in (([], ["a"]) if attempt.raised else (["a"],)), attempt
        if not names(table):
            table.create_tag("a")
        table.truncate()
        assert ids(opened(attempt.store, 5)) == OLD, attempt


def test_a_name_is_dropped_or_not():
    start = new_store()
    opened(start, 2).create_tag("a")
    for attempt in sweep(start, lambda storage: opened(storage, 3).drop_tag("a"), each_state_once=True):
        table = opened(attempt.store, 4)
        assert names(table) in (([], ["a"]) if attempt.raised else ([],)), attempt
        if names(table):
            assert ids(table) == OLD, attempt
            table.drop_tag("a")


@pytest.mark.sampled(40)
@pytest.mark.usefixtures("_size")
def test_cleaning_that_dies_anywhere_leaves_what_a_name_keeps(share):
    start = cleanable()
    opened(start, 2).maintain()
    clock_of(start).advance(2 * DAY_MS)
    for attempt in sweep(start, lambda storage: opened(storage, 3).maintain(), share=share, each_state_once=True):
        assert ids(opened(attempt.store, 4)) == OLD, attempt
        clock_of(attempt.store).advance(2 * DAY_MS)
        opened(attempt.store, 5).maintain()
        assert ids(opened(attempt.store, 6)) == OLD, attempt


@pytest.fixture(scope="module", params=["iceberg", "paimon"])
def superseded(request) -> tuple[MemoryStorage, int]:
    """A table whose first lake snapshot was superseded long ago, and the version that reads it."""
    storage = MemoryStorage(sim_world())
    how = {"table.datalake.format": request.param}
    warehouse = Warehouse("wh", storage=storage, world=storage._world)
    table = warehouse.create_table("t", "id INT", buckets=1, properties=how)
    versions = []
    for number in OLD[:3]:
        table.append([{"id": number}])
        tier(table)
        versions.append(table.refresh().version)
    clock_of(storage).advance(2 * DAY_MS)
    return storage, versions[0]


def tag_before_each_call_of_an_expiry(made: tuple[MemoryStorage, int], share: Share) -> int:
    """Give a tag before a storage call of an expiry; return how many were given. Each has to keep its version."""
    start, version = made
    given = 0

    def tag(storage: Storage) -> None:
        with suppress(SnapshotExpiredError):
            opened(storage, 3).create_tag("a", version)

    def expire(storage: FaultyStorage) -> None:
        opened(storage, 2).lake.expire_snapshots(retain_last=1, older_than_ms=storage.inner.now_ms())

    for met in race(RecordedStore(start).copy, expire, tag, share=share):
        met.require_success(CommitConflictError)
        if names(table := opened(met.store, 4)):
            given += 1
            assert ids(table) == OLD[:1], met.op
    return given


@pytest.mark.sampled(6)
def test_a_tag_given_while_an_expiry_runs_keeps_its_snapshot_or_is_refused(superseded, share):
    assert tag_before_each_call_of_an_expiry(superseded, share) > 0


def cleanable() -> MemoryStorage:
    """Return a table with a named version, which was emptied and written to so often that its records may go."""
    return written_often(log_append.inline_bytes_total).copy()


@functools.cache
def written_often(_inline_total: object) -> RecordedStore:
    """Return the table of `cleanable`, recorded once for rows in records and once for rows as objects."""
    storage = new_store()
    table = opened(storage, 1)
    table.create_tag("a")
    table.truncate()
    for n in range(110):
        table.append([{"id": 100 + n}])
        if n % 50 == 49:
            table.truncate()
    clock_of(storage).advance(2 * DAY_MS)
    return RecordedStore(storage)


def cleaned() -> Table:
    storage = cleanable()
    for seed in range(2, 6):
        opened(storage, seed).maintain()
        clock_of(storage).advance(2 * DAY_MS)
    return opened(storage, 9)


class TestPlantedBugs:
    """Mistakes that the checks here have to find."""

    @pytest.mark.usefixtures("_size")
    def test_without_one_the_rows_are_there_and_records_went(self):
        table = cleaned()
        assert ids(table) == OLD
        assert len(list(table.storage.list(f"tables/{table.uuid}/commits/"))) < 150, (
            "no record went, so nothing is told"
        )

    @pytest.mark.usefixtures("_size")
    def test_a_cleaner_that_knows_no_tags(self, monkeypatch):
        monkeypatch.setattr(garbage_collection, "_list_tag_keys", lambda *_: set())
        with pytest.raises((SnapshotExpiredError, ObjectNotFoundError)):
            ids(cleaned())

    def test_an_expiry_without_a_claim_is_detected(self, superseded, monkeypatch):
        monkeypatch.setattr(lake, "make_expiry_claim", lambda _table: None)
        with pytest.raises(SnapshotExpiredError):
            tag_before_each_call_of_an_expiry(superseded, WHOLE)

    def test_a_tag_that_looks_at_no_claim(self, superseded, monkeypatch):
        monkeypatch.setattr(tags, "_require_not_expiring", lambda *_: None)
        monkeypatch.setattr(tags, "_require_lake_snapshot", lambda *_: None)
        with pytest.raises(SnapshotExpiredError):
            tag_before_each_call_of_an_expiry(superseded, WHOLE)

    def test_a_reader_that_looks_for_records_alone(self, monkeypatch):
        monkeypatch.setattr(history, "find_tag_of_version", lambda *_: None)
        with pytest.raises(SnapshotExpiredError):
            ids(cleaned())

    def test_a_name_for_files_that_were_marked(self, monkeypatch):
        """A cleaner that had not seen the record has them on its list."""
        monkeypatch.setattr(tags, "_require_live", lambda *_: None)
        monkeypatch.setattr(log_append, "inline_bytes_total", nothing_inline)
        storage = new_store()
        table = opened(storage, 1)
        version = table.refresh().version
        table.truncate()
        clock_of(storage).advance(2 * DAY_MS)
        cleaner, really = opened(storage, 2), garbage_collection._delete

        def late(*given: object) -> None:
            monkeypatch.setattr(garbage_collection, "_delete", really)
            opened(storage, 3).create_tag("a", version)
            really(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(garbage_collection, "_delete", late)
        cleaner.maintain()
        with pytest.raises((SnapshotExpiredError, ObjectNotFoundError, InvalidOptionError)):
            ids(opened(storage, 4))
