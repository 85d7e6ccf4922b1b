"""Lakes that other engines changed, readers that were overtaken, and places: what the error advises is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import CorruptDataError, LakeRolledBackError, OffsetRange
from streamhouse_spark.core.warehouse_layout import checkpoints_prefix, commit_key
from streamhouse_spark.lake.types import COMMIT_USER
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.segments.scan import plan_range
from streamhouse_spark.read.read_snapshot import require_recorded
from unit.advice.advice_place import Advice, Case, Place, each_lake, follow

pytestmark = pytest.mark.usefixtures("own_cache")


def roll_back(place: Place) -> Callable[[], object]:
    """Tier a second snapshot, and roll back to the first as another engine does; returns what undoes it."""
    first = place.table().lake.newest().id
    tier(place.table())
    second = place.table().lake.newest().id
    if place.lake == "iceberg":
        iceberg = place.table().open_lake().binding.load()
        iceberg.manage_snapshots().rollback_to_snapshot(first).commit()
        return lambda: iceberg.refresh().manage_snapshots().set_current_snapshot(second).commit()
    folder = f"{place.location}/snapshot/"
    keys = [f"{folder}snapshot-{n}" for n in range(first + 1, second + 1)]
    gone = {key: place.memory.read(key) for key in [*keys, f"{place.location}/tag/tag-{COMMIT_USER}"]}
    for key in gone:
        place.memory.delete(key)
    place.memory.put(f"{folder}LATEST", str(first).encode())
    return lambda: [place.memory.put(key, data) for key, data in gone.items()]


def a_lake_that_was_rolled_back_and_is_built_anew(place: Place) -> Case:
    roll_back(place)
    yield lambda: tier(place.table())
    place.table().retier()


def a_lake_that_was_rolled_back_and_is_rolled_forward(place: Place) -> Case:
    undo = roll_back(place)
    yield lambda: tier(place.table())
    undo()
    tier(place.table())
    assert ids(place.table().lake.to_arrow()) == list(range(20))


def a_snapshot_that_is_not_the_recorded_one(place: Place) -> Case:
    """Paimon gives the numbers of snapshots that were rolled back to others."""
    roll_back(place)
    state = place.table().refresh()
    assert state.lake is not None
    yield lambda: require_recorded(state, state.lake, place.table().lake.newest())
    with pytest.raises(LakeRolledBackError):
        tier(place.table())
    place.table().retier()


def a_lake_table_that_is_not_there(place: Place) -> Case:
    """To tier it says more: it holds what is recorded no longer."""
    place.delete_lake()
    yield lambda: place.table().open_lake().write_context()
    with pytest.raises(CorruptDataError, match="streamhouse retier"):
        tier(place.table())
    place.table().retier()


def a_consumer_that_does_not_say_where_it_is(place: Place) -> Case:
    key = f"{place.location}/consumer/consumer-x"
    place.memory.put(key, b"{}")
    yield place.table().lake.expire_snapshots
    place.memory.put(key, b'{"nextSnapshot": 1}')
    place.table().lake.expire_snapshots()
    place.memory.delete(key)


def a_tag_that_is_not_there(place: Place) -> Case:
    newest = place.table().lake.newest()
    yield lambda: place.table().lake.to_arrow(as_of_snapshot=newest.id + 1)
    assert ids(place.table().lake.to_arrow(as_of_snapshot=newest.id)) == list(range(10))


def following_a_table_that_is_truncated(place: Place) -> Case:
    batches = place.table().tail(start="earliest")
    assert sum(next(batches).num_rows for _ in range(2)) == 20
    place.table().truncate()
    place.table().append([{"id": 30}])
    yield lambda: next(batches)
    assert ids(next(iter(place.table().tail(start="earliest")))) == [30]


def a_commit_that_is_no_longer_known(place: Place) -> Case:
    table = place.table()
    table.log.checkpoint(table.refresh())
    whole = place.memory.read(key := commit_key(place.uuid, 2))
    place.memory.delete(key)  # as cleaning does
    yield lambda: state_at(table.log, place.memory, 2)
    commits = place.warehouse().view("t$commits").to_arrow()["commit"].to_pylist()
    assert state_at(table.log, place.memory, max(commits)).version == max(commits)
    assert place.table().lake.newest() is not None
    place.memory.put(key, whole)
    assert list(place.memory.list(checkpoints_prefix(place.uuid)))


def rows_that_were_trimmed_before_they_were_asked_for(place: Place) -> Case:
    table = place.table()
    table.log.commit(lambda *_: [Trim({0: 5})])
    table.log.refresh()
    yield lambda: plan_range(table.state, 0, OffsetRange(0, 10))
    assert ids(table.to_arrow()) == list(range(20)), "the table itself reads them from the lake"


ADVICE: dict[Callable[[Place], Case], Advice] = {
    a_lake_that_was_rolled_back_and_is_built_anew: Advice("LAKE_ROLLED_BACK", "retier", "(streamhouse retier)"),
    a_lake_that_was_rolled_back_and_is_rolled_forward: Advice("LAKE_ROLLED_BACK", "roll", "forward to it"),
    a_snapshot_that_is_not_the_recorded_one: Advice(
        "SNAPSHOT_EXPIRED", "tier the table", "tier the table for details", ("paimon",)
    ),
    a_lake_table_that_is_not_there: Advice("LAKE_MISMATCH", "tier it", "or never tiered; tier it"),
    a_consumer_that_does_not_say_where_it_is: Advice(
        "CORRUPT_DATA", "delete it", "or delete it if the consumer is no longer needed", ("paimon",)
    ),
    a_tag_that_is_not_there: Advice("SNAPSHOT_EXPIRED", "choose a retained snapshot", "choose a retained snapshot"),
    following_a_table_that_is_truncated: Advice(
        "OFFSETS_TRIMMED", "from 'earliest'", "rows that had been read were removed; …"
    ),
    a_commit_that_is_no_longer_known: Advice("SNAPSHOT_EXPIRED", "choose a later commit", "choose a later commit"),
    rows_that_were_trimmed_before_they_were_asked_for: Advice(
        "OFFSETS_TRIMMED", "read the table itself", "read the table itself"
    ),
}


@pytest.mark.parametrize(("case", "lake"), each_lake(ADVICE))
def test_what_it_says_works(case, lake, memory, clock):
    follow(case, ADVICE[case], Place(memory, clock, lake))
