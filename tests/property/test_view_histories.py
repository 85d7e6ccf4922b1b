"""Views through random histories of their sources, without a JVM; `make view-histories HISTORIES=2000` runs more."""

from __future__ import annotations

from contextlib import ExitStack
from random import Random
from unittest import mock

import numpy as np
import pyarrow.compute as pc
import pytest

from faults.sequential import one_thing_at_a_time
from streamhouse_spark.core.lazy_dataclass import replace
from streamhouse_spark.kv import upsert_commit
from streamhouse_spark.log import commit_validation as outcome
from streamhouse_spark.log.transactions import Lineage
from streamhouse_spark.table import refresh_commit
from streamhouse_spark.views import local_reads, refresh, step_execution, step_planning, temp_views
from view_histories import tables
from view_histories.grammar import Query
from view_histories.history import DifferenceError, Figures, History, typed, typed_commit
from view_histories.house import House

pytestmark = pytest.mark.paimon

COUNTS = Query(
    "SELECT r.cust AS c0, count(*) AS c1, sum(r.day) AS c2 FROM {k} r GROUP BY r.cust",
    {"c0": "int", "c1": "int", "c2": "int"},
)
LEAST = Query(
    "SELECT r.note AS c0, min(r.cust) AS c1, max(r.day) AS c2, count(*) AS c3 FROM {k} r GROUP BY r.note",
    {"c0": "text", "c1": "int", "c2": "int", "c3": "int"},
)
BY_KEY = Query(
    "SELECT a.id AS c0, b.note AS c1 FROM {k} a LEFT JOIN {k} b ON a.cust = b.id", {"c0": "int", "c1": "text"}
)
BAG = Query("SELECT r.note AS c0 FROM {k} r WHERE r.cust > 0", {"c0": "text"})
LOG = Query(
    "SELECT r.cust AS c0, count(*) AS c1, count(r.qty) AS c2 FROM {o} r GROUP BY r.cust",
    {"c0": "int", "c1": "int", "c2": "int"},
)


@pytest.fixture(autouse=True)
def cache(own_cache):
    """No other test's tablets."""


def histories(seeds, **given) -> Figures:
    total = Figures()
    for seed in seeds:
        history = History(House(seed), **given)
        history.run()
        total.add(history.figures)
    return total


def test_views_are_what_they_say_they_are():
    total = histories(range(2))
    assert total.checks["over the versions that are named"] > 12
    assert total.checks["over the newest versions"] > 6


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 40))])
def test_a_lake_amid_the_rows_of_a_log_is_read_as_far_as_it_goes(seed):
    """Rounds are capped in bytes, and the service ends between two of them: its lake is no state of the table."""
    rng, history = Random(seed), History(House(seed), query=LEAST)
    partly = 0
    with one_thing_at_a_time(), history.house.open(), mock.patch.object(refresh, "commit_step", typed_commit):
        history._begin(rng)
        for _ in range(6):
            for source in history._sources:
                for _ in range(2):
                    history._deed(source, rng, {tables.write: 3, tables.delete: 1})
                if source.has_lake:
                    tables.tier_partly(source.table)
                    state = source.table.refresh()
                    partly += any(0 < state.lake_offset(bucket) < end for bucket, end in state.ends.items())
            for view in history._views:
                history._refresh(view, rng)
    assert partly or not any(source.has_lake for source in history._sources)


