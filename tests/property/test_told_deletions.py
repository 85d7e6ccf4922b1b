"""Streams of the changes of a table without a primary key: laid over nothing, they give the table, whatever happens to
it between their batches, and wherever they die.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.sim import sim_world
from kit.tables import tier
from property.stream_driver import Query
from property.test_commit_changes import done
from streamhouse_spark import OffsetsTrimmedError, Warehouse
from streamhouse_spark.storage.memory import MemoryStorage

IDS = st.integers(0, 7)
DAYS = st.sampled_from([0, 1])
ROWS = st.lists(st.tuples(IDS, DAYS), max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("partitions"), ROWS),
        st.tuples(st.just("delete"), IDS),
        st.tuples(st.just("update"), IDS, IDS, ROWS),
        st.tuples(st.just("drop"), DAYS),
        st.tuples(st.just("back"), st.integers(1, 9)),
        st.sampled_from([("merge",), ("tier",), ("trim",), ("compact",)]),
        st.tuples(st.just("run"), st.integers(1, 3), st.booleans()),
    ),
    max_size=12,
)


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("num_examples", [25, pytest.param(400, marks=pytest.mark.long)])
def test_a_stream_of_changes_gives_the_table(lake_format, num_examples):
    @settings(deadline=None, max_examples=num_examples)
    @given(steps=STEPS, rows_max=st.sampled_from([None, 1, 3]))
    def any_history(steps, rows_max):
        wh = Warehouse("wh", storage=MemoryStorage(sim_world()), world=sim_world(1))
        table = wh.create_table(
            "d.t",
            "id BIGINT, day INT",
            partition_by=["day"],
            buckets=1,
            properties={"table.datalake.format": lake_format},
        )
        query = Query("d.t$changelog", **({} if rows_max is None else {"maxOffsetsPerTrigger": str(rows_max)}))
        for step in steps:
            if step[0] == "run":
                query = run(wh, query, batches=step[1], unfinished=step[2])
            else:
                done(table, step, table.append)
                tier(table)  # so that a lake snapshot has each row that leaves the log
        table.append([{"id": 9, "day": 9}])  # a drop alone moves no stream
        query = run(wh, query)
        table.refresh()
        assert laid(query) == sorted((row["id"], row["day"]) for row in table.to_arrow().to_pylist())

    any_history()


def run(wh: Warehouse, query: Query, **how: Any) -> Query:
    """Run a query, or begin anew where a batch cannot be repeated: its rows were in the lake alone, and are deleted."""
    is_repeated = len(query.offsets) > query.committed
    try:
        query.run(wh, **how)
    except OffsetsTrimmedError:
        assert is_repeated
        query = Query(query.name, **query.options)
        query.run(wh, **how)
    return query


def laid(query: Query) -> list[tuple[int, int]]:
    """Lay the changes over nothing: each row is inserted once, and deleted once at most, later."""
    there: dict[tuple[int, int], tuple[int, int]] = {}
    seen = set()
    for row in query.rows:
        place = row["day"], row["_log_offset"]
        if row["_change_type"] in ("insert", "update_after"):
            assert place not in seen
            seen.add(place)
            there[place] = row["id"], row["day"]
        else:
            assert row["_change_type"] in ("delete", "update_before")
            assert there.pop(place) == (row["id"], row["day"])
    return sorted(there.values())
