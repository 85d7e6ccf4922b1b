"""A fault at every storage call of dropping a partition: all of it is there, or nothing, and it goes once."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections import Counter

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, Fault, FaultyStorage, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from kit.rows import ids
from kit.tables import require_verified, tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.kv import partition_overwrite
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import drop_partition as partition_life

pytestmark = pytest.mark.sampled(9)

MON, TUE = dt.date(2026, 3, 2), dt.date(2026, 3, 3)
WHOLE = WRITES - {"create.write", "create.open"}
FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
"""Faults that differ most in effect: what a call did stays, and its process dies or goes on knowing nothing."""
REST = {"create.write", "create.open", "read", "read_ranges", "size_bytes", "list", "list_names"}


def opened(storage: Storage, seed: int) -> Table:
    clear_manifest_cache()
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table("t")


def rows(first: int, count: int, day: dt.date = MON) -> list[dict]:
    return [{"id": i, "day": day} for i in range(first, first + count)]


def named(table: Table) -> list[int]:
    """The offsets of the one bucket that the log's records name as those of dropped partitions."""
    deletions = table.refresh().dropped_rows.named
    return sorted(offset for deletion in deletions for offset in deletion.rows[0].offsets().tolist())


@pytest.mark.parametrize(
    ("is_cut", "faults", "lake"),
    [
        pytest.param(False, FEW, "iceberg", id="whole files"),
        pytest.param(True, FEW[:1], "iceberg", id="a file that is written again"),
        pytest.param(True, FEW[:1], "paimon", id="Paimon, a file that is written again"),
        pytest.param(False, tuple(Fault), "iceberg", id="whole files, all faults", marks=pytest.mark.soak),
        pytest.param(True, tuple(Fault), "iceberg", id="a file written again, all faults", marks=pytest.mark.soak),
        pytest.param(False, tuple(Fault), "paimon", id="Paimon, whole files, all faults", marks=pytest.mark.soak),
        pytest.param(True, tuple(Fault), "paimon", id="Paimon, written again, all faults", marks=pytest.mark.soak),
    ],
)
def test_a_partition_of_a_log_table_is_dropped_whole_or_not_at_all(is_cut, faults, lake, share):
    start = MemoryStorage(sim_world())
    Warehouse("wh", storage=start, world=sim_world(1)).create_table(
        "t", "id INT, day DATE", partition_by=["day"], properties={"table.datalake.format": lake}
    )
    table = opened(start, 2)
    table.append(rows(0, 4))
    if not is_cut:
        tier(table)
    table.append(rows(4, 4) + rows(8, 2, TUE))
    ends = dict(table.refresh().ends)
    if is_cut:
        table.append(rows(20, 4))
        tier(table)
    later = list(range(20, 24)) if is_cut else []
    before, after = sorted([*range(10), *later]), [8, 9, *later]

    def work(storage: Storage) -> None:
        table = opened(storage, 3)
        state = table.refresh()
        chosen = PartitionMatches.of([{"day": MON}], state.schema, state.partition_by, "t")
        partition_life._drop_from_lake(table, ends, chosen)
        assert ids(table.to_arrow()) == after

    outcomes: Counter[tuple[str, bool]] = Counter()
    with one_thing_at_a_time():
        for methods, met in ((WHOLE, faults), (REST, (Fault.ERROR_BEFORE,) if len(faults) > 1 else ())):
            for attempt in sweep(start, work, methods=methods, faults=met, share=share, each_state_once=True):
                table = opened(attempt.store, 4)
                found = ids(table.to_arrow())
                assert found in ((before, after) if attempt.raised else (after,)), attempt
                of_lake = ids(table.lake.to_arrow())
                tier(table)
                adopted = ids(table.to_arrow())
                assert adopted in (before, after), attempt
                assert adopted == after or found == before, f"{attempt}: rows came back"
                assert (adopted == after) == (of_lake == after), f"{attempt}: the round does not follow the lake"
                assert named(table) == (list(range(8)) if adopted == after else []), attempt
                require_verified(table)
                work(attempt.store)
                require_verified(opened(attempt.store, 5))
                assert named(opened(attempt.store, 5)) == list(range(8)), attempt
                outcomes[type(attempt.raised).__name__, adopted == after] += 1
    if share.is_rest:  # a sample may end in one way alone
        for how in ("Crash", "StorageError") if len(faults) > 1 else ("Crash",):
            assert outcomes[how, True], outcomes
            assert outcomes[how, False], outcomes


@pytest.mark.parametrize(
    ("is_inline", "faults"),
    [
        pytest.param(True, FEW, id="inline"),
        pytest.param(False, FEW[:1], id="objects"),
        pytest.param(True, tuple(Fault), id="inline, all faults", marks=pytest.mark.soak),
        pytest.param(False, tuple(Fault), id="objects, all faults", marks=pytest.mark.soak),
    ],
)
def test_a_partition_of_a_keyed_table_is_dropped_whole_or_not_at_all(is_inline, faults, own_cache, monkeypatch, share):
    if not is_inline:
        monkeypatch.setattr(partition_overwrite, "INLINE_BYTES_MAX", 0)
        monkeypatch.setattr(partition_overwrite, "SEGMENT_BYTES", 1)
        monkeypatch.setattr("streamhouse_spark.kv.tablet.ITEMS_PER_STEP", 2)
    numbers = itertools.count()

    def new_host(storage: Storage, seed: int) -> Table:
        close_tablets()
        os.environ["STREAMHOUSE_CACHE_DIR"] = str(own_cache / str(next(numbers)))
        return opened(storage, seed)

    start = MemoryStorage(sim_world())
    Warehouse("wh", storage=start, world=sim_world(1)).create_table(
        "t", "id INT, day DATE", primary_key=["id", "day"], partition_by=["day"], buckets=2,
        properties={"table.datalake.enabled": "false"},
    )  # fmt: skip
    new_host(start, 2).upsert(rows(0, 6) + rows(6, 2, TUE))

    def work(storage: FaultyStorage) -> None:
        table = new_host(storage, 3)
        table.drop_partition({"day": MON})
        assert ids(table.to_arrow()) == [6, 7]

    outcomes: Counter[tuple[str, bool]] = Counter()
    for attempt in sweep(start, work, faults=faults, share=share, each_state_once=True):
        table = new_host(attempt.store, 4)
        found = ids(table.to_arrow())
        assert found in ((list(range(8)), [6, 7]) if attempt.raised else ([6, 7],)), attempt
        looked_up = table.lookup(rows(0, 6), max_staleness_ms=0)["_found"].to_pylist()
        assert looked_up == [found != [6, 7]] * 6, attempt
        assert table.drop_partition({"day": MON}).rows == (0 if found == [6, 7] else 6), attempt
        assert ids(table.to_arrow()) == [6, 7]
        outcomes[type(attempt.raised).__name__, found == [6, 7]] += 1
    if share.is_rest:  # as above
        assert outcomes["Crash", True], outcomes
        assert outcomes["Crash", False], outcomes
