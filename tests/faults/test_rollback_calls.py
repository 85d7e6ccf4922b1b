"""A fault at every storage call of a rollback, with and without a primary key: all of it happened, or nothing."""

from __future__ import annotations

import pytest

from faults.faulty_storage import sweep
from faults.sim import sim_world
from kit.rows import ids
from streamhouse_spark import InvalidOptionError, Table, Warehouse
from streamhouse_spark.kv import change_staging
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log import record
from streamhouse_spark.log import staging as log_append
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.versioning import rollback

HOT = {"table.datalake.enabled": "false"}
VERSION = 3
OLD = list(range(8))
NEW = sorted([*range(2, 8), *range(10, 16)])


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"id": n, "third": n % 3} for n in numbers]


def new_store(*, keyed: bool, emptied: bool = False) -> Storage:
    storage = MemoryStorage(sim_world())
    key = {"primary_key": ["id"]} if keyed else {}
    warehouse = Warehouse("wh", storage=storage, world=sim_world(1))
    table = warehouse.create_table("t", "id INT NOT NULL, third INT", buckets=2, properties=HOT, **key)
    add(table, *range(4))
    add(table, *range(4, 8))
    assert table.refresh().version == VERSION
    add(table, *range(10, 16))
    if keyed:
        table.delete([0, 1])
    else:
        table.delete(where=[("id", "<", 2)])
    if emptied:
        table.overwrite(rows(*NEW))
    return storage


def add(table: Table, *numbers: int) -> None:
    (table.upsert if table.state.primary_key else table.append)(rows(*numbers))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("small", [True, False], ids=["in the record", "as objects"])
@pytest.mark.parametrize(
    ("keyed", "emptied"), [(False, False), (True, False), (False, True)], ids=["log", "keyed", "emptied"]
)
def test_all_of_it_happens_or_nothing(on_host, monkeypatch, share, keyed, emptied, small):
    if not small:
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
        monkeypatch.setattr(log_append, "INLINE_BYTES_MAX", 0)
        monkeypatch.setattr(record, "RECORD_BYTES_MAX", 300)

    def go_back(table: Table) -> None:
        table.rollback_to_version(VERSION)

    close_tablets()
    for attempt in sweep(
        new_store(keyed=keyed, emptied=emptied),
        lambda storage: go_back(on_host(storage, 3)),
        share=share,
        each_state_once=True,
    ):
        found = ids(on_host(attempt.store, 4))
        assert found in ((NEW, OLD) if attempt.raised else (OLD,)), attempt
        go_back(on_host(attempt.store, 5))
        assert ids(on_host(attempt.store, 6)) == OLD, attempt
        add(on_host(attempt.store, 7), 37)
        assert ids(on_host(attempt.store, 8)) == [*OLD, 37], f"{attempt}: the table does not go on"


class TestPlantedBugs:
    """Mistakes that the checks here and in tests/unit/table/versioning/test_rollback.py have to find."""

    def test_one_that_does_not_bring_deleted_rows_back(self, on_host, monkeypatch):
        monkeypatch.setattr(rollback, "_stage_returning_rows", lambda *_: None)
        table = on_host(new_store(keyed=False), 3)
        table.rollback_to_version(VERSION)
        assert ids(table) != OLD

    def test_one_that_undoes_what_it_has_not_seen(self, on_host, monkeypatch):
        """Without the check, rows that others append between stay beside the older version, and nobody is told."""
        storage = new_store(keyed=False)
        table, really = on_host(storage, 3), rollback._commit_rollback

        def late(*given: object) -> None:
            add(on_host(storage, 4), 77)
            really(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(rollback, "_commit_rollback", late)
        monkeypatch.setattr(rollback, "_require_unchanged", lambda *_: None)
        table.rollback_to_version(VERSION)
        assert ids(on_host(storage, 5)) != OLD

    def test_one_that_forgets_what_records_deleted(self, on_host, monkeypatch):
        """The number of rows does not add up then, so it is refused and not done by half."""
        table = on_host(new_store(keyed=False), 3)
        monkeypatch.setattr(rollback, "_find_deleted_since", lambda *_: ({}, []))
        with pytest.raises(InvalidOptionError, match="no record names"):
            table.rollback_to_version(VERSION)
        assert ids(table) == NEW
