"""One read sees one state of its table, whoever alters the table, and whoever reads it on, between any two steps."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc
import pytest

from kit.tables import tier
from property.stream_driver import Opened
from streamhouse_spark import OffsetRange, Table, Warehouse
from streamhouse_spark.datasource.read.partitions import read_plan
from streamhouse_spark.datasource.scan import scan
from streamhouse_spark.datasource.scan.arrow_plan import ArrowReadPlan
from streamhouse_spark.datasource.scan.arrow_reader import make_partitions
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.offset_scan import plan_ranges
from streamhouse_spark.read.scan_planning import plan_lake
from streamhouse_spark.read.snapshot_fallback import fall_back_to_lake_snapshot
from streamhouse_spark.read.snapshot_reader import plan_union, read_snapshot_rows

NAME = "sales.parts"
TURNED = "abcdefghijk"
"""More columns than any read has looks at the state of its table."""
NAMES = ("id", *TURNED)
COLUMNS = ", ".join(["id bigint not null", *(f"{name} bigint" for name in TURNED)])
ROWS = [{"id": i, **{name: 100 * i + place for place, name in enumerate(TURNED)}} for i in (1, 2, 3)]
TURN = dict(zip(TURNED, (*TURNED[1:], TURNED[0]), strict=True))

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def moving(monkeypatch) -> Callable[[Table], None]:
    """From the call on, each look at the state of a table comes behind another process's renaming of all columns."""

    def move(other: Table) -> None:
        known, busy = CommitLog.state, [False]

        def moved(self: CommitLog) -> TableState:
            if self is not other.log and not busy[0]:
                busy[0] = True
                other.refresh()
                other.alter(rename_columns=TURN)
                self.refresh()
                busy[0] = False
            return known.fget(self)

        monkeypatch.setattr(CommitLog, "state", property(moved))

    return move


def log_table(wh: Warehouse, lake_format: str) -> Table:
    """A row that is only in the lake, one in the lake and the log, one in the log."""
    table = wh.create_table(NAME, COLUMNS, properties={"table.datalake.format": lake_format, "table.log.ttl": "1h"})
    table.append(ROWS[:1])
    tier(table)
    table.world.clock.advance(2 * 3_600_000)
    table.maintain()
    table.append(ROWS[1:2])
    tier(table)
    table.append(ROWS[2:])
    assert table.state.buckets[0].start == 1
    return table


def keyed_table(wh: Warehouse, lake_format: str) -> Table:
    properties = {"table.datalake.format": lake_format}
    table = wh.create_table(NAME, COLUMNS, primary_key=["id"], buckets=2, properties=properties)
    table.upsert([{"id": i, "a": 9, "b": 900} for i in (1, 2)])
    table.upsert(ROWS[:1])
    tier(table)
    table.upsert(ROWS[1:])
    return table


def is_of_one_state(rows: list[dict], num_ids: int = 3) -> bool:
    """Whether the columns of all rows are called as one state of the table called them."""
    found = [{name: row[name] for name in row if not name.startswith("_")} for row in rows]
    written = {row["id"]: row for row in ROWS}
    of_name, states = {name: name for name in NAMES}, []
    for _ in TURN:
        states.append([{name: written[row["id"]][of_name[name]] for name in row} for row in found])
        of_name = {name: of_name[TURN.get(name, name)] for name in NAMES}
    return len({row["id"] for row in found}) == num_ids and found in states


def planned(wh: Warehouse, plan: Callable[[Table], object], table: Table) -> list[dict]:
    return [row for batch in read_plan(Opened(wh), plan(table), ()) for row in batch.to_pylist()]


def repinned(table: Table) -> list[dict]:
    pin = fall_back_to_lake_snapshot(table)
    return read_snapshot_rows(table, pin, Projection.of(pin.state.schema, None, None)).to_pylist()


def of_range(table: Table) -> object:
    state = table.state
    ranges = {bucket: log.offsets for bucket, log in state.buckets.items()}
    if not state.primary_key:
        ranges = {0: OffsetRange(0, 3)}
    return plan_ranges(table, state, ranges, NAMES, fail_on_data_loss=True)


def of_lake(table: Table) -> object:
    state = table.refresh()
    return plan_lake(table, state, Projection.of(state.schema, NAMES, None))


def by_sql(wh: Warehouse, suffix: str | None, *filters: dict) -> list[dict]:
    """What the catalog's tasks read, all of it in Python."""
    name = NAME if suffix is None else f"{NAME}${suffix}"
    pin = scan.load(Opened(wh), {"database": "sales", "table": name.partition(".")[2]})
    reply = scan.plan(
        Opened(wh), {"snapshot": pin["snapshot"], "columns": NAMES, "filters": filters, "native_schemes": []}
    )
    tasks = make_partitions(ArrowReadPlan.from_text(reply["read"]))
    return [row for task in tasks for batch in read_plan(Opened(wh), task.plan(), ()) for row in batch.to_pylist()]