@pytest.mark.long
def test_histories_meet_every_kind_of_step():
    total = histories(range(100, 160))
    assert total.refreshes.keys() > {"by changes", "whole", "crashed", "failed", "unchanged"}
    assert {name.partition(",")[0] for name in total.faults} >= {
        "crash before", "crash after", "error before", "lost ack", "own exists"
    }  # fmt: skip
    assert total.deeds.keys() >= {
        "write", "write_part", "delete", "empty", "overwrite", "drop_partition", "roll_back", "make_again", "tier_rows",
        "trim", "change_columns",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("query", [COUNTS, LEAST, BY_KEY, BAG, LOG], ids=["counts", "least", "by key", "bag", "log"])
def test_without_a_planted_bug_none_is_found(query):
    assert histories(range(1000, 1006), query=query).checks["over the versions that are named"] > 60


# -- planted bugs -----------------------------------------------------------------------------------------------------


def a_lost_retraction():
    """What went counts as if it had come."""
    real = local_reads.LocalChanges.net

    def all_came(self, columns):
        return real(local_reads.LocalChanges(self.rows, np.abs(self.weights)), columns)

    return mock.patch.object(local_reads.LocalChanges, "net", all_came)


def a_doubled_batch():
    """The changes before the last refresh count again."""
    real = refresh_commit.last_refresh

    def earlier(state):
        number, lineage = real(state)
        if lineage is None or number < 2:
            return number, lineage
        sources = tuple(
            type(s)(s.name, s.uuid, s.version - 1, None, {bucket: max(end - 1, 0) for bucket, end in s.ends.items()})
            for s in lineage.sources
        )
        return number, type(lineage)(sources)

    return mock.patch.object(refresh_commit, "last_refresh", earlier)


def a_group_that_is_not_computed_again():
    return mock.patch.object(step_execution.StepExecution, "_recompute_groups", lambda self, *_: self._no_changes())


def a_group_that_should_vanish():
    def without_gone(view, step, rows, gone):
        stay = pc.invert(gone)
        return refresh_commit.commit_step(view, step, typed(rows, view).filter(stay), gone.filter(stay))

    return mock.patch("view_histories.history.typed_commit", without_gone)


def rows_and_versions_are_two_commits():
    real = refresh_commit.commit_step

    def torn(view, step, rows, gone):
        deleted = np.asarray(gone.to_numpy(zero_copy_only=False), np.bool_)
        with mock.patch.object(upsert_commit, "require_writable"), mock.patch.object(outcome, "require_writable"):
            refresh_commit.PrimaryKeyTable(view).change(rows, deleted)
        return real(view, step, rows.slice(0, 0), gone.slice(0, 0))

    return mock.patch.object(refresh_commit, "commit_step", torn)


def the_slower_refresh_counts_too():
    real = refresh_commit.commit_step

    def anyway(view, step, rows, gone):
        number = refresh_commit.last_refresh(view.refresh())[0] + 1
        return real(view, refresh_commit.RefreshStep(number, step.old, step.new), rows, gone)

    return mock.patch.object(refresh_commit, "commit_step", anyway)


def a_source_that_went_on_is_looked_up():
    """Rows that are looked up are not brought back to the version that the refresh reads."""
    return mock.patch.object(local_reads, "rewind_rows", lambda rows, *_: rows)


def equal_rows_begin_at_one():
    return mock.patch.object(step_execution, "count_equal_rows", lambda _, keys: np.zeros(len(keys), np.int64))


def lost_rows_are_overlooked():
    """Of a table without a key, rows that were deleted, and tables that were emptied."""
    return mock.patch.object(refresh_commit, "_describe_action", return_value=None)


def another_table_of_the_name_is_overlooked():
    real = refresh_commit._source_refresh_reason

    def overlooked(source, then, now):
        found = real(source, then, now)
        return None if found is not None and "recreated" in found else found

    return mock.patch.object(refresh_commit, "_source_refresh_reason", overlooked)


def a_step_that_skips_a_version():
    """The changes up to the end of a step begin a row too late."""
    real = step_planning.choose_step

    def skips(step, *given):
        chosen = real(step, *given)
        if step.old is None or step.new.whole_because is not None:
            return chosen
        later = {source.name: source.ends for source in chosen.step.new.sources}
        sources = tuple(
            replace(s, ends={bucket: min(end + 1, later[s.name][bucket]) for bucket, end in s.ends.items()})
            for s in step.old.sources
        )
        return replace(chosen, step=replace(chosen.step, old=Lineage(sources)))

    return mock.patch.object(refresh, "choose_step", skips)


def a_lineage_ahead_of_its_rows():
    """A step names the newest versions, whatever it took."""
    real, newest = refresh_commit.commit_step, {}

    def nearer(step, *given):
        newest[step.number] = step
        return step_planning.choose_step(step, *given)

    def ahead(view, step, rows, gone):
        return real(view, newest[step.number], rows, gone)

    both = ExitStack()
    both.enter_context(mock.patch.object(refresh, "choose_step", nearer))
    both.enter_context(mock.patch.object(refresh_commit, "commit_step", ahead))
    return both


def steps_that_never_end():
    """A large commit is cut where the view ends already."""
    return mock.patch.object(step_planning, "allocate_ends", lambda starts, *_: dict(starts))


def a_part_of_a_version_is_read_as_all_of_it():
    return mock.patch.object(
        temp_views.TempViews, "_read_rows", lambda self, name, of: self._read_version(name, of.version)
    )


def steps_over_rows_without_offsets():
    """A version that lost rows, or has other engines' rows, is named below offsets."""
    return mock.patch.object(step_planning._SourceProgress, "_is_dense", lambda self: not self._state.primary_key)


PLANTS_OF_STEPS = {
    a_step_that_skips_a_version: LOG,
    a_lineage_ahead_of_its_rows: LOG,
    steps_that_never_end: LOG,
    a_part_of_a_version_is_read_as_all_of_it: LOG,
    steps_over_rows_without_offsets: LOG,
}
PLANTS = {
    a_lost_retraction: COUNTS,
    a_doubled_batch: COUNTS,
    a_group_that_is_not_computed_again: LEAST,
    a_group_that_should_vanish: LEAST,
    rows_and_versions_are_two_commits: COUNTS,
    the_slower_refresh_counts_too: COUNTS,
    a_source_that_went_on_is_looked_up: BY_KEY,
    equal_rows_begin_at_one: BAG,
    lost_rows_are_overlooked: LOG,
    another_table_of_the_name_is_overlooked: COUNTS,
}


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_planted_bugs_are_found(plant):
    with plant(), pytest.raises(DifferenceError, match=r"strange|of one primary key"):
        histories(range(1000, 1040), query=PLANTS[plant])
    assert refresh.commit_step is refresh_commit.commit_step


@pytest.mark.parametrize("plant", PLANTS_OF_STEPS, ids=lambda plant: plant.__name__)
def test_planted_bugs_of_steps_are_found(plant):
    with plant(), pytest.raises(DifferenceError, match=r"strange|without offsets|ends at|without new rows"):
        histories(range(1000, 1040), query=PLANTS_OF_STEPS[plant], stepped=1.0)
    assert (refresh.choose_step, refresh.commit_step) == (step_planning.choose_step, refresh_commit.commit_step)


@pytest.mark.long
def test_views_that_go_in_steps_are_what_they_say_they_are():
    total = histories(range(200, 240), stepped=1.0)
    assert total.refreshes["in steps"] > 40
    assert total.refreshes["steps below offsets"] > 20
    assert total.refreshes["crashed"] > 5
