"""The contract of tiering and of lake maintenance: rounds, crashes, races, compaction and expiry."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from contract.house import House, in_order, rows
from streamhouse_spark import CommitConflictError, LakeMismatchError, StorageError, StreamhouseError, Table
from streamhouse_spark.lake.formats import open_lake_table
from streamhouse_spark.lake.types import COMMIT_USER

pytestmark = pytest.mark.always

PLAIN = "id BIGINT, name STRING"


def plain(first: int, num_rows: int) -> list[dict]:
    return [{"id": i, "name": f"n{i}"} for i in range(first, first + num_rows)]


@pytest.fixture
def table(house) -> Table:
    return house.table("t", PLAIN, buckets=2, properties={"bucket.key": "id"})


def offsets(table: Table) -> int:
    newest = table.lake.newest()
    return sum(newest.offsets.values()) if newest else 0


@pytest.mark.also_on_s3
def test_each_round_is_a_snapshot_with_its_offsets(house, table):
    table.append(plain(0, 3))
    house.tier(table)
    assert offsets(table) == 3
    table.append(plain(3, 3))
    house.tier(table)
    assert offsets(table) == 6
    house.agree(table, plain(0, 6))
    text = json.dumps(table.lake.snapshots().to_pylist(), default=str)
    assert text.count(COMMIT_USER) >= 2
    assert sum(table.refresh().lake.offsets.values()) == 6


@pytest.mark.also_on_s3
def test_the_lake_has_only_the_latest_rows_if_all_change(house):
    table = house.table("t", "id BIGINT, n INT", primary_key=["id"])
    for n in (1, 2):
        table.upsert([{"id": i, "n": n} for i in range(3)])
        house.tier(table)
    assert offsets(table) == table.refresh().buckets[0].end == 9
    house.agree(table, [{"id": i, "n": 2} for i in range(3)])


@pytest.mark.also_on_s3
def test_other_engines_read_no_deleted_row(house):
    table = house.table("t", "id BIGINT, n INT", primary_key=["id"], buckets=2)
    table.upsert([{"id": i, "n": i} for i in range(20)])
    house.tier(table)
    table.delete(list(range(0, 20, 2)))
    house.tier(table)
    house.agree(table, [{"id": i, "n": i} for i in range(1, 20, 2)])


def test_a_partition_made_between_rounds_is_tiered(house):
    table = house.table("t", "id BIGINT, d STRING", partition_by=["d"], buckets=2, properties={"bucket.key": "id"})
    table.append([{"id": i, "d": "ab"[i % 2]} for i in range(10)])
    house.tier(table)
    table.append([{"id": i, "d": "abc"[i % 3]} for i in range(10, 20)])
    house.tier(table)
    wanted = [{"id": i, "d": "ab"[i % 2]} for i in range(10)] + [{"id": i, "d": "abc"[i % 3]} for i in range(10, 20)]
    house.agree(table, wanted)
    assert offsets(table) == 20


class _KilledError(BaseException):
    """Nothing catches it, as nothing catches a SIGKILL."""


def killed_after(house: House, table: Table) -> Callable[[Any], Any]:
    def run(tasks: Any) -> Any:
        house.tasks(table)(tasks)
        raise _KilledError

    return run


@pytest.mark.also_on_s3
def test_no_row_is_lost_if_a_tierer_is_killed_before_its_commit(house, table):
    table.append(plain(0, 5))
    house.tier(table)
    table.append(plain(5, 5))
    table.refresh()
    with pytest.raises(_KilledError):
        house.job(table).run(killed_after(house, table))
    again = house.other_process().table("t")
    assert rows(again.to_arrow()) == in_order(plain(0, 10))
    house.tier(again)
    house.agree(again, plain(0, 10))
    # They may be of a round under way: nothing takes them before the grace.
    assert again.open_lake().remove_orphans() == []


def test_a_tierer_killed_before_its_record_is_completed_by_the_next(house, table, monkeypatch):
    table.append(plain(0, 5))

    def killed(*_args, **_options):
        raise _KilledError

    with monkeypatch.context() as patched:
        patched.setattr(type(table.log), "commit", killed)
        with pytest.raises(_KilledError):
            house.job(table).run(house.tasks(table))
    again = house.other_process().table("t")
    assert again.state.lake is None
    assert rows(again.to_arrow()) == in_order(plain(0, 5))
    assert house.tier(again).rows == 0
    assert sum(again.refresh().lake.offsets.values()) == 5
    house.agree(again, plain(0, 5))


@pytest.mark.also_on_s3
def test_two_services_tier_each_row_once(house, table):
    for number in range(4):
        table.append(plain(10 * number, 10))
        others = [house.other_process().table("t") for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(house.tier, others))
        assert sum(report.rows for report in reports) == 10
    house.agree(table, plain(0, 40))


def test_a_round_whose_changes_cancel_out_moves_the_offsets(house):
    table = house.table("t", "id BIGINT, n INT", primary_key=["id"])
    table.upsert([{"id": 1, "n": 1}])
    house.tier(table)
    table.upsert([{"id": 2, "n": 1}])
    table.delete([2])
    house.tier(table)
    assert offsets(table) == 3
    assert house.tier(table).snapshots == ()
    house.agree(table, [{"id": 1, "n": 1}])


def test_a_round_succeeds_after_its_tasks_failed_twice(house, table):
    table.append(plain(0, 5))
    failures = [StorageError("first"), StorageError("second")]

    def run(tasks):
        if failures:
            house.tasks(table)(tasks)
            raise failures.pop(0)
        return house.tasks(table)(tasks)

    for _ in range(2):
        with pytest.raises(StorageError):
            house.job(table).run(run)
        assert rows(table.to_arrow()) == in_order(plain(0, 5))
    house.job(table).run(run)
    house.agree(table, plain(0, 5))


def test_a_long_downtime_is_caught_up_in_steps(house, table):
    for number in range(6):
        table.append(plain(1000 * number, 1000))
    report = house.tier(table, bytes_per_bucket_max=1)
    assert len(report.snapshots) > 1
    house.agree(table, [row for number in range(6) for row in plain(1000 * number, 1000)])


def test_rows_outlive_their_time_to_live_until_they_are_tiered(house):
    table = house.table("t", PLAIN, properties={"table.log.ttl": "1s"})
    table.append(plain(0, 5))
    house.age()
    assert not table.maintain().trimmed_to
    assert rows(table.to_arrow()) == in_order(plain(0, 5))
    house.tier(table)
    assert table.maintain().trimmed_to == {0: 5}
    house.agree(table, plain(0, 5))


@pytest.mark.also_on_s3
def test_small_files_are_compacted_into_few(house):
    table = house.table("t", PLAIN, properties={"table.datalake.auto-compaction": "true"})
    for number in range(8):
        table.append(plain(number, 1))
        house.tier(table)
    before = table.lake.files().num_rows
    table.maintain()
    assert table.lake.files().num_rows < before == 8
    house.agree(table, plain(0, 8))


def test_a_round_during_a_compaction_loses_no_row(house):
    table = house.table("t", PLAIN)
    for number in range(8):
        table.append(plain(number, 1))
        house.tier(table)
    table.append(plain(8, 1))
    with ThreadPoolExecutor(2) as pool:
        compacting = pool.submit(house.other_process().table("t").open_lake().compact)
        tiering = pool.submit(house.tier, house.other_process().table("t"))
        tiering.result()
        try:
            compacting.result()
        except CommitConflictError:
            table.open_lake().compact()
    table.refresh()
    house.agree(table, plain(0, 9))
    assert offsets(table) == 9


@pytest.mark.also_on_s3
def test_expiry_keeps_the_snapshot_that_tiering_continues_from(house, table):
    for number in range(5):
        table.append(plain(number, 1))
        house.tier(table)
    house.age()
    expired = table.open_lake().expire(keep_last=1, keep_ms=0)
    assert len(expired.snapshots) == 4
    table.append(plain(5, 1))
    house.tier(table)
    assert offsets(table) == 6
    house.agree(table, plain(0, 6))


def test_a_lake_of_another_table_is_rejected(house, table):
    table.append(plain(0, 1))
    house.tier(table)
    other = house.table("u", "x DOUBLE")
    state = other.state
    wrong = replace(state, lake_location=table.state.lake_location)
    lake = open_lake_table(other.storage, other.settings, wrong, other.world)
    with pytest.raises(LakeMismatchError):
        lake.create_or_evolve()
    house.agree(table, plain(0, 1))


def test_a_lake_that_is_enabled_later_gets_all_rows(house):
    table = house.table("t", PLAIN, properties={"table.datalake.enabled": "false"})
    table.append(plain(0, 5))
    with pytest.raises(StreamhouseError, match="has no lake"):
        house.tier(table)
    table.alter_properties({"table.datalake.enabled": "true", "table.datalake.freshness": "30s"})
    table.append(plain(5, 1))
    house.tier(table)
    house.agree(table, plain(0, 6))
