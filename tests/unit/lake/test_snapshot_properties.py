"""A clock that ran ahead for a round, and tags that are made while snapshots expire: neither costs a reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.lake_cases import PLAIN, lake_of, tier
from kit.lake_rows import lake_rows
from streamhouse_spark import CommitConflictError, SnapshotExpiredError
from streamhouse_spark.lake.iceberg import expiry
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.snapshot_properties import (
    effective_times_ms,
    latest_possible_times_ms,
    next_snapshot_time_ms,
    writer_time_ms,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS


@pytest.fixture(params=["iceberg", "paimon"])
def lake(request, memory, world):
    return lake_of(memory, world=world, lake_format=request.param)


def rows(number: int):
    return PLAIN.arrow.empty_table().from_pylist([{"id": number, "name": f"n{number}"}], schema=PLAIN.arrow)


@pytest.fixture
def made(lake, clock):
    """Six rounds an hour apart, of which the third has a clock that is a year ahead: number → its true time."""
    times = {}
    for number in range(6):
        clock.advance(HOUR_MS)
        times[number] = clock.now_ms()
        ahead = YEAR_MS if number == 2 else 0
        clock.jump(ahead)
        tier(lake, rows(number))
        clock.jump(-ahead)
    return times


def num_rows(lake, snapshot) -> int:
    return lake_rows(lake, lake.plan_read(snapshot_id=snapshot.id)).num_rows


def test_a_time_behind_the_round_finds_what_was_current_then(lake, made):
    for number, time_ms in made.items():
        if number != 2:  # of which is known that it was made before the next one
            assert num_rows(lake, lake.snapshot_as_of(time_ms)) == number + 1
    assert num_rows(lake, lake.snapshot_as_of(made[2])) == 2
    assert num_rows(lake, lake.snapshot_as_of(made[3] - 1)) == 2
    with pytest.raises(SnapshotExpiredError, match=f"the oldest retained one is from {made[0]} ms"):
        lake.snapshot_as_of(made[0] - 1)


def test_times_never_go_back_for_other_engines(lake, made):
    if isinstance(lake, IcebergLake):
        found = [snapshot.timestamp_ms for snapshot in lake.binding.find().metadata.snapshots]
    else:
        found = [lake.binding.snapshots.find(n).time_millis for n in lake.binding.snapshots.ids()]
    assert found == sorted(found)
    assert found[-1] >= made[2] + YEAR_MS


def test_snapshots_behind_the_round_expire_by_their_age(lake, clock, made):
    assert lake.expire(keep_last=1, keep_ms=DAY_MS).snapshots == ()
    clock.advance(2 * DAY_MS)
    before = lake.expire(keep_last=1, keep_ms=DAY_MS, dry_run=True)
    found = lake.expire(keep_last=1, keep_ms=DAY_MS)
    assert len(found.snapshots) == 5
    assert found == before
    assert num_rows(lake, lake.newest()) == 6


def test_nothing_expires_early_because_a_clock_ran_behind(lake, clock):
    for number, behind in enumerate((0, 0, YEAR_MS, 0)):
        clock.advance(HOUR_MS)
        clock.jump(-behind)
        tier(lake, rows(number))
        clock.jump(behind)
    assert lake.expire(keep_last=1, keep_ms=DAY_MS).snapshots == ()
    clock.advance(2 * DAY_MS)
    assert len(lake.expire(keep_last=1, keep_ms=DAY_MS).snapshots) == 3


def test_the_newest_from_the_future_keeps_until_something_corrects_it(lake, clock):
    tier(lake, rows(0))
    clock.jump(YEAR_MS)
    tier(lake, rows(1))
    clock.jump(-YEAR_MS)
    clock.advance(2 * DAY_MS)
    assert len(lake.expire(keep_last=1, keep_ms=DAY_MS).snapshots) == 1


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(0, 100))
def test_times_are_in_order(own, now_ms):
    latest, aged = latest_possible_times_ms(own), effective_times_ms(own, now_ms)
    assert latest == sorted(latest)
    assert all(found <= mine for found, mine in zip(latest, own, strict=True))
    past = [time_ms for time_ms in aged if time_ms <= now_ms]
    assert past == sorted(past)
    assert all(found >= mine for found, mine in zip(aged, own, strict=True) if mine <= now_ms)


def test_a_corrected_time_keeps_the_one_of_the_clock():
    assert next_snapshot_time_ms(5, 4) == (5, {})
    time_ms, beside = next_snapshot_time_ms(5, 9)
    assert (
        time_ms,
        writer_time_ms(time_ms, beside),
        writer_time_ms(9, {}),
        writer_time_ms(9, {"streamhouse-time-ms": "-"}),
    ) == (9, 5, 9, 9)


# -- references -------------------------------------------------------------------------------------------------------


@pytest.fixture
def iceberg(memory, world):
    lake = lake_of(memory, world=world, lake_format="iceberg")
    for number in range(4):
        tier(lake, rows(number))
    return lake


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_reference_that_is_made_while_snapshots_expire_stays(iceberg, monkeypatch, kind):
    """Dropping a snapshot drops what names it."""
    table, known = iceberg.binding.find(), expiry.remove_snapshots
    oldest = table.metadata.snapshots[0].snapshot_id

    def behind_a_reference(catalog, planned, snapshot_ids):
        monkeypatch.undo()
        manage = table.manage_snapshots()
        make = manage.create_tag if kind == "tag" else manage.create_branch
        make(oldest, "audit").commit()
        return known(catalog, planned, snapshot_ids)

    monkeypatch.setattr(expiry, "remove_snapshots", behind_a_reference)
    with pytest.raises(CommitConflictError, match="changed during the expiry of snapshots"):
        iceberg.expire(keep_last=1, keep_ms=0)
    assert num_rows(iceberg, iceberg.snapshot_by_name("audit")) == 1
    assert len(iceberg.expire(keep_last=1, keep_ms=0).snapshots) == 2
    assert num_rows(iceberg, iceberg.snapshot_by_name("audit")) == 1
