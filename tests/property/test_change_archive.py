"""Any history of a table that keeps changes: what is kept of its feed is what was written, wherever a reader begins."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from faults.keyed_groups import together
from faults.sim import SimClock, sim_world
from kit.change_replay import changes
from kit.tables import tier
from streamhouse_spark import InvalidOptionError, OffsetRange, OffsetsTrimmedError, Table, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.archive import maintenance
from streamhouse_spark.log.archive.pages import find_usable_archive, first_change_offsets
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS
from streamhouse_spark.read.offset_scan import plan_ranges
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows

HOUR_MS = 3_600_000
NUM_STEPS = 40
KEEPING = {
    "table.changelog.retention": "40 h",
    "table.log.ttl": "5 h",
    "table.datalake.auto-compaction": "false",
}
STEPS = {
    "upsert": 6,
    "together": 2,
    "partial": 2,
    "delete": 2,
    "maintain": 3,
    "age": 4,
    "archive": 2,
    "pass": 1,
    "tier": 1,
    "merge": 1,
    "add": 1,
    "rename": 1,
    "drop": 1,
    "widen": 1,
    "jump": 1,
    "truncate": 0.2,
}
"""Step → how often it comes."""


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
        state, starts = self.table.refresh(), first_change_offsets(self.table.state)
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
        newest, held = self.table.state.version, find_usable_archive(self.table.state)
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
    from streamhouse_spark.table.system_views import open_view

    return open_view(table, "changelog").to_arrow().to_pylist()


def first_there(table: Table) -> int:
    """Return the first commit from which on CHANGES can be read: later ones can be, too."""
    newest = table.refresh().version
    low, high = 1, newest + 1
    while low < high:
        middle = (low + high) // 2
        try:
            changes(table, middle, newest)
            high = middle
        except (OffsetsTrimmedError, InvalidOptionError):  # the latter of a truncation among them
            low = middle + 1
    return low


def done(model: Model, step: str, chosen: random.Random) -> None:  # noqa: C901 - a case a step
    table = model.table
    value = next(c.name for c in table.state.schema.columns if c.id == 2)

    def rows() -> list[dict[str, Any]]:
        keys = chosen.sample(range(7), chosen.randint(1, 4))
        return [{"id": key, value: chosen.randint(0, 3)} for key in keys]

    match step:
        case "upsert":
            table.upsert(rows())
        case "together":
            together(table, [("upsert", rows()), ("upsert", rows())], model.number)
        case "partial":
            table.upsert([{"id": row["id"], "name": chosen.choice("pq")} for row in rows()], columns=["id", "name"])
        case "delete":
            table.delete([chosen.randint(0, 6)])
        case "maintain":
            table.maintain()
        case "age":
            model.clock.advance(6 * HOUR_MS)
            if table.has_lake:
                tier(table)
            table.maintain()
        case "archive":
            maintenance.update_archive(table.log, table.storage, table.world, table.segment_options(), 40 * HOUR_MS)
        case "pass":
            model.clock.advance(chosen.choice([1, 20]) * HOUR_MS)
        case "tier" if table.has_lake:
            tier(table)
        case "merge":
            compact_inline_rows(table)
        case "add" | "rename" | "drop" | "widen":
            change_columns(table, step, model.number)
        case "jump":
            model.clock.jump(chosen.choice([-HOUR_MS, HOUR_MS]))
        case "truncate":
            gone, before = sorted(map(_text, table.to_arrow().to_pylist())), table.state.version
            table.truncate()
            if table.refresh().version == before:
                assert not gone
                return
            model.feed, model.begun = {}, table.state.version
            found = changes(table, model.begun, model.begun)
            assert {row["_change_type"] for row in found} <= {"delete"}
            names = table.state.schema.names
            assert sorted(_text({name: row[name] for name in names}) for row in found) == gone


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


@pytest.mark.parametrize(
    ("seeds", "lake", "pages_to_join"),
    [
        (range(1), "true", 2),
        pytest.param(range(1, 40), "true", 2, marks=pytest.mark.long),
        pytest.param(range(40, 80), "false", 2, marks=pytest.mark.long),
        pytest.param(range(80, 100), "true", 8, marks=pytest.mark.long),
        pytest.param(range(100, 120), "false", 8, marks=pytest.mark.long),
    ],
)
def test_archived_changes_are_complete_in_any_history(monkeypatch, seeds, lake, pages_to_join):
    monkeypatch.setattr(maintenance, "PAGES_TO_JOIN", pages_to_join)
    met = Counter[str]()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as cache:
            monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", cache)
            close_tablets()
            met += run(seed, lake)
            close_tablets()
    wanted = {"reads below the log", "commits told by the archive"}
    assert wanted | ({"pages joined"} if pages_to_join == 2 else set()) <= met.keys(), "8 pages in 5 hours are too many"


def run(seed: int, lake: str) -> Counter[str]:
    """Make a history, and compare the feed with the model after each step. Returns what it met."""
    clock, chosen, met = SimClock(), random.Random(seed), Counter[str]()
    warehouse = Warehouse("wh", storage=MemoryStorage(sim_world(0, clock)), world=sim_world(1, clock))
    properties = {**KEEPING, "table.datalake.enabled": lake}
    columns = "id BIGINT, n INT, name STRING"
    table = warehouse.create_table("d.t", columns, primary_key=["id"], buckets=2, properties=properties)
    model = Model(table, clock)
    steps = chosen.choices(list(STEPS), list(STEPS.values()), k=NUM_STEPS)
    for model.number, step in enumerate(steps):
        try:
            done(model, step, chosen)
            model.look()
            model.check()
        except Exception as error:
            error.add_note(f"seed {seed}, lake {lake}, steps {steps[: model.number + 1]}")
            raise
        state, held = table.state, find_usable_archive(table.state)
        met["reads below the log"] += any(held.starts.get(b, 0) < log.start for b, log in state.buckets.items() if held)
        met["pages joined"] += any(page.level for page in held.pages)
        met["commits told by the archive"] += bool(held) and held.first_commit <= held.last_commit
    return +met
