"""Pausing a view: one record of its table, which each process sees, and which changes no row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse_spark import InvalidOptionError, TableNotFoundError, Warehouse
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.table.refresh_commit import (
    RefreshStep,
    commit_step,
    last_refresh,
    make_next_step,
    pause_refreshes,
    resume_refreshes,
)

DEFINITION = ViewDefinition("SELECT k FROM db.source", "incremental", 1000, ("k",), "natural", {"spark.x": "é"})


@pytest.fixture
def wh(tmp_path, own_cache):
    return Warehouse(str(tmp_path / "wh"))


@pytest.fixture
def view(wh):
    return wh.create_table("gold.v", "k INT NOT NULL", primary_key=["k"], properties={VIEW: DEFINITION.to_text()})


def is_paused(table):
    return ViewDefinition.of(table.refresh().properties, table.name).paused


def rows_of(*keys):
    """Rows to write, of which none is to go."""
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False)])
    return pa.table({"k": pa.array(keys, pa.int32())}, schema=schema), pa.array([False] * len(keys), pa.bool_())


def elsewhere(wh):
    return Warehouse(wh.url).table("gold.v")


def test_each_is_one_record_that_others_see_and_repeating_it_is_none(wh, view):
    created, other = view.refresh().version, elsewhere(wh)
    assert pause_refreshes(view) is True
    assert (view.refresh().version, is_paused(other)) == (created + 1, True)
    assert (pause_refreshes(view), pause_refreshes(elsewhere(wh))) == (False, False)
    assert resume_refreshes(other) is True
    assert (view.refresh().version, is_paused(view)) == (created + 2, False)
    assert resume_refreshes(view) is False
    assert view.refresh().version == created + 2


def test_one_that_read_before_writes_nothing_behind_another(wh, view):
    late = elsewhere(wh)
    late.refresh()
    pause_refreshes(view)
    assert late.state.version < view.state.version
    assert pause_refreshes(late) is False
    assert late.state.version == view.state.version


def test_the_definition_is_else_as_before(view):
    pause_refreshes(view)
    found = ViewDefinition.of(view.refresh().properties, view.name)
    assert (found.query, found.session, found.names) == (DEFINITION.query, DEFINITION.session, DEFINITION.names)
    resume_refreshes(view)
    assert view.refresh().properties[VIEW] == DEFINITION.to_text(), "as versions read it that know no pause"
    assert "paused" not in DEFINITION.to_text()


def test_no_alter_changes_it(view):
    pause_refreshes(view)
    for change in ({"set_properties": {VIEW: DEFINITION.to_text()}}, {"unset_properties": [VIEW]}):
        with pytest.raises(InvalidOptionError, match=r"property table\.view is fixed"):
            view.alter(**change)
    view.alter_properties({"table.log.ttl": "3d"})
    assert is_paused(view)


def test_a_refresh_by_hand_commits_and_the_view_stays_paused(wh, view):
    source = wh.create_table("db.source", "k INT")
    source.append([{"k": 1}])
    step = make_next_step(view, {"db.source": source})
    pause_refreshes(elsewhere(wh))  # between the step and its commit
    assert commit_step(view, step, *rows_of(1))
    assert view.to_arrow().to_pylist() == [{"k": 1}]
    assert is_paused(view)
    assert last_refresh(view.refresh())[0] == 1
    assert make_next_step(view, {"db.source": source}) is None


def test_a_view_of_a_paused_view_has_nothing_new(wh, view):
    outer = wh.create_table("gold.o", "k INT NOT NULL", primary_key=["k"], properties={VIEW: DEFINITION.to_text()})
    state = view.refresh()
    at = SourceVersion("gold.v", view.uuid, state.version, state.attempt, state.ends)
    commit_step(outer, RefreshStep(1, None, Lineage((at,))), *rows_of())
    pause_refreshes(view)
    assert make_next_step(outer, {"gold.v": view}) is None


def test_the_clone_of_a_paused_view_is_a_plain_table(wh, view):
    pause_refreshes(view)
    clone = wh.clone_table("gold.v", "gold.c")
    assert VIEW not in clone.state.properties
    with pytest.raises(InvalidOptionError, match=r"gold\.c is not a materialized table"):
        pause_refreshes(clone)


def test_what_is_no_view_and_what_is_gone(wh, view):
    plain = wh.create_table("db.plain", "k INT")
    with pytest.raises(InvalidOptionError, match="is not a materialized table"):
        resume_refreshes(plain)
    wh.drop_table("gold.v")
    with pytest.raises(TableNotFoundError):
        pause_refreshes(view)
