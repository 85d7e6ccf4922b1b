"""Any history of a table that keeps changes: what is kept of its feed is what was written, wherever a reader begins."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changes_replayed import changes
from faults.keyed_groups import together
from faults.sim import SimClock, sim_world
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError
from streamhouse_spark.kv.tablets import close_tablets
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log.archive import keeping
from streamhouse_spark.log.archive.pages import archived, change_starts
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS
from streamhouse_spark.read.executor import read_batches
from streamhouse_spark.read.ranges import plan_ranges
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

HOUR_MS = 3_600_000
KEEPING = {
    "table.changelog.retention": "40 h",
    "table.log.ttl": "5 h",
    "table.datalake.auto-compaction": "false",
}
ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), ROWS),
        st.tuples(st.just("upsert"), ROWS),
        st.tuples(st.just("together"), ROWS, ROWS),
        st.tuples(st.just("partial"), ROWS),
        st.tuples(st.just("delete"), st.integers(0, 6)),
        st.tuples(st.just("maintain")),
        st.tuples(st.just("maintain")),
        st.tuples(st.just("archive")),
        st.tuples(st.just("pass"), st.sampled_from([1, 6, 20])),
        st.tuples(st.just("tier")),
        st.tuples(st.just("merge")),
        st.tuples(st.just("columns"), st.sampled_from(["add", "rename", "drop", "widen"])),
        st.tuples(st.just("jump"), st.sampled_from([-HOUR_MS, HOUR_MS])),
        st.tuples(st.just("truncate")),
    ),
    max_size=14,
)


@dataclass
class Model:
    """Every change that was made, as it was read right behind its commit."""

    table: Table
    clock: SimClock
    feed: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Bucket → changes by offset; columns by their ids."""
    by_commit: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    seen: int = 1
    begun: int = 1
    """The first commit of the table since it was truncated last."""
    number: int = 0

    def look(self) -> None:
        """Take what the newest commits made, before anything else happens to it."""
        state = self.table.refresh()
        for bucket, log in state.buckets.items():
            known = self.feed.setdefault(bucket, [])
            begin = known[-1]["_log_offset"] + 1 if known else state.first_offset(bucket)
            if log.end > begin:
                known += [_by_id(self.table, row) for row in ranges(self.table, {bucket: OffsetRange(begin, log.end)})]
        for number in range(self.seen + 1, state.version + 1):
            found = [_by_id(self.table, row) for row in changes(self.table, number, number)]
            if found:
                self.by_commit[number] = found
        self.seen = state.version

    def check(self) -> None:
        state, starts = self.table.refresh(), change_starts(self.table.state)
        self.check_feed(starts)
        for bucket, start in starts.items():  # from anywhere in between
            middle = (start + state.buckets[bucket].end) // 2
            self.check_feed({bucket: middle})
        view = open_rows(self.table)
        assert view == self.expected(starts, range(len(state.buckets)))
        self.check_commits()

    def check_feed(self, starts: dict[int, int]) -> None:
        state = self.table.state
        asked = {b: OffsetRange(s, state.buckets[b].end) for b, s in starts.items() if s < state.buckets[b].end}
        assert ranges(self.table, asked) == self.expected(starts, sorted(asked))

    def expected(self, starts: dict[int, int], buckets: Any) -> list[dict[str, Any]]:
        return [
            _now(self.table, row)
            for bucket in buckets
            for row in self.feed.get(bucket, [])
            if row["_log_offset"] >= starts[bucket]
        ]

    def check_commits(self) -> None:
        newest, held = self.table.state.version, archived(self.table.state)
        first = first_there(self.table)
        if held:
            assert first <= max(held.first_commit, self.begun + 1), "commits are told from where the archive says"
        for number in {first, (first + newest) // 2, newest} if first <= newest else ():
            found = sorted(map(_text, changes(self.table, number, newest)))
            wanted = [_now(self.table, row) for n, rows in self.by_commit.items() if n >= number for row in rows]
            assert found == sorted(map(_text, wanted)), (number, newest)


def _text(row: dict[str, Any]) -> str:
    return repr({k: v for k, v in row.items() if k != "_commit_timestamp"})


def _by_id(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    ids = {column.name: column.id for column in table.state.schema.columns}
    return {ids.get(name, name): value for name, value in row.items()}  # type: ignore[misc]


def _now(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    meta = {name: value for name, value in row.items() if isinstance(name, str)}
    return {**meta, **{c.name: row.get(c.id) for c in table.state.schema.columns}}  # type: ignore[call-overload]


def ranges(table: Table, asked: dict[int, OffsetRange]) -> list[dict[str, Any]]:
    """Read ranges as a stream of the changelog does."""
    plan = plan_ranges(table, table.state, asked, table.state.schema.names, fail_on_data_loss=True)
    return [row for batch in read_batches(table, plan, CHANGELOG_FIELDS) for row in batch.to_pylist()]


def open_rows(table: Table) -> list[dict[str, Any]]:
    from streamhouse_spark.table.views import open_view

    return open_view(table, "changelog").to_arrow().to_pylist()


def first_there(table: Table) -> int:
    """Return the first commit from which on CHANGES can be read."""
    newest = table.refresh().version
    for first in range(1, newest + 1):
        with suppress(OffsetsTrimmedError, InvalidOptionError):  # the latter of a truncation among them
            changes(table, first, newest)
            return first
    return newest + 1


def done(model: Model, step: Any) -> None:  # noqa: C901 - a case a step
    table = model.table
    value = next(c.name for c in table.state.schema.columns if c.id == 2)

    def rows(pairs: Any) -> list[dict[str, Any]]:
        return [{"id": one, value: n} for one, n in pairs]

    match step:
        case ("upsert", pairs):
            table.upsert(rows(pairs))
        case ("together", *pairs):
            together(table, [("upsert", rows(some)) for some in pairs], model.number)
        case ("partial", pairs):
            table.upsert([{"id": one, "name": "p"} for one, _ in pairs], columns=["id", "name"])
        case ("delete", gone):
            table.delete([gone])
        case ("maintain",):
            table.maintain()
        case ("archive",):
            keeping.keep_archive(table.log, table.storage, table.world, table.segment_options(), 40 * HOUR_MS)
        case ("pass", hours):
            model.clock.advance(hours * HOUR_MS)
        case ("tier",) if table.has_lake:
            tier(table)
        case ("merge",):
            table.merge_inline()
        case ("columns", how):
            change_columns(table, how, model.number)
        case ("jump", by_ms):
            model.clock.jump(by_ms)
        case ("truncate",):
            model.look()
            table.truncate()
            model.feed, model.by_commit = {}, {}
            model.seen = model.begun = table.refresh().version


def change_columns(table: Table, how: str, number: int) -> None:
    columns = {c.id: c for c in table.state.schema.columns}
    extra = [c for i, c in columns.items() if i > 3]
    if how == "add":
        table.add_columns(f"c{number} STRING")
    elif how == "rename":
        table.rename_column(columns[2].name, f"v{number}")
    elif how == "drop" and extra:
        table.drop_column(extra[0].name)
    elif how == "widen" and str(columns[2].type) == "int32":
        table.widen_column(columns[2].name, "BIGINT")


def tier(table: Table) -> None:
    job = TieringJob(table.log, table.open_lake(), world=table.world)
    job.run(run_tasks_locally(table.storage, table.settings, table.world))


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("num_examples", "lake", "pages_to_join"),
    [
        (4, "true", 2),
        pytest.param(300, "true", 2, marks=LONG),
        pytest.param(300, "false", 2, marks=LONG),
        pytest.param(200, "true", 8, marks=LONG),
        pytest.param(200, "false", 8, marks=LONG),
    ],
)
def test_any_history(monkeypatch, num_examples, lake, pages_to_join):
    monkeypatch.setattr(keeping, "PAGES_TO_JOIN", pages_to_join)

    @settings(deadline=None, max_examples=num_examples)
    @given(steps=STEPS)
    def any_history(steps: Any) -> None:
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, STREAMHOUSE_CACHE_DIR=cache):
            close_tablets()
            clock = SimClock()
            warehouse = Warehouse("wh", storage=MemoryStorage(sim_world(0, clock)), world=sim_world(1, clock))
            properties = {**KEEPING, "table.datalake.enabled": lake}
            columns = "id BIGINT, n INT, name STRING"
            table = warehouse.create_table("d.t", columns, primary_key=["id"], buckets=2, properties=properties)
            model = Model(table, clock)
            for model.number, step in enumerate(steps):
                done(model, step)
                model.look()
                model.check()
            close_tablets()

    any_history()
