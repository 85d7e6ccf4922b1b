"""One random history: sources change, views are refreshed, and each view is what the versions that it names say.

A refresh may die at any call of the store, or be told a lie by it; others may write, and refresh the same view, between
its decision and its commit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.errors import PySparkException

from faults.faulty_storage import Crash, Fault
from faults.sequential import one_thing_at_a_time
from streamhouse_spark import InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError, StreamhouseError, Table
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.table import refresh_commit
from streamhouse_spark.table.refresh_commit import last_refresh
from streamhouse_spark.views import local_executor, local_reads, refresh
from streamhouse_spark.views.ivm import aggregates
from view_histories import tables
from view_histories.duck import in_duckdb, reference
from view_histories.grammar import Grammar, Kinds, Query
from view_histories.house import DATABASE, House, create_and_refresh
from view_histories.tables import Source

STEPS = 6
REFUSED_MAX = 20
COMMITS_MAX = 400
"""No refresh makes so many: its steps would never end."""
CALLS_MAX = 60
"""Most refreshes ask the store less often."""
FAULTS = 0.3
STEPPED = 0.4
"""The share of views whose refreshes take few rows a commit."""
COMPANY = 0.25
Rows = Counter[tuple[Any, ...]]


class DifferenceError(AssertionError):
    """A view is not the answer; the text says all about it."""


@dataclass
class Figures:
    """Counts of one history, or of many."""

    deeds: Counter[str] = field(default_factory=Counter)
    refreshes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    queries: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        for name in ("deeds", "refreshes", "faults", "checks", "queries"):
            getattr(self, name).update(getattr(other, name))


class View:
    """A view, and its answers at the versions of its own table, for views of it."""

    def __init__(self, name: str, query: Query, sources: dict[str, Source | View]) -> None:
        self.name, self.query, self.sources = name, query, sources
        self._answers: dict[tuple[str, int], pa.Table] = {}

    @property
    def kinds(self) -> Kinds:
        return self.query.columns

    def text(self) -> str:
        return self.query.text.format(**{name: f"streamhouse.{source.name}" for name, source in self.sources.items()})

    def note(self, uuid: str, version: int, answer: pa.Table) -> None:
        self._answers[uuid, version] = answer

    def answers(self) -> list[tuple[int, pa.Table]]:
        return [(version, answer) for (_, version), answer in self._answers.items()]

    def rows_at(self, uuid: str, version: int) -> pa.Table:
        known = max((v for u, v in self._answers if u == uuid and v <= version), default=None)
        if known is None and version == 1:  # the table was made, and no refresh has committed
            return tables.as_arrow([], self.kinds)
        assert known is not None, f"{self.name}: version {version} was never seen"
        return self._answers[uuid, known]


class History:
    """A seed gives a history; steps that are left out change no other step's choices."""

    def __init__(
        self,
        house: House,
        *,
        steps: int = STEPS,
        without: Collection[int] = (),
        query: Query | None = None,
        stepped: float = STEPPED,
    ) -> None:
        """``query`` takes the place of the first random one; ``stepped`` is the share of views that go in steps."""
        self.house, self.steps, self.without = house, steps, without
        self._given, self._stepped = query, stepped
        self.seed = house.seed
        self.figures = Figures()
        self.script: list[str] = []
        self._reference = reference(house.time_zone)
        self._sources: list[Source] = []
        self._views: list[View] = []
        self._answers: dict[tuple[str, Lineage], Rows] = {}

    def run(self) -> None:
        """Raises `DifferenceError`."""
        step = -1
        try:
            with (
                one_thing_at_a_time(),
                self.house.open(),
                mock.patch.object(refresh, "commit_step", typed_commit),
            ):
                for step in range(-1, self.steps + 1):
                    self._numbered(step)
        except Exception as error:
            shown = str(error) if isinstance(error, DifferenceError) else f"{type(error).__name__}: {error}"
            raise DifferenceError(self._story(step, shown[:4000])) from error
        finally:
            self._reference.close()

    def _story(self, step: int, text: str) -> str:
        lines = "\n".join(f"  {line}" for line in self.script)
        on_spark = " ARGS='--spark-each 1'" if self.house.spark is not None else ""
        return (
            f"seed {self.seed}, step {step} of {self.steps}: {text}\n"
            f"replay: make view-histories HISTORIES=1 SEED={self.seed}{on_spark}\n{lines}"
        )

    def _numbered(self, step: int) -> None:
        if step == -1:
            self._begin(Random(f"{self.seed} begin"))
        elif step == self.steps:
            self._finished(Random(f"{self.seed} end"))
        elif step not in self.without:
            self._step(Random(f"{self.seed} {step}"))

    # -- steps ----------------------------------------------------------------------------------------------------

    def _begin(self, rng: Random) -> None:
        self._sources = [Source(self.house, rng, name) for name in ("o", "k")]
        for source in self._sources:
            self.script.append(f"{source.name}: {source.table.refresh().properties}, {source.buckets} buckets")
            for _ in range(rng.randint(0, 3)):
                self._deed(source, rng, {tables.write: 1})
        named: dict[str, Source | View] = dict(zip(("o", "k"), self._sources, strict=True))
        first = self._view(rng, "v", named, self._given)
        if rng.random() < 0.5 and any(kind != "avg" for kind in first.kinds.values()):
            others = rng.sample(["o", "k"], rng.choice([0, 1]))
            self._view(rng, "w", {"v": first, **{name: named[name] for name in others}})
        if rng.random() < 0.3:
            self._view(rng, "x", named)

    def _view(self, rng: Random, name: str, sources: dict[str, Source | View], given: Query | None = None) -> View:
        """Make a view of a random query. One that cannot be kept is refused before anything is there."""
        for _ in range(REFUSED_MAX):
            query = given or Grammar(rng, {name: source.kinds for name, source in sources.items()}).query()
            used = {name: source for name, source in sources.items() if f"{{{name}}}" in query.text}
            view = View(f"{DATABASE}.{name}_{self.seed}", query, used)
            process = self.house.process
            mode = "full" if rng.random() < 0.05 else "incremental"
            step_rows = self._step_rows(name) if mode == "incremental" else None
            properties = {"bucket.num": str(rng.choice([1, 2])), "table.log.ttl": "1h"}
            self.script.append(f"{view.name} ({mode}, {step_rows} rows a step): {view.text()}")
            try:
                with mock.patch.object(refresh, "commit_step", ending(self._stepped_to(view))):
                    create_and_refresh(
                        process.session, process.connection, view.name, view.text(), "1min", mode, properties, step_rows
                    )
            except InvalidOptionError as error:
                assert self.house.others.find_table(view.name) is None, "a view that was refused is there"
                self.script.append(f"  refused: {error}")
                self.figures.queries["refused"] += 1
                continue
            self._views.append(view)
            self.figures.queries[f"kept, {mode}"] += 1
            self._check(view, newest=True)
            return view
        raise AssertionError(f"{REFUSED_MAX} queries in a row were refused")

    def _step_rows(self, name: str) -> int | None:
        """Choose for some views how many rows a commit takes."""
        rng = Random(f"{self.seed} steps of {name}")
        return rng.choice([1, 2, 3, 5, 8]) if rng.random() < self._stepped else None

    def _step(self, rng: Random) -> None:
        for _ in range(rng.randint(1, 3)):
            self._deed(rng.choice(self._sources), rng, tables.ROWS)
        if rng.random() < 0.4:
            self._upkeep(rng)
        for view in self._views:
            if rng.random() < 0.85:
                self._refresh(view, rng)

    def _deed(self, source: Source, rng: Random, deeds: Any) -> None:
        name = tables.done(source, rng, deeds)
        self.figures.deeds[name] += 1
        self.script.append(f"{name}({source.name}): {len(source.rows)} rows")

    def _upkeep(self, rng: Random) -> None:
        """Of a source, or of the table of a view: rows stay as they are, and lie elsewhere."""
        if rng.random() < 0.7:
            self._deed(rng.choice(self._sources), rng, tables.UPKEEP)
            return
        view = rng.choice(self._views)
        table = self.house.table(view.name)
        kind = rng.choice(["tier", "maintain", "trim"])
        self.script.append(f"{kind}({view.name})")
        if kind != "maintain":
            tables.tier(table)
        if kind == "trim":
            self.house.pass_ms(2 * tables.HOUR_MS)
        if kind != "tier":
            table.maintain()
        self.figures.deeds[f"{kind} of a view"] += 1

    # -- refreshes ------------------------------------------------------------------------------------------------

    def _refresh(self, view: View, rng: Random) -> None:
        """Refresh a view, in one of the ways, perhaps with a fault and in company; then it is what it says it is."""
        way = rng.choice(list(WAYS))
        fault = rng.choice(list(Fault)) if rng.random() < FAULTS else None
        call = rng.randrange(CALLS_MAX)
        moments = [m for m in ("decided", "computed") if rng.random() < COMPANY]
        self.script.append(f"refresh {view.name} {way}{f', {fault.value} at call {call}' if fault else ''}")
        process, before = self.house.process, len(self.house.process.storage.trace)
        outcome = "unchanged"
        with ExitStack() as stack:
            stack.enter_context(WAYS[way]())
            company = stack.enter_context(self._last_group_size(view, rng, moments))
            if fault is not None:
                stack.enter_context(process.failing(call, fault))
            try:
                report = process.refresher(view.name)
                if report.steps > 1:
                    self.figures.refreshes["in steps"] += 1
                    self.figures.refreshes["steps"] += report.steps
                if report.changed:
                    outcome = "whole" if report.whole_because else "by changes"
                    self.script.append(f"  {report}")
            except Crash:
                outcome = "crashed"
            except Exception as error:
                was_injected = fault is not None and len(process.storage.trace) > before + call
                if not was_injected or not isinstance(error, StreamhouseError | PySparkException):
                    raise
                outcome = "failed"
                self.script.append(f"  {type(error).__name__}: {str(error)[:200]}")
        self.figures.refreshes[outcome] += 1
        self.figures.refreshes[f"in company, {outcome}"] += bool(company)
        if fault is not None and len(process.storage.trace) > before + call:
            self.figures.faults[f"{fault.value}, then {outcome}"] += 1
        if process.is_dead:
            self.house.restart(elsewhere=rng.random() < 0.5)
        self._check(view, newest=outcome not in ("crashed", "failed") and not company)

    @contextmanager
    def _last_group_size(self, view: View, rng: Random, moments: Collection[str]) -> Iterator[list[str]]:
        """Let others do something behind the decision which versions are read, and before the commit, once each."""
        left, happened = list(moments), []

        def at(moment: str) -> None:
            if moment in left and not self.house.process.is_dead:
                left.remove(moment)
                happened.append(moment)
                self.script.append(f"  {moment}, and meanwhile")
                self._meanwhile(view, rng, moment)

        def next_step(*args: Any, **kwargs: Any) -> Any:
            step = refresh_commit.make_next_step(*args, **kwargs)
            if step is not None:
                at("decided")
            return step

        def commit_step(view_: Any, step: Any, rows: pa.Table, gone: Any) -> bool:
            at("computed")
            return self._stepped_to(view)(view_, step, rows, gone)

        with mock.patch.multiple(refresh, make_next_step=next_step, commit_step=ending(commit_step)):
            yield happened

    def _stepped_to(self, view: View) -> Any:
        """A commit behind which the view is what it says, and is remembered for views of it."""

        def commit(view_: Any, step: Any, rows: pa.Table, gone: Any) -> bool:
            if not typed_commit(view_, step, rows, gone):
                return False
            if not self.house.process.is_dead:
                self.script.append(f"  step to {_versions(step.new)}")
                self.figures.refreshes["steps below offsets"] += any(source.is_cut for source in step.new.sources)
                self._check(view, newest=False)
            return True

        return commit

    def _meanwhile(self, view: View, rng: Random, moment: str) -> None:
        if rng.random() < 0.3:
            second = self.house.second()
            try:
                with (
                    mock.patch.multiple(
                        refresh,
                        make_next_step=refresh_commit.make_next_step,
                        commit_step=ending(self._stepped_to(view)),
                    ),
                    self.house.another_host(),
                ):
                    self.script.append(f"    another refresh: {second.refresher(view.name)}")
            finally:
                second.close()
            self._check(view, newest=True)
        else:
            self._deed(rng.choice(self._sources), rng, tables.ROWS if rng.random() < 0.8 else tables.UPKEEP)

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check(self, view: View, *, newest: bool) -> None:
        """The view's rows are the query's over the versions that it names; ``newest``: there are no newer rows."""
        table = self.house.table(view.name)
        state = table.refresh()
        _, lineage = last_refresh(state)
        if lineage is None:
            assert not table.to_arrow().num_rows, f"{view.name} has rows of no version"
            return
        answer = self._answer(view, lineage)
        found = table.to_arrow().select(list(view.kinds))
        self._compare(f"{view.name} at {_versions(lineage)}", counted(found), answer)
        self.figures.checks["over the versions that are named"] += 1
        view.note(state.table_uuid, state.version, _as_kinds(found, view.kinds))
        if newest:
            self._check_newest(view, lineage, counted(found))

    def _check_newest(self, view: View, lineage: Lineage, found: Rows) -> None:
        named = {source.name: source for source in lineage.sources}
        for source in view.sources.values():
            state, its = self.house.table(source.name).refresh(), named[source.name]
            if (its.uuid, its.ends, its.is_cut) != (state.table_uuid, state.ends, False):
                raise DifferenceError(f"{view.name} names {its}, and {source.name} ends at {state.ends}")
        over = {
            name: source.rows_at(named[source.name].uuid, self._newest(source)) for name, source in view.sources.items()
        }
        self._compare(f"{view.name} over the newest rows", found, self._reference_rows(view, over))
        self.figures.checks["over the newest versions"] += 1
        if self.house.spark is not None:
            shown = ", ".join(f"`{name}`" for name in view.kinds)
            of_spark = self.house.spark.sql(f"SELECT {shown} FROM ({view.text()}) q").toArrow()
            self._compare(f"{view.name} beside Spark's answer", found, counted(of_spark))
            self.figures.checks["beside Spark's own answer"] += 1

    def _newest(self, source: Source | View) -> int:
        return self.house.table(source.name).refresh().version

    def _answer(self, view: View, lineage: Lineage) -> Rows:
        known = self._answers.get((view.name, lineage.to_text()))
        if known is None:
            at = {source.name: source for source in lineage.sources}
            over = {name: _rows_of(source, at[source.name]) for name, source in view.sources.items()}
            known = self._answers[view.name, lineage.to_text()] = self._reference_rows(view, over)
        return known

    def _reference_rows(self, view: View, over: dict[str, pa.Table]) -> Rows:
        for name, rows in over.items():
            self._reference.register(name, rows)
        text = in_duckdb(view.query.text.format(**{name: name for name in over}))
        return counted(self._reference.execute(text).to_arrow_table())

    def _compare(self, about: str, found: Rows, expected: Rows) -> None:
        if found != expected:
            strange, missing = dict(found - expected), dict(expected - found)
            raise DifferenceError(f"{about}: strange {strange}, missing {missing}, of {expected.total()} rows")

    def _finished(self, rng: Random) -> None:
        """All is quiet: each view is the answer over its sources, again and again, and older versions stay right."""
        if self.house.process.is_dead:
            self.house.restart(elsewhere=True)
        for view in self._views:
            with mock.patch.object(refresh, "commit_step", ending(self._stepped_to(view))):
                self.script.append(f"refresh {view.name}: {self.house.process.refresher(view.name)}")
            self._check(view, newest=True)
        for view in self._views:
            version = self.house.table(view.name).refresh().version
            report = self.house.process.refresher(view.name)
            if report.changed or self.house.table(view.name).refresh().version != version:
                raise DifferenceError(f"{view.name}: a refresh without new rows made a commit: {report}")
            self._check_older(view, rng)

    def _check_older(self, view: View, rng: Random) -> None:
        """Readers of an older version of the view, where it is kept, get the answer of then."""
        table = self.house.table(view.name)
        for version, answer in rng.sample(view.answers(), min(2, len(view.answers()))):
            try:
                found = table.read_version(version).select(list(view.kinds))
            except (OffsetsTrimmedError, SnapshotExpiredError):
                self.figures.checks["older versions that are no longer kept"] += 1
                continue
            self._compare(f"{view.name} as of {version}", counted(found), counted(answer))
            self.figures.checks["older versions"] += 1