IS_POSITIVE = {"op": ">", "children": [{"column": ["id"]}, {"literal": 0, "type": '"long"'}]}
Read = Callable[[Warehouse, Table], list[dict]]
READS: dict[str, Read] = {
    "to_arrow": lambda _, t: t.to_arrow().to_pylist(),
    "columns": lambda _, t: t.to_arrow(columns=["b", "id"]).to_pylist(),
    "a filter": lambda _, t: t.to_arrow(filter=pc.field("id") > 0).to_pylist(),
    "predicates": lambda _, t: t.to_arrow(filter=[("a", ">", 0), ("b", ">", 0)]).to_pylist(),
    "repinned": lambda _, t: repinned(t),
    "head": lambda wh, _: wh.table(NAME).head().to_pylist(),
    "head of some columns": lambda wh, _: wh.table(NAME).scan(columns=["b", "id"], limit=10).to_arrow().to_pylist(),
    "plan": lambda wh, t: planned(wh, lambda t: plan_union(t, NAMES), t),
    "sql": lambda wh, _: by_sql(wh, None),
    "sql with a filter": lambda wh, _: by_sql(wh, None, IS_POSITIVE),
}
LAKE_READS: dict[str, Read] = {
    "lake": lambda _, t: t.lake.to_arrow().to_pylist(),
    "lake with a filter": lambda _, t: t.lake.to_arrow(columns=["a", "id"], filter=[("b", ">", 0)]).to_pylist(),
    "head": lambda wh, _: wh.view(f"{NAME}$lake").head().to_pylist(),
    "view": lambda wh, _: wh.view(f"{NAME}$lake").to_arrow().to_pylist(),
    "plan": lambda wh, t: planned(wh, of_lake, t),
    "sql": lambda wh, _: by_sql(wh, "lake"),
}
LOG_READS: dict[str, Read] = {
    "head of the changelog": lambda wh, _: wh.view(f"{NAME}$changelog").head().to_pylist(),
    "changelog": lambda wh, _: wh.view(f"{NAME}$changelog").to_arrow().to_pylist(),
}


@pytest.mark.parametrize("name", [*READS, *LOG_READS])
def test_a_read_of_a_log_table(wh, other_process, moving, lake_format, name):
    table = log_table(wh, lake_format)
    moving(other_process().table(NAME))
    for _ in range(2):
        assert is_of_one_state((READS | LOG_READS)[name](wh, table))


@pytest.mark.parametrize("name", LAKE_READS)
@pytest.mark.parametrize("make", [log_table, keyed_table])
def test_a_read_of_the_lake(wh, other_process, moving, lake_format, make, name):
    table = make(wh, lake_format)
    tier(table)
    moving(other_process().table(NAME))
    for _ in range(2):
        assert is_of_one_state(LAKE_READS[name](wh, table))


KEYED_READS: dict[str, Read] = {
    "lookup": lambda _, t: t.lookup([1, 2, 3]).to_pylist(),
    "lookup of some columns": lambda _, t: t.lookup([1, 2, 3], columns=["c", "a"]).to_pylist(),
}


@pytest.mark.parametrize("name", [*READS, "lookup", "lookup of some columns"])
def test_a_read_by_key(wh, other_process, moving, lake_format, name):
    table = keyed_table(wh, lake_format)
    moving(other_process().table(NAME))
    for _ in range(2):
        assert is_of_one_state((READS | KEYED_READS)[name](wh, table))


def test_a_lookup_shows_one_state(wh, other_process, moving):
    table = keyed_table(wh, "iceberg")
    moving(other_process().table(NAME))
    for _ in range(2):
        assert is_of_one_state([table.lookup_one(2)], 1)
        assert is_of_one_state(table.prefix_lookup(2).to_pylist(), 1)


def test_keyed_changes_show_one_state(wh, other_process, moving):
    keyed_table(wh, "iceberg")
    moving(other_process().table(NAME))
    for _ in range(2):
        found = wh.view(f"{NAME}$binlog").to_arrow().to_pylist()
        assert is_of_one_state([row["after"] for row in found if row["after"]["id"] == 3], 1)
        found = wh.view(f"{NAME}$changelog").to_arrow().to_pylist()
        assert is_of_one_state([row for row in found if row["id"] == 3], 1)


@pytest.mark.parametrize("make", [log_table, keyed_table])
def test_a_plan_of_ranges_shows_one_state(wh, other_process, moving, make):
    table = make(wh, "iceberg")
    moving(other_process().table(NAME))
    for _ in range(2):
        rows = planned(wh, of_range, table)
        assert is_of_one_state([row for row in rows if row["id"] == 3], 1)
