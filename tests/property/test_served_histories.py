"""Random histories of tables, beside the documents that engines get: each document is the table at that moment."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.sim import SimClock
from kit.iceberg_documents import rows_of
from kit.tables import tier
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import Table
from streamhouse_spark.serve.iceberg.served_tables import ServedTables

GRACE_MS = 600_000
SEEDS = itertools.count(1_000, 1_000)
"""Tables of two runs have different uuids: the caches of writers by key, on this host, are by uuid."""
IDS = st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), IDS),
        st.tuples(st.just("write"), IDS),
        st.tuples(st.just("delete"), IDS),
        st.tuples(
            st.sampled_from(["tier", "truncate", "compact", "maintain", "later", "widen", "another process"]), IDS
        ),
        st.tuples(st.just("show"), IDS),
        st.tuples(st.just("show"), IDS),
    ),
    min_size=3,
    max_size=18,
)


def step(table: Table, clock: SimClock, name: str, ids: list[int], number: int) -> None:
    rows = [{"id": i, "n": number} for i in ids]
    match name:
        case "write" if table.state.primary_key:
            table.upsert(rows)
        case "write":
            table.append(rows)
        case "delete" if table.state.primary_key:
            table.delete([{"id": i} for i in ids])
        case "delete":
            table.delete(where=[("id", "in", ids)])
        case "tier":
            tier(table)
        case "truncate":
            table.truncate()
        case "compact":
            table.lake.compact()
        case "maintain":
            table.maintain(grace_ms=GRACE_MS)
        case "later":
            clock.advance(GRACE_MS)
        case "widen":
            table.add_columns(f"c{number} INT")


def as_set(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["n"]) for row in rows)


@pytest.mark.parametrize("num_examples", [40, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_every_document_is_the_table(keyed, num_examples):
    @settings(max_examples=num_examples, derandomize=True, deadline=None)
    @given(steps=STEPS)
    def run(steps: list[tuple[str, list[int]]]) -> None:
        clock, seed = SimClock(), next(SEEDS)
        storage = new_store(0, clock)
        warehouse = open_warehouse(storage, seed, clock)
        columns = "id BIGINT NOT NULL, n INT" if keyed else "id BIGINT, n INT"
        key = ["id"] if keyed else []
        table = warehouse.create_table("s.t", columns, primary_key=key, buckets=2, properties={"table.log.ttl": "1ms"})
        served = [ServedTables(warehouse, grace_ms=GRACE_MS)]
        for number, (name, ids) in enumerate([*steps, ("show", [0])]):
            if name == "another process":
                other = open_warehouse(storage, seed + number + 1, clock)
                served.append(ServedTables(other, grace_ms=GRACE_MS))
            elif name == "show":
                shown = served[ids[0] % len(served)]
                shown.clean()
                document = shown.table("s.t").latest_metadata()
                assert as_set(rows_of(storage, document)) == as_set(table.to_arrow().to_pylist())
            else:
                step(table, clock, name, ids, number)

    run()