# -- ways of a refresh ------------------------------------------------------------------------------------------------


@contextmanager
def by_the_driver() -> Iterator[None]:
    yield


@contextmanager
def by_the_engine() -> Iterator[None]:
    """The changes are added to the view's rows by SQL."""
    with mock.patch.object(local_executor, "merge_aggregates", return_value=None):
        yield


@contextmanager
def from_the_sources() -> Iterator[None]:
    """Changes are read by SQL, and groups that they touch are computed again."""
    with (
        mock.patch.object(local_reads, "LOCAL_ROWS_MAX", -1),
        mock.patch.object(aggregates.IncrementalAggregate, "of", return_value=None),
    ):
        yield


@contextmanager
def of_many_changes() -> Iterator[None]:
    """Few changes count as many, so that the whole query may be computed."""
    with mock.patch.object(local_reads, "MOSTLY_CHANGED_ROWS_MIN", 2):
        yield


@contextmanager
def told_often() -> Iterator[None]:
    """A few records without rows are enough to record the versions again."""
    with mock.patch.object(refresh_commit, "IDLE_RECORDS_MAX", 2):
        yield


WAYS = {
    "by the driver": by_the_driver,
    "by the engine": by_the_engine,
    "from the sources": from_the_sources,
    "of many changes": of_many_changes,
    "told often": told_often,
}


