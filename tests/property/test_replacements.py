"""Any history of appends, deletions, replacements of parts and rounds leaves the rows of a list, in the lake too."""

from __future__ import annotations

import os
import tempfile
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.tables import tier, trim_tiered
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.write.auto_compaction import merge_inline

IDS = st.integers(0, 11)
DAYS = st.sampled_from([0, 1, 2, None])
ROWS = st.lists(st.tuples(IDS, DAYS), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("partitions"), ROWS),
        st.tuples(st.just("where"), ROWS, st.sampled_from([0, 1, 2])),
        st.tuples(st.just("delete"), IDS),
        st.tuples(st.just("merge")),
        st.tuples(st.just("tier")),
        st.tuples(st.just("compact")),
        st.tuples(st.just("trim")),
        st.tuples(st.just("reopen")),
    ),
    max_size=12,
)


def as_rows(pairs: Any) -> list[dict[str, Any]]:
    return [{"id": number, "day": day} for number, day in pairs]


def pairs_of(found: Any) -> list[tuple[int, int | None]]:
    return sorted(((row["id"], row["day"]) for row in found.to_pylist()), key=repr)


def partition_of(day: int | None, partitioned_by: str) -> int | None:
    return day if day is None or partitioned_by == "day" else day - day % 2


@pytest.mark.parametrize(
    ("partitioned_by", "lake"), [("day", "iceberg"), ("truncate(2, day)", "iceberg"), ("day", "paimon")]
)
@settings(deadline=None)
@given(steps=STEPS)
def test_replacements_in_log_tables_agree_with_a_model(partitioned_by, lake, steps):
    storage = new_store()
    properties = {"table.datalake.format": lake}
    table = open_warehouse(storage, 1).create_table(
        "d.t", "id BIGINT, day INT", partition_by=[partitioned_by], buckets=2, properties=properties
    )
    model: list[tuple[int, int | None]] = []
    for number, step in enumerate(steps):
        match step:
            case ("append", pairs):
                table.append(as_rows(pairs))
                model += pairs
            case ("partitions", pairs):
                table.overwrite_partitions(as_rows(pairs))
                gone = {partition_of(day, partitioned_by) for _, day in pairs}
                model = [pair for pair in model if partition_of(pair[1], partitioned_by) not in gone] + pairs
            case ("where", pairs, day):
                pairs = [(n, d) for n, d in pairs if d == day]
                table.overwrite(as_rows(pairs), where=[("day", "=", day)])
                model = [pair for pair in model if pair[1] != day] + pairs
            case ("delete", gone):
                assert table.delete(where=[("id", "=", gone)]) == sum(n == gone for n, _ in model)
                model = [pair for pair in model if pair[0] != gone]
            case ("merge",):
                merge_inline(table)
            case ("tier",):
                tier(table)
                assert pairs_of(table.lake.to_arrow()) == sorted(model, key=repr)
            case ("compact",):
                table.lake.compact(purge=True)
            case ("trim",):
                trim_tiered(table)
            case ("reopen",):
                table = open_warehouse(storage, 2 + number).table("d.t")
        assert pairs_of(table.to_arrow()) == sorted(model, key=repr)
        assert table.refresh().num_rows == len(model)


@pytest.mark.parametrize("partitioned_by", ["day", "truncate(2, day)"])
@settings(deadline=None)
@given(steps=STEPS)
def test_replacements_in_keyed_tables_agree_with_a_model(partitioned_by, steps):
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, STREAMHOUSE_CACHE_DIR=cache):
        close_tablets()
        check_with_a_key(partitioned_by, steps)
        close_tablets()


def check_with_a_key(partitioned_by, steps):
    storage = new_store()
    table = open_warehouse(storage, 1).create_table(
        "d.t", "id BIGINT, day INT, n INT", primary_key=["id", "day"], partition_by=[partitioned_by], buckets=2
    )
    model: dict[tuple[int, int], int] = {}
    for number, step in enumerate(steps):
        pairs = [(n, d or 0) for n, d in step[1]] if step[0] in ("append", "partitions", "where") else []
        if step[0] == "where":
            pairs = [(n, d) for n, d in pairs if d == step[2]]
        rows = [{"id": n, "day": d, "n": number} for n, d in pairs]
        match step:
            case ("append", _):
                table.upsert(rows)
            case ("partitions", _):
                table.overwrite_partitions(rows)
                gone = {partition_of(day, partitioned_by) for _, day in pairs}
                model = {key: n for key, n in model.items() if partition_of(key[1], partitioned_by) not in gone}
            case ("where", _, day):
                table.overwrite(rows, where=[("day", "=", day)])
                model = {key: n for key, n in model.items() if key[1] != day}
            case ("delete", gone):
                table.delete([(gone, 0)])
                model.pop((gone, 0), None)
            case ("merge",):
                merge_inline(table)
            case ("tier",):
                tier(table)
            case ("trim",):
                trim_tiered(table)
            case ("reopen",):
                close_tablets()
                table = open_warehouse(storage, 2 + number).table("d.t")
        model |= dict.fromkeys(pairs, number)
        expected = sorted((i, d, n) for (i, d), n in model.items())
        reads = [table.to_arrow()] if step[0] != "tier" else [table.to_arrow(), table.lake.to_arrow()]
        for found in reads:
            assert sorted((row["id"], row["day"], row["n"]) for row in found.to_pylist()) == expected
