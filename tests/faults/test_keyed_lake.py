"""A fault at every storage call of a keyed round and of a keyed compaction: the lake is right, before or after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, Fault, FaultyStorage, RecordedStore, sweep
from faults.sequential import one_thing_at_a_time
from faults.share import Share
from faults.sim import sim_world
from interop.keyed_cases import KeyedTable, live_deletes
from streamhouse_spark import CommitStateUnknownError, StreamhouseError
from streamhouse_spark.config.table_properties import LakeFormat
from streamhouse_spark.lake.iceberg import compaction as iceberg_compact_keyed
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

SCHEMA = TableSchema.of("id bigint not null, name string, n bigint")


@pytest.fixture(params=["iceberg", "paimon"])
def lake_format(request) -> LakeFormat:
    return request.param


def opened(lake_format: LakeFormat, storage: Storage, seed: int, rows: dict | None = None) -> KeyedTable:
    table = KeyedTable(storage, sim_world(seed), SCHEMA, bucket_key="id", num_buckets=2, lake_format=lake_format)
    table.rows = dict(rows or {})
    return table


def prepared(lake_format: LakeFormat) -> tuple[MemoryStorage, dict, dict]:
    """A table with two rounds in the lake and changes that wait; the rows in the lake, and all."""
    storage = MemoryStorage(sim_world())
    table = opened(lake_format, storage, 1)
    table.change([(i, f"n{i}", i) for i in range(10)])
    table.tier()
    table.change([(1, "b", 1), (11, "c", 1)], [(2,)])
    table.tier()
    held = dict(table.rows)
    table.change([(1, "d", 2), (12, "e", 2)], [(3,), (4,)])
    return storage, held, dict(table.rows)


def swept(
    lake_format: LakeFormat, work: Callable[[KeyedTable], object], check: Callable[[Storage], None], share: Share
) -> Counter[str]:
    """Every fault at calls that write objects; at others those that differ in effect."""
    outcomes: Counter[str] = Counter()
    past = prepared(lake_format)[0]
    whole = WRITES - {"create.write", "create.open"}
    rest = {"create.write", "create.open", "read", "read_ranges", "size_bytes", "list", "list_names"}

    def run(storage: Storage) -> None:
        clear_manifest_cache()
        work(opened(lake_format, storage, 2))

    with one_thing_at_a_time():
        for methods, faults in ((whole, tuple(Fault)), (rest, (Fault.ERROR_BEFORE,))):
            for attempt in sweep(past, run, methods=methods, faults=faults, share=share, each_state_once=True):
                try:
                    check(attempt.store)
                except (AssertionError, StreamhouseError) as error:
                    raise AssertionError(f"{attempt}: {error}") from error
                outcomes[type(attempt.raised).__name__] += 1
    print(f"{lake_format}: {outcomes.total()} faults: {dict(outcomes)}")  # noqa: T201 - figures are what a sweep is for
    return outcomes


def sorted_rows(rows: dict) -> list[tuple]:
    return sorted(rows.values(), key=repr)


def in_lake(lake_format: LakeFormat, storage: Storage, seed: int) -> list[tuple]:
    return opened(lake_format, storage, seed).lake_rows()


@pytest.mark.sampled(18)
def test_a_failed_keyed_round_leaves_the_lake_before_or_after_it(lake_format, share):
    _, held, rows = prepared(lake_format)

    def check(store: Storage) -> None:
        assert in_lake(lake_format, store, 3) in (sorted_rows(held), sorted_rows(rows))
        again = opened(lake_format, store, 4, rows)
        again.tier()
        assert in_lake(lake_format, store, 5) == sorted_rows(rows)
        assert again.lake().newest().offsets == again.log.refresh().ends == again.state.lake.offsets

    outcomes = swept(lake_format, lambda table: table.tier(), check, share)
    if share.is_rest:  # a sample may have one of the two alone
        assert outcomes["Crash"]
        assert outcomes["NoneType"]


@pytest.mark.sampled(18)
def test_a_failed_keyed_compaction_keeps_the_rows_of_the_lake(lake_format, monkeypatch, share):
    monkeypatch.setattr(iceberg_compact_keyed, "SMALL_FILES_MIN", 2)
    _, held, rows = prepared(lake_format)

    def check(store: Storage) -> None:
        assert in_lake(lake_format, store, 3) == sorted_rows(held)
        again = opened(lake_format, store, 4, rows)
        again.tier()
        assert in_lake(lake_format, store, 5) == sorted_rows(rows)
        again.lake().compact()
        if lake_format == "paimon":
            assert again.unmerged_rows() == sorted_rows(rows)
        else:
            assert live_deletes(again.lake()) == {}
        assert in_lake(lake_format, store, 6) == sorted_rows(rows)

    outcomes = swept(lake_format, lambda table: table.lake().compact(), check, share)
    if share.is_rest:  # a sample may have one of the two alone
        assert outcomes["Crash"]
        assert outcomes["NoneType"]


@pytest.mark.sampled(18)
def test_a_keyed_round_survives_a_rival_at_every_second_call(lake_format, monkeypatch, share):
    """Another process tiers, compacts and expires meanwhile, at every second call."""
    monkeypatch.setattr(iceberg_compact_keyed, "SMALL_FILES_MIN", 2)
    calls = 0
    past, _, rows = prepared(lake_format)
    with one_thing_at_a_time():
        while True:
            if calls // 2 not in share:
                calls += 2
                continue
            storage = RecordedStore(past).copy()
            rival = opened(lake_format, storage, 7, rows)

            def interrupt(
                number: int, _method: str, _key: str, rival: KeyedTable = rival, at: int = calls
            ) -> Fault | None:
                if number == at:
                    rival.tier()
                    rival.lake().compact()
                    rival.lake().expire(keep_last=1, keep_ms=-60_000)
                return None

            faulty = FaultyStorage(storage, interrupt)
            try:
                opened(lake_format, faulty, 2).tier()
            except CommitStateUnknownError:  # expiry made the number of its snapshot free again
                assert lake_format == "paimon"
                opened(lake_format, storage, 3).tier()
            assert in_lake(lake_format, storage, 8) == sorted_rows(rows), f"a rival at call {calls}"
            if len(faulty.trace) <= calls:
                break
            calls += 2
    assert calls > 20
