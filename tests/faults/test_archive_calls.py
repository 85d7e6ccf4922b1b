"""A fault at every storage call of an archive's upkeep: no change is lost or told twice, and no file that is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from faults.faulty_storage import sweep
from faults.sim import SimClock, sim_world
from streamhouse_spark import CorruptDataError, Table, Warehouse
from streamhouse_spark.core.warehouse_layout import table_prefix
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.archive import maintenance
from streamhouse_spark.log.archive.pages import ArchiveObjectKeys
from streamhouse_spark.log.gc import garbage_collection, retention
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.maintenance import log as log_maintenance
from streamhouse_spark.table.system_views import open_view

HOUR_MS = 3_600_000
KEEPING = {"table.datalake.enabled": "false", "table.log.ttl": "1h", "table.changelog.retention": "90 d"}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(maintenance, "PAGES_TO_JOIN", 2)


def put(table: Table, *numbers: int, n: int = 0) -> None:
    table.upsert([{"id": number, "n": n} for number in numbers])


def new_store() -> Storage:
    """A table with a page of its archive, changes that are in no page, and some that may be trimmed."""
    close_tablets()
    clock = SimClock()
    storage = MemoryStorage(sim_world(0, clock))
    table = Warehouse("wh", storage=storage, world=sim_world(1, clock)).create_table(
        "t", "id INT NOT NULL, n INT", primary_key=["id"], buckets=2, properties=KEEPING
    )
    put(table, *range(4))
    table.maintain()
    clock.advance(2 * HOUR_MS)
    put(table, 2, 3, 4, n=1)
    table.delete([0])
    clock.advance(2 * HOUR_MS)
    return storage


FEED = sorted(
    [(0, 0, "delete"), (4, 1, "insert")]
    + [(n, 0, "insert") for n in range(4)]
    + [(n, old, kind) for n in (2, 3) for old, kind in ((0, "update_before"), (1, "update_after"))]
)


def feed(table: Table) -> list[tuple[Any, ...]]:
    rows = open_view(table, "changelog").to_arrow().to_pylist()
    return sorted((row["id"], row["n"], row["_change_type"]) for row in rows)


def missing(table: Table) -> set[str]:
    stored = {info.key for info in table.storage.list(table_prefix(table.uuid))}
    return ArchiveObjectKeys(table.storage)(table.refresh()) - stored


@pytest.mark.sampled(160)
def test_no_change_is_lost_or_told_twice(on_host, share):
    close_tablets()
    for attempt in sweep(
        new_store(), lambda storage: on_host(storage, 3).maintain(), share=share, each_state_once=True
    ):
        table = on_host(attempt.store, 4)
        assert feed(table) == FEED, attempt
        on_host(attempt.store, 5).maintain()
        table = on_host(attempt.store, 6)
        assert feed(table) == FEED, attempt
        assert not missing(table), attempt
        assert [page.level for page in table.state.archive.pages] == [1], attempt
        assert all(not log.segments for log in table.state.buckets.values()), f"{attempt}: the log is not trimmed"
        put(table, 9)
        assert feed(on_host(attempt.store, 7)) == sorted([*FEED, (9, 0, "insert")]), attempt


class TestPlantedBugs:
    """Mistakes that the checks here have to find."""

    def test_trimming_that_does_not_wait_for_the_archive(self, on_host, monkeypatch):
        monkeypatch.setattr(
            retention, "find_usable_archive", lambda _state: SimpleNamespace(end=lambda _bucket: 1 << 40)
        )
        monkeypatch.setattr(log_maintenance, "update_archive", lambda *_: 0)
        storage = new_store()
        on_host(storage, 3).maintain()
        assert feed(on_host(storage, 4)) != FEED

    def test_cleaning_that_does_not_know_of_pages(self, on_host, monkeypatch):
        monkeypatch.setattr(garbage_collection, "ArchiveObjectKeys", lambda _storage: lambda _state: set())
        storage = new_store()
        table = on_host(storage, 3)
        table.maintain()
        for _ in range(3):
            storage._world.clock.advance(25 * HOUR_MS)  # type: ignore[attr-defined]
            table.maintain()
        with pytest.raises(CorruptDataError, match=r"a page of the change archive .* is missing"):
            missing(table)

    def test_two_rounds_of_which_neither_sees_the_other(self, on_host, monkeypatch):
        """Without the check the second sets an archive without the page of the first, and keeps no longer what it took
        the place of.
        """
        storage, really = new_store(), maintenance._commit

        def late(log: Any, store: Any, state: Any, archive: Any, uuids: Any, began_ms: int) -> bool:
            monkeypatch.setattr(maintenance, "_commit", really)
            other = on_host(storage, 9)
            put(other, 50)
            storage._world.clock.advance(2 * HOUR_MS)  # type: ignore[attr-defined]
            other.maintain()
            log.commit(lambda _state, _ms: (maintenance.SetArchive(archive),))
            return True

        monkeypatch.setattr(maintenance, "_commit", late)
        on_host(storage, 3).maintain()
        assert feed(on_host(storage, 4)) != sorted([*FEED, (50, 0, "insert")])


def test_the_slower_of_two_archive_rounds_changes_nothing(on_host, monkeypatch):
    """The one that is slower changes nothing."""
    storage, really = new_store(), maintenance._commit

    def late(*given: Any) -> bool:
        monkeypatch.setattr(maintenance, "_commit", really)
        other = on_host(storage, 9)
        put(other, 50)
        storage._world.clock.advance(2 * HOUR_MS)  # type: ignore[attr-defined]
        other.maintain()
        return really(*given)

    monkeypatch.setattr(maintenance, "_commit", late)
    on_host(storage, 3).maintain()
    assert feed(on_host(storage, 4)) == sorted([*FEED, (50, 0, "insert")])
