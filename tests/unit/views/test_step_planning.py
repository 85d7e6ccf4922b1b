"""How far the steps of a refresh go: shares of rows, versions of tables, and ends amid a commit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.foreign_iceberg import NAME, adopted, appended, rewritten, row
from kit.tables import tier
from streamhouse_spark.core.warehouse_layout import checkpoint_key, commit_key
from streamhouse_spark.log.checkpoint import list_checkpoints
from streamhouse_spark.log.history import find_latest_state_within, state_at
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.table.refresh_commit import RefreshStep, full_refresh_reason, source_version
from streamhouse_spark.views.local_reads import max_num_rows
from streamhouse_spark.views.step_planning import allocate_ends, allocate_rows, choose_step, covers

LEFT = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50), min_size=1)
HOT = {"table.datalake.enabled": "false"}


# -- numbers ----------------------------------------------------------------------------------------------------------


@given(LEFT, st.integers(0, 250))
def test_sources_give_all_of_their_rows_one_after_the_other(left, most):
    found = allocate_rows(left, most)
    assert found.keys() == left.keys()
    assert sum(found.values()) == min(most, sum(left.values()))
    assert all(0 <= found[name] <= left[name] for name in left)
    parts = [name for name in left if 0 < found[name] < left[name]]
    assert len(parts) <= 1
    for name in left:
        if found[name] < left[name]:  # those with more rows wait
            assert all(found[other] == 0 for other in left if left[other] > left[name])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5), st.integers(0, 120))
def test_buckets_give_their_shares_and_all_together_what_is_asked_for(buckets, most):
    starts = {bucket: start for bucket, (start, _) in enumerate(buckets)}
    ends = {bucket: start + more for bucket, (start, more) in enumerate(buckets)}
    found = allocate_ends(starts, ends, most)
    assert all(starts[bucket] <= found[bucket] <= ends[bucket] for bucket in ends)
    assert sum(found.values()) - sum(starts.values()) == min(most, sum(more for _, more in buckets))


def version_with(uuid="u", **ends):
    return SourceVersion("s", uuid, 1, None, {int(bucket[1:]): end for bucket, end in ends.items()})


def test_a_goal_is_reached_with_all_rows_of_it():
    goal = Lineage((version_with(b0=3, b1=2),))
    assert covers(Lineage((version_with(b0=3, b1=4),)), goal)
    assert not covers(Lineage((version_with(b0=9, b1=1),)), goal)
    assert not covers(Lineage((version_with(b0=9),)), goal)
    assert covers(Lineage((version_with("another", b0=0),)), goal), "the rows of then are gone with their table"
    assert not covers(Lineage(()), goal)


# -- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("num_cleaned", [0, 30, 90])
def test_the_newest_state_that_is_within(wh, num_cleaned):
    """Beside all states one by one; of those whose records are gone the next one that is kept takes the place."""
    table = wh.create_table("d.t", "id BIGINT", buckets=1, properties=HOT)
    for number in range(130):
        table.append([{"id": number}] * (1 + number % 3))
    now = table.refresh()
    states = [state_at(table.log, table.storage, version) for version in range(1, now.version + 1)]
    for version in range(1, num_cleaned + 1):
        table.storage.delete(commit_key(table.uuid, version))
    for number in list_checkpoints(table.storage, table.uuid):
        if number <= num_cleaned:
            table.storage.delete(checkpoint_key(table.uuid, number))
    kept = [state for state in states if state.version > (-(-num_cleaned // 40) * 40 or 1) - 1]
    for most in (0, 1, 2, 7, 100, 101, 200, now.num_rows - 1):
        found, beyond = find_latest_state_within(table.log, table.storage, now, lambda s, most=most: s.num_rows <= most)
        expected = [state for state in kept if state.num_rows <= most]
        assert (found.version if found else None) == (expected[-1].version if expected else None)
        assert beyond.version == (expected[-1].version + 1 if expected else kept[0].version)
        if found is not None:
            assert (found.ends, found.attempt) == (expected[-1].ends, expected[-1].attempt)


# -- steps ------------------------------------------------------------------------------------------------------------


def to_newest(sources, old=None, number=1):
    states = {name: source.refresh() for name, source in sources.items()}
    new = tuple(source_version(name, state) for name, state in states.items())
    return RefreshStep(number, old, Lineage(new, full_refresh_reason(old, sources, states)))


def walked(step_rows, *tables, old=None):
    """Take steps until nothing is left; return their lineages. Each takes rows that none before it took."""
    sources, found, most = {table.name: table for table in tables}, [], 1000
    while most:
        most -= 1
        chosen = choose_step(to_newest(sources, old, len(found) + 1), sources, step_rows)
        step = chosen.step
        before = sum(sum(source.ends.values()) for source in old.sources) if old is not None else -1
        assert sum(sum(source.ends.values()) for source in step.new.sources) > before, "a step without rows"
        found.append(step.new)
        if not chosen.rows_left:
            return found
        old = step.new
    raise AssertionError("the steps never end")


def sizes(lineages):
    totals = [sum(sum(source.ends.values()) for source in lineage.sources) for lineage in lineages]
    return [later - earlier for earlier, later in zip([0, *totals], totals, strict=False)]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
class TestVersions:
    def test_without_a_number_there_is_one_step(self, wh):
        table = wh.create_table("d.t", "id BIGINT", properties=HOT)
        table.append([{"id": 1}] * 9)
        step = to_newest({table.name: table})
        assert choose_step(step, {table.name: table}, None).step is step
        assert choose_step(step, {table.name: table}, 9).step is step, "all rows are as many as one step takes"

    def test_a_log_table_goes_from_commit_to_commit_and_through_large_ones(self, wh):
        table = wh.create_table("d.t", "id BIGINT", buckets=1, properties=HOT)
        for size in (3, 3, 3, 20, 1):
            table.append([{"id": 1}] * size)
        found = walked(7, table)
        assert sizes(found) == [6, 3, 7, 7, 7]
        assert [lineage.sources[0].is_cut for lineage in found] == [True, True, True, True, False]
        assert {lineage.sources[0].version for lineage in found} == {table.state.version}

    def test_a_table_with_a_key_goes_from_commit_to_commit(self, wh):
        table = wh.create_table("d.t", "id BIGINT, n INT", primary_key=["id"], buckets=2, properties=HOT)
        for first in (0, 3, 6, 40, 60):
            table.upsert([{"id": first + number, "n": 1} for number in range(30 if first == 6 else 3)])
        found = walked(7, table)
        assert sizes(found) == [6, 30, 6]
        assert not any(source.is_cut for lineage in found for source in lineage.sources)
        assert len({lineage.sources[0].version for lineage in found}) == 3

    def test_few_rows_of_a_table_that_changed_often_are_read_at_once(self, wh):
        table = wh.create_table("d.t", "id BIGINT, n INT", primary_key=["id"], buckets=1, properties=HOT)
        for n in range(20):
            table.upsert([{"id": 1, "n": n}])
        table.maintain()
        state = table.refresh()
        assert sum(state.ends.values()) > 7
        found = walked(max_num_rows(state), table)
        assert len(found) == 1

    def test_small_tables_are_whole_before_large_ones(self, wh):
        large = wh.create_table("d.large", "id BIGINT", buckets=1, properties=HOT)
        small = wh.create_table("d.small", "id BIGINT, n INT", primary_key=["id"], buckets=1, properties=HOT)
        for first in range(0, 40, 4):
            large.append([{"id": 1}] * 4)
            small.upsert([{"id": first % 8, "n": first}])
        found = walked(8, large, small)
        ends = [{source.name: sum(source.ends.values()) for source in lineage.sources} for lineage in found]
        at = [step["d.small"] for step in ends]
        assert at[0] == at[-1] or ends[at.index(at[-1]) - 1]["d.large"] == 0
        assert [step["d.large"] for step in ends][-1] == 40
        assert max(sizes(found)) <= 8 + 2, "a key that changes is two changes"

    def test_rows_that_were_trimmed_are_taken_in_steps_too(self, wh, clock):
        """Their records and older lake snapshots are gone: only offsets name them."""
        table = wh.create_table("d.t", "id BIGINT", buckets=2, properties={"table.log.ttl": "1h"})
        for first in range(0, 60, 6):
            table.append([{"id": first + number} for number in range(6)])
        tier(table)
        clock.advance(72 * 3_600_000)
        for _ in range(2):
            table.maintain()
            clock.advance(72 * 3_600_000)
        assert sum(log.start for log in table.refresh().buckets.values()) == 60
        found = walked(25, table)
        assert sum(sizes(found)) == 60
        assert len(found) == 3

    def test_changes_of_a_log_that_was_trimmed_are_one_step(self, wh, clock):
        table = wh.create_table(
            "d.t", "id BIGINT, n INT", primary_key=["id"], buckets=1, properties={"table.log.ttl": "1h"}
        )
        for n in range(20):
            table.upsert([{"id": n, "n": n}])
        tier(table)
        clock.advance(72 * 3_600_000)
        table.maintain()
        assert table.refresh().buckets[0].start == 20
        for n in range(4):
            table.upsert([{"id": 100 + n, "n": n}])
        found = walked(3, table)
        assert sizes(found)[0] >= 20, "the oldest version that is read and leads on"
        assert sum(sizes(found)) == 24

    def test_a_log_that_lost_rows_is_not_named_by_offsets(self, wh):
        table = wh.create_table("d.t", "id BIGINT", buckets=1, properties=HOT)
        for first in range(0, 20, 2):
            table.append([{"id": first}, {"id": first + 1}])
        table.delete(where=[("id", "=", 3)])
        table.append([{"id": 20}, {"id": 21}])
        found = walked(5, table)
        assert not any(source.is_cut for lineage in found for source in lineage.sources)
        assert sizes(found) == [22], "from before the deletion no changes lead on"

    def test_a_view_with_rows_goes_back_behind_none_of_them(self, wh):
        table = wh.create_table("d.t", "id BIGINT", buckets=1, properties=HOT)
        for first in range(0, 20, 2):
            table.append([{"id": first}, {"id": first + 1}])
        old = to_newest({table.name: table}).new
        table.add_columns("n INT")
        for first in range(0, 20, 2):
            table.append([{"id": first}, {"id": first + 1}])
        found = walked(6, table, old=old)
        assert "had its columns changed" in (found[0].whole_because or "")
        assert sizes(found)[0] == 26
        assert [lineage.whole_because for lineage in found[1:]] == [None, None, None]

    def test_adopted_rows_are_one_step(self, store, world):
        table = adopted(store, world, range(8))
        for number in range(10, 16):
            table.append([row(number)])
        found = walked(2, table)
        assert not any(source.is_cut for lineage in found for source in lineage.sources)
        assert sum(sizes(found)) == 6

    def test_a_table_that_was_emptied_begins_behind(self, wh):
        table = wh.create_table("d.t", "id BIGINT", buckets=1, properties=HOT)
        table.append([{"id": 1}] * 10)
        old = to_newest({table.name: table}).new
        table.truncate()
        for _ in range(5):
            table.append([{"id": 1}] * 2)
        found = walked(4, table, old=old)
        assert "truncated" in (found[0].whole_because or "")
        assert [sum(lineage.sources[0].ends.values()) for lineage in found] == [14, 18, 20]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("waits", ["a bucket", "a large table", "a table with a key"])
def test_what_comes_meanwhile_keeps_nothing_from_the_goal(wh, waits):
    """Of a source that grows faster than steps are taken, no row counts before all that were there are taken."""
    key = {"primary_key": ["id"]} if waits == "a table with a key" else {"properties": {**HOT, "bucket.key": "id"}}
    busy = wh.create_table("d.busy", "id BIGINT NOT NULL, n INT", buckets=2, **key)
    calm = wh.create_table("d.calm", "id BIGINT", buckets=1, properties=HOT)
    add = busy.upsert if key.get("primary_key") else busy.append
    add([{"id": number, "n": 0} for number in range(8)])
    if waits == "a large table":
        calm.append([{"id": 1}] * 12)
    sources = {busy.name: busy, calm.name: calm}
    goal = to_newest(sources).new
    old = None
    for number in range(1, 12):
        step = choose_step(to_newest(sources, old, number), sources, 4, goal).step
        old = step.new
        if covers(old, goal):
            break
        add([{"id": 3, "n": number}] if key.get("primary_key") else [{"id": 3, "n": number}] * 50)
    assert old is not None
    assert covers(old, goal)
    assert number <= 6


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("engine", [appended, rewritten], ids=["appended", "rewrote"])
def test_rows_of_another_engine_have_no_offsets(wh, store, world, engine):
    """A version below offsets would lack them, or could not be read."""
    wh.create_database("sales")
    table = wh.create_table(NAME, "id BIGINT, region STRING, n INT", buckets=1)
    for number in range(6):
        table.append([row(number)])
    tier(table)
    assert any(lineage.sources[0].is_cut for lineage in walked(2, table))
    given = [[row(100)]] if engine is appended else []
    engine(store, world, *given)
    table.append([row(9)])
    tier(table)
    assert not any(source.is_cut for lineage in walked(2, table) for source in lineage.sources)