# -- rows -------------------------------------------------------------------------------------------------------------


def typed(rows: pa.Table, view: Table) -> pa.Table:
    """Give columns of nulls alone, which have no type in DuckDB, that of the view."""
    for place, column_field in enumerate(rows.schema):
        if pa.types.is_null(column_field.type) or not rows.num_rows:
            kind = view.state.schema.column(column_field.name).type
            rows = rows.set_column(place, column_field.name, pa.chunked_array([pa.nulls(rows.num_rows, kind)]))
    return rows


def typed_commit(view: Any, step: Any, rows: pa.Table, gone: Any) -> bool:
    return refresh_commit.commit_step(view, step, typed(rows, view), gone)


def ending(commit: Any) -> Any:
    """A commit of one refresh, which fails where it makes too many."""
    left = iter(range(COMMITS_MAX))

    def counted_commit(*given: Any) -> bool:
        if next(left, None) is None:
            raise DifferenceError("strange: the steps never end")
        return bool(commit(*given))

    return counted_commit


def counted(rows: pa.Table) -> Rows:
    return Counter(zip(*([_plain(v) for v in column.to_pylist()] for column in rows.columns), strict=True))


def _plain(value: Any) -> Any:
    """Averages are divided in other ways."""
    if isinstance(value, float) and value and math.isfinite(value):
        return round(value, 9 - math.ceil(math.log10(abs(value))))
    return value


def _as_kinds(rows: pa.Table, kinds: Kinds) -> pa.Table:
    columns = [rows.column(name).cast(_wide(tables.TYPES[kind])) for name, kind in kinds.items()]
    return pa.Table.from_arrays(columns, names=list(kinds))


def _wide(kind: pa.DataType) -> pa.DataType:
    return pa.decimal128(22, 2) if pa.types.is_decimal(kind) else kind


def _versions(lineage: Lineage) -> str:
    return ", ".join(f"{s.name} {s.version}{f' below {s.cut_text()}' if s.is_cut else ''}" for s in lineage.sources)


def _rows_of(source: Source | View, version: SourceVersion) -> pa.Table:
    if not version.is_cut:
        return source.rows_at(version.uuid, version.version)
    assert isinstance(source, Source), f"{source.name} has a primary key"
    return source.rows_below(version.uuid, version.version, version.ends)
