"""A view with a smallest and a largest value that is refreshed without Spark, by the parts that a refresh is made of.

Groups that are computed again, and values that are listed, are those of the rows of the source, in a few tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sqlglot import exp

from kit.warehouses import open_warehouse
from streamhouse_spark import Table
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table import refresh_commit
from streamhouse_spark.views import min_max_cache
from streamhouse_spark.views.ivm import min_max
from streamhouse_spark.views.ivm import min_max as top_k
from streamhouse_spark.views.ivm.aggregates import RECOMPUTE, IncrementalAggregate, group_column
from streamhouse_spark.views.ivm.logical_plan import SourceColumns
from streamhouse_spark.views.ivm.min_max import ALL_ROWS, LIST, NUMBER, FirstValues, key_name, value_names
from streamhouse_spark.views.ivm.query_parser import build_plan, parse_query, prune_columns
from streamhouse_spark.views.ivm.refresh_sql import GONE, KEY, Statements, choose_identity
from streamhouse_spark.views.local_executor import LocalRows, merge_aggregates
from streamhouse_spark.views.local_reads import lookup_view_rows, read_changes
from streamhouse_spark.views.min_max_cache import MinMaxCache, MinMaxRequest
from streamhouse_spark.views.refresh_step import DeltaRange, StepInputs
from streamhouse_spark.views.temp_views import TempViews

HOT = {"table.datalake.enabled": "false"}
SOURCE_COLUMNS = "id BIGINT NOT NULL, k INT, v INT"
VIEW_COLUMNS = "_key STRING NOT NULL, k INT, lo INT, hi INT"
NAMES = ("k", "lo", "hi")
QUERY = "SELECT k, min(v) AS lo, max(v) AS hi FROM db.t GROUP BY k"

Row = dict[str, Any]


def compiled(query: str = QUERY, names: tuple[str, ...] = NAMES, *, sums: str = "bigint") -> IncrementalAggregate:
    """The statements of a query over a source whose columns are whole numbers; ``sums`` is the type of its sums."""
    sources = {"t0": SourceColumns(("id", "k", "v"), ("id",), frozenset({"id"}))}
    root = prune_columns(build_plan(parse_query(query), sources, {"db.t": "t0"}))
    types = dict.fromkeys((*root.columns, *root.child.columns, *root.groups), "int")  # type: ignore[union-attr]
    types |= {name: sums for name, found in root.exprs.items() if isinstance(found, exp.Sum)}  # type: ignore[union-attr]
    added = IncrementalAggregate.of(Statements(root, names, types, choose_identity(root, types)))
    assert added is not None
    return added


ADDED = compiled()


def with_room(patched: pytest.MonkeyPatch, room: int) -> None:
    """Keep so many values of each group at first."""
    for module in (min_max, min_max_cache):
        patched.setattr(module, "ROOM", room)


def with_all_room(patched: pytest.MonkeyPatch, room: int) -> None:
    """Keep so many values of each group whose distinct values are counted."""
    for module in (min_max, top_k):
        patched.setattr(module, "ALL_ROOM", room)


def made(storage: Storage, seed: int = 1) -> None:
    warehouse = open_warehouse(storage, seed)
    warehouse.create_table("source", SOURCE_COLUMNS, primary_key=["id"], properties=HOT)
    warehouse.create_table("view", VIEW_COLUMNS, primary_key=["_key"], properties=HOT)


def opened(storage: Storage, seed: int) -> tuple[Table, Table]:
    warehouse = open_warehouse(storage, seed)
    return warehouse.table("source"), warehouse.table("view")


def groups_of(source: Table) -> dict[int | None, list[int | None]]:
    found: dict[int | None, list[int | None]] = defaultdict(list)
    for row in source.to_arrow().to_pylist():
        found[row["k"]].append(row["v"])
    return found


def answer(groups: dict[int | None, list[int | None]]) -> dict[int | None, tuple[int | None, int | None]]:
    found = {}
    for key, values in groups.items():
        there = [value for value in values if value is not None]
        found[key] = (min(there, default=None), max(there, default=None))
    return found


def shown(view: Table) -> dict[int | None, tuple[int | None, int | None]]:
    return {row["k"]: (row["lo"], row["hi"]) for row in view.to_arrow().to_pylist()}


def hashed(key: int | None) -> str:
    from hashlib import sha256

    text = "n" if key is None else f"{len(str(key))}:{key}"
    return sha256(text.encode()).hexdigest()


def as_view(rows: Iterable[Row]) -> pa.Table:
    numbers = [(name, pa.int32()) for name in NAMES]
    return pa.Table.from_pylist(list(rows), schema=pa.schema([pa.field(KEY, pa.string(), nullable=False), *numbers]))


def computed(source: Table, keys: Iterable[int | None]) -> list[tuple[Row, bool]]:
    """The rows of groups, and whether they go."""
    found = answer(groups_of(source))
    rows = []
    for key in keys:
        lo, hi = found.get(key, (None, None))
        rows.append(({KEY: hashed(key), "k": key, "lo": lo, "hi": hi}, key not in found))
    return rows


def listing(source: Table, added: IncrementalAggregate = ADDED) -> Callable[[MinMaxRequest], pa.Table]:
    """The values of groups, as tasks of Spark cut them from their rows."""
    group, (value,) = added.groups[0], value_names(added).values()

    def listed(asked: MinMaxRequest) -> pa.Table:
        wanted = set(asked.lost[group].to_pylist())
        if asked.like is not None:
            share = share_of(asked.lost[group][asked.like].as_py(), asked.num_shares)
            wanted |= {key for key in groups_of(source) if share_of(key, asked.num_shares) == share}
        rows = source.to_arrow().select(["k", "v"]).rename_columns([group, value])
        rows = rows.filter(pa.array([key in wanted for key in rows[group].to_pylist()], pa.bool_()))
        cut = FirstValues([group], [value], asked.room)
        tasks = [rows.slice(start, 1 + rows.num_rows // 3) for start in range(0, rows.num_rows, 1 + rows.num_rows // 3)]
        schema = pa.schema([(group, pa.int32()), (value, pa.int32()), (LIST, pa.int32()), (NUMBER, pa.int64())])
        found = pa.Table.from_batches([batch for task in tasks for batch in cut(task.to_batches())], schema)
        of_all = [number == ALL_ROWS for number in found[LIST].to_pylist()]
        keys = [hashed(key) if is_all else None for key, is_all in zip(found[group].to_pylist(), of_all, strict=True)]
        return found.append_column(key_name(KEY), pa.array(keys, pa.string()))

    return listed


def share_of(key: int | None, num_shares: int) -> int:
    return (7 if key is None else key) % num_shares


def refresh(storage: Storage, seed: int, *, dies: bool = False, added: IncrementalAggregate = ADDED) -> list[int]:
    """Refresh the view; with ``dies`` the process ends behind the commit. Returns of how many groups each step read
    rows.
    """
    source, view = opened(storage, seed)
    counts: list[int] = []
    for _ in range(4):
        step = refresh_commit.next_step(view, {"source": source})
        if step is None:
            return counts
        if step.new.whole_because:
            rows = computed(source, {*answer(groups_of(source)), *shown(view)})
            refresh_commit.commit_step(
                view, step, as_view(row for row, _ in rows), pa.array([gone for _, gone in rows])
            )
            continue
        counts.append(_by_changes(source, view, step, added, dies=dies))
    return counts


def between(source: Table, step: refresh_commit.RefreshStep, added: IncrementalAggregate = ADDED) -> DeltaRange:
    """The changes up to a step, which the driver reads itself."""
    no_session: Any = None
    relations = partial(TempViews, no_session, "relation_", ["source"], {"source": True})
    sources = {"source": source}
    return DeltaRange(relations, StepInputs(relations(), sources, step), sources, added)


def _by_changes(
    source: Table, view: Table, step: refresh_commit.RefreshStep, added: IncrementalAggregate, *, dies: bool
) -> int:
    assert step.old is not None
    changes = read_changes(source, source.state, step.old.sources[0].ends, step.new.sources[0].ends, ["id", "k", "v"])
    assert changes is not None, "a few changes that are there can be read"
    kept = MinMaxCache.of(view, added, step, between(source, step, added))
    assert kept is not None
    local = LocalRows({"t0"}, {"t0": changes.net(["k", "v"])}, {})
    found = partial(merge_aggregates, added, local, partial(lookup_view_rows, view))
    merged = found(kept.lookup)
    assert merged is not None
    lost: list[int | None] = []
    rows, gone = as_view([]), pa.array([], pa.bool_())
    if merged.num_rows:
        left = merged.filter(merged[RECOMPUTE])
        lost = left[group_column(added.groups[0])].to_pylist()
        groups = left.select([group_column(added.groups[0])]).rename_columns(list(added.groups))
        if lost and kept.list_lost(groups, left.select([KEY]), source.state.num_rows, listing(source, added)):
            merged = found(lambda *_: kept.current_result())
            assert merged is not None
        left, sure = merged.filter(merged[RECOMPUTE]), merged.filter(pc.invert(merged[RECOMPUTE]))
        again = computed(source, left[group_column(added.groups[0])].to_pylist())
        rows = pa.concat_tables([sure.select([KEY, *NAMES]).cast(rows.schema), as_view(row for row, _ in again)])
        gone = pa.concat_arrays([*sure[GONE].chunks, pa.array([is_gone for _, is_gone in again], pa.bool_())])
    if refresh_commit.commit_step(view, step, rows, gone) and not dies:
        kept.save()
    return len(lost)
