"""Any history: the changes of its commits, laid over an older version, give the newer one."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.keyed_groups import KINDS, together
from faults.sim import sim_world
from kit.change_replay import check_history, first_there
from kit.row_replacement import replace_rows
from kit.tables import tier, trim_tiered
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.read.scan_executor import changelog_cache
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows

IDS = st.integers(0, 7)
DAYS = st.sampled_from([0, 1, 2])
ROWS = st.lists(st.tuples(IDS, DAYS), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("partitions"), ROWS),
        st.tuples(st.just("where"), ROWS, DAYS),
        st.tuples(st.just("delete"), IDS),
        st.tuples(st.just("update"), IDS, IDS, ROWS),
        st.tuples(st.just("drop"), DAYS),
        st.tuples(st.just("back"), st.integers(1, 9)),
        st.tuples(st.just("merge")),
        st.tuples(st.just("tier")),
        st.tuples(st.just("trim")),
        st.tuples(st.just("compact")),
        st.tuples(st.just("all"), ROWS),
    ),
    max_size=10,
)
WRITES = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "delete", "name"]),
        st.lists(
            st.fixed_dictionaries({"id": st.integers(0, 3), "name": st.sampled_from("ab"), "n": st.integers(0, 2)}),
            min_size=1,
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=4,
)
GROUPS = st.lists(WRITES | st.sampled_from(["merge", "tier", "trim"]), min_size=1, max_size=6)


UPKEEP = {
    "compact": lambda table: table.lake.compact(purge=True),
    "merge": compact_inline_rows,
    "tier": tier,
    "trim": trim_tiered,
}


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("num_examples", [25, pytest.param(400, marks=pytest.mark.long)])
def test_changes_of_a_log_table_lead_from_version_to_version(lake_format, num_examples):
    @settings(deadline=None, max_examples=num_examples)
    @given(steps=STEPS, tiers_each=st.booleans())
    def any_history(steps, tiers_each):
        table = Warehouse("wh", storage=MemoryStorage(sim_world()), world=sim_world(1)).create_table(
            "d.t",
            "id BIGINT, day INT",
            partition_by=["day"],
            buckets=2,
            properties={"table.datalake.format": lake_format},
        )
        for step in steps:
            done(table, step, table.append)
            if tiers_each:
                tier(table)
        check_history(table)
        assert not tiers_each or first_there(table) == 1  # a lake snapshot has each row that the log lost

    any_history()


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("num_examples", [10, pytest.param(200, marks=pytest.mark.long)])
def test_changes_of_a_keyed_table_lead_from_version_to_version(lake_format, num_examples):
    @settings(deadline=None, max_examples=num_examples)
    @given(steps=STEPS)
    def any_history(steps):
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, STREAMHOUSE_CACHE_DIR=cache):
            close_tablets()
            changelog_cache.clear()  # each history has the ids of the others
            table = Warehouse("wh", storage=MemoryStorage(sim_world()), world=sim_world(1)).create_table(
                "d.t",
                "id BIGINT, day INT, n INT",
                primary_key=["id", "day"],
                partition_by=["day"],
                buckets=2,
                properties={"table.datalake.format": lake_format},
            )
            for step in steps:
                done(table, step, table.upsert)
            check_history(table)
            close_tablets()

    any_history()


def rows_of(table: Table, pairs: Any) -> list[dict[str, Any]]:
    number = {"n": table.refresh().version} if table.state.primary_key else {}
    return [{"id": one, "day": day, **number} for one, day in pairs]


def merge(table: Table, old: int, new: int, added: Any) -> None:
    """Update the rows of one id, delete those of the next, and add others; with a key an update is an upsert."""
    if table.state.primary_key:
        return
    replace_rows(
        table,
        lambda row: row["id"] in (old, old + 1),
        lambda row: {**row, "id": new} if row["id"] == old else None,
        added=rows_of(table, added),
    )


def done(table: Table, step: Any, write: Any) -> None:
    rows = partial(rows_of, table)
    match step:
        case ("append", pairs):
            write(rows(pairs))
        case ("partitions", pairs):
            table.overwrite_partitions(rows(pairs))
        case ("where", pairs, day):
            table.overwrite(rows((n, d) for n, d in pairs if d == day), where=[("day", "=", day)])
        case ("all", pairs):
            table.overwrite(rows(pairs))
        case ("delete", gone) if table.state.primary_key:
            table.delete([(gone, 0), (gone, 1)])
        case ("delete", gone):
            table.delete(where=[("id", "=", gone)])
        case ("update", *how):
            merge(table, *how)
        case ("drop", day):
            table.drop_partition({"day": day})
        case ("back", back):
            table.rollback_to_version(max(1, table.refresh().version - back))
        case (upkeep,):
            UPKEEP[upkeep](table)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wal"])
@pytest.mark.parametrize("num_examples", [10, pytest.param(150, marks=pytest.mark.long)])
def test_writers_that_share_records(kind, num_examples, own_cache):
    @settings(deadline=None, max_examples=num_examples)
    @given(groups=GROUPS, buckets=st.sampled_from([1, 2]))
    def any_history(groups, buckets):
        close_tablets()
        table = Warehouse("wh", storage=MemoryStorage()).create_table(
            "d.t", "id BIGINT, name STRING, n BIGINT", primary_key=["id"], buckets=buckets, properties=dict(KINDS[kind])
        )
        for number, step in enumerate(groups):
            if isinstance(step, str):
                done(table, (step,), table.upsert)
            else:
                together(table, step, number)
        check_history(table)

    any_history()
