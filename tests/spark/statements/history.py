"""One random history: statements, upkeep and others' rows on a few tables, compared with the reference on the way."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from changes_replayed import ADDS, changes
from spark.differential.compare import configured
from spark.statements import upkeep
from spark.statements.changes import altered, replaced
from spark.statements.columns import MARK, Column, Form, ddl_in_spark, first_columns, in_reference, random_form
from spark.statements.company import Appender, Keeper, beside
from spark.statements.grammar import SKIPPED, TWO_ROWS, Grammar, Statement, Target
from spark.statements.lakehouse import (
    COLUMNS_CHANGED,
    CONFLICT,
    GONE,
    NO_CLONE,
    NOT_TOLD,
    Lakehouse,
    reason_of,
    rows_of,
)
from spark.statements.reference import Reference, Rows, exact
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError

STEPS = 14
VERSIONS_KEPT = 6
TABLES_MAX = 3
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Each statement is another one, and to compile it takes longer than to run it."""
QUICK_SHARE = 0.8


class DifferenceError(AssertionError):
    """The tables are not those of the reference; the text says all about it."""


@dataclass
class Figures:
    """Counts of one history, or of many."""

    statements: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    upkeep: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        for name in ("statements", "refusals", "upkeep", "checks"):
            getattr(self, name).update(getattr(other, name))


@dataclass
class Version:
    """A version whose rows the reference still has, as the table ``copy``."""

    columns: tuple[Column, ...]
    changes: int
    copy: str
    tag: str | None = None


@dataclass
class Subject:
    """A table, as the reference knows it."""

    name: str
    columns: Sequence[Column]
    form: Form
    changes: int = 0
    """How often its columns changed."""
    appended: int = 0
    versions: dict[int, Version] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


class History:
    """A seed gives a history; steps that are left out change no other step's choices."""

    def __init__(
        self,
        house: Lakehouse,
        seed: int,
        *,
        steps: int = STEPS,
        without: Collection[int] = (),
        company: bool = True,
        form: Form | None = None,
        bias: Mapping[str, int] | None = None,
    ) -> None:
        """``bias`` has other weights of kinds of steps and of upkeep."""
        self.bias = bias or {}
        self.house, self.seed, self.steps, self.without, self.company = house, seed, steps, without, company
        self.reference, self.figures = Reference(), Figures()
        self.script: list[str] = []
        upkeep.CLOCK.ahead_ms = 0
        rng = Random(f"{seed}")
        first = form or random_form(rng)
        self.subjects = [Subject(f"h{seed}_0", first_columns(first), first)]
        self.num_made = 1

    def run(self) -> None:
        """Raises `DifferenceError`."""
        step = -1
        settings = QUICK if Random(f"{self.seed} settings").random() < QUICK_SHARE else {}
        try:
            with configured(self.house.spark, settings):
                for step in range(-1, self.steps + 1):
                    self._numbered(step)
        except Exception as error:
            shown = str(error) if isinstance(error, DifferenceError) else f"{type(error).__name__}: {error}"
            raise DifferenceError(self._story(step, shown[:3000])) from error
        finally:
            self.reference.close()
            with contextlib.suppress(StreamhouseError):
                self.house.forget([subject.name for subject in self.subjects])

    def _numbered(self, step: int) -> None:
        if step == -1:
            self._create(self.subjects[0])
        elif step == self.steps:
            self._finish(Random(f"{self.seed} end"))
        elif step not in self.without:
            self._step(Random(f"{self.seed} {step}"))

    def _story(self, step: int, text: str) -> str:
        lines = "\n".join(f"  {line}" for line in self.script)
        return (
            f"seed {self.seed}, step {step} of {self.steps}: {text}\n"
            f"replay: make differential HISTORIES=1 SEED={self.seed} STEPS={self.steps}\n{lines}"
        )

    # -- steps ----------------------------------------------------------------------------------------------------

    def _create(self, subject: Subject) -> None:
        text = f"CREATE TABLE {self.house.sql_name(subject.name)} {ddl_in_spark(subject.columns, subject.form)}"
        self.script.append(text)
        self.house.spark.sql(text)
        self.reference.create(subject.name, subject.columns)
        rng = Random(f"{self.seed} rows")
        self._perform(subject, Grammar(rng, self._target(subject), guarded=False).insert(), rng, company=False)

    def _step(self, rng: Random) -> None:
        subject = rng.choice(self.subjects)
        kinds: dict[str, tuple[Callable[[Subject, Random], None], int]] = {
            "statement": (self._statement, 50),
            "alter": (self._alter, 9),
            "replace": (self._replace, 2),
            "rollback": (self._roll_back, 6),
            "tag": (self._tag, 3),
            "clone": (self._clone, 4),
            "upkeep": (self._upkeep, 26),
        }
        kinds[self._chosen(rng, {kind: weight for kind, (_, weight) in kinds.items()})][0](subject, rng)
        self._check(subject, rng)

    def _chosen(self, rng: Random, weights: Mapping[str, int]) -> str:
        weights = {kind: self.bias.get(kind, weight) for kind, weight in weights.items()}
        return rng.choices(list(weights), list(weights.values()))[0]

    def _target(self, subject: Subject) -> Target:
        return Target(tuple(subject.columns), subject.form, other=len(self.subjects) > 1)

    def _statement(self, subject: Subject, rng: Random) -> None:
        company = self.company and rng.random() < 0.25
        statement = Grammar(rng, self._target(subject), guarded=company).statement()
        self._perform(subject, statement, rng, company=company and not statement.alone)

    def _alter(self, subject: Subject, rng: Random) -> None:
        statement = altered(rng, self._target(subject))
        if statement is not None:
            company = self.company and rng.random() < 0.2
            self._perform(subject, statement, rng, company=company and not statement.alone)

    def _replace(self, subject: Subject, rng: Random) -> None:
        self._perform(subject, replaced(rng, self._target(subject)), rng, company=False)

    def _roll_back(self, subject: Subject, rng: Random) -> None:
        if not subject.versions:
            return
        number = rng.choice(sorted(subject.versions))
        version = subject.versions[number]
        statement = Statement(
            "rollback",
            f"CALL streamhouse.system.rollback_to_version('{self.house.full_name(subject.name)}', {number})",
            ("DELETE FROM {t}", f"INSERT INTO {{t}} FROM {version.copy}") if version.changes == subject.changes else (),
            may=(GONE, NOT_TOLD),
            must=COLUMNS_CHANGED if version.changes != subject.changes else None,
            gone="TRUE",
            way=rng.choice(["sql", "rollback"]),
            where=str(number),
        )
        self._perform(subject, statement, rng, company=self.company and rng.random() < 0.2)

    def _tag(self, subject: Subject, rng: Random) -> None:
        if not subject.versions:
            return
        number = rng.choice(sorted(subject.versions))
        version, tag = subject.versions[number], f"tag{len(self.script)}"
        if version.tag is None:
            self.script.append(f"create_tag({subject.name}, {tag}, {number})")
            with self._refusing(GONE):
                self.house.table(subject.name).create_tag(tag, number)
                version.tag = tag
        else:
            self.script.append(f"drop_tag({subject.name}, {version.tag})")
            self.house.table(subject.name).drop_tag(version.tag)
            version.tag = None

    def _clone(self, subject: Subject, rng: Random) -> None:
        if len(self.subjects) >= TABLES_MAX:
            return
        made = Subject(f"h{self.seed}_{self.num_made}", subject.columns, subject.form, appended=subject.appended)
        self.num_made += 1
        number, version = None, None
        if subject.versions and rng.random() < 0.4:
            number = rng.choice(sorted(subject.versions))
            version = subject.versions[number]
            made.columns = version.columns
        names = f"'{self.house.full_name(subject.name)}', '{self.house.full_name(made.name)}'"
        text = f"clone({names}{'' if number is None else f', {number}'})"
        self.script.append(f"CALL streamhouse.system.{text}")
        in_sql = rng.random() < 0.5
        with self._refusing(GONE, COLUMNS_CHANGED, *([NO_CLONE] if subject.form.lake == "paimon" else [])):
            if in_sql:
                self.house.call(text)
            else:
                self.house.clone(subject.name, made.name, number)
            self.reference.copy(version.copy if version is not None else subject.name, made.name)
            self.reference.set_defaults(made.name, made.columns)
            self.subjects.append(made)
            self.figures.statements["clone"] += 1
            self._compare("a clone", made, self.house.python_rows(made.name, made.names))

    def _upkeep(self, subject: Subject, rng: Random) -> None:
        kind = self._chosen(rng, {kind: weight for kind, (_, weight) in upkeep.KINDS.items()})
        self.script.append(f"{kind}({subject.name})")
        reason = upkeep.done(self.house, rng, subject.name, kind)
        self.figures.upkeep[f"{kind}: {reason}" if reason else kind] += 1
        if kind == "tier":
            self._compare("Table.lake", subject, self.house.lake_readers(subject.name, subject.names)["Table.lake"]())

    @contextlib.contextmanager
    def _refusing(self, *reasons: str) -> Iterator[None]:
        """Let the block end early where it is refused for one of these reasons."""
        try:
            yield
        except Exception as error:
            reason = reason_of(error)
            if reason not in reasons:
                raise
            self.figures.refusals[str(reason)] += 1

    # -- statements -----------------------------------------------------------------------------------------------

    def _perform(self, subject: Subject, statement: Statement, rng: Random, *, company: bool) -> None:
        """Run a statement on both sides, beside others where there is ``company``; after a conflict again, alone."""
        others = [one.name for one in self.subjects if one is not subject]
        other = others[0] if others else None
        must = set(self.reference.begin(subject.name, statement, other, guarded=company))
        if SKIPPED in must:
            self.reference.undo()
            return
        must |= {TWO_ROWS} if self.reference.has_twice(subject.name, subject.form.key) else set()
        must |= {statement.must} if statement.must else set()
        text = self.house.text(statement, subject.name, other, guarded_below=MARK if company else None)
        self.script.append(f"{self._way(statement)}{text}{'  -- beside others' if company else ''}")
        appended, reason = self._run(subject, statement, text, rng, company=company)
        allowed = must | set(statement.may) | ({CONFLICT} if company else set())
        if reason is None and must:
            raise DifferenceError(f"it was taken, and has to be refused: {', '.join(sorted(must))}")
        if reason is not None and reason not in allowed:
            raise DifferenceError(f"it was refused ({reason}), and has to be taken")
        if reason is None:
            self._keep(subject, statement, appended)
        else:
            self.reference.undo()
            self.reference.add(subject.name, appended)
            self.figures.refusals[reason] += 1
        if reason == CONFLICT:
            self._compare("after a conflict", subject, self.house.python_rows(subject.name, subject.names))
            self._perform(subject, statement, rng, company=False)

    def _way(self, statement: Statement) -> str:
        if statement.way == "sql":
            return "(dynamic) " if statement.dynamic else ""
        return f"{statement.way}({statement.where}) of "

    def _run(
        self, subject: Subject, statement: Statement, text: str, rng: Random, *, company: bool
    ) -> tuple[list[dict[str, Any]], str | None]:
        if not company:
            return [], self.house.run(statement, text, subject.name)
        name = self.house.full_name(subject.name)
        appender = Appender(self.house.url, name, subject.appended, Random(rng.random()))
        keepers = [Keeper(self.house.url, name, Random(rng.random()))] if rng.random() < 0.6 else []
        try:
            with beside(appender, *keepers):
                reason = self.house.run(statement, text, subject.name)
        finally:
            subject.appended += len(appender.rows)
        self.figures.statements["beside others"] += 1
        self.figures.checks["rows of others"] += len(appender.rows)
        return appender.rows, reason

    def _keep(self, subject: Subject, statement: Statement, appended: list[dict[str, Any]]) -> None:
        """Make a statement's meaning the reference's. Rows of others in a part that it replaced are there where they
        came behind it: the last of them.
        """
        self.reference.keep()
        before = subject.form
        if statement.columns is not None:
            subject.columns = statement.columns
            subject.changes += 1
        if statement.form is not None:
            subject.form = statement.form
            self._forget_versions(subject)
        self.reference.add(subject.name, appended)
        if statement.gone is not None and appended:
            inside = self.reference.marked(subject.name, in_reference(statement.gone))
            came = [row["id"] for row in appended if row["id"] in inside]
            there = {key[0][1] for key in self.house.python_rows(subject.name, subject.names)}
            kept = [number for number in came if number in there]
            if kept != came[len(came) - len(kept) :]:
                raise DifferenceError(f"rows of others came in the order {came}, and {kept} of them are there")
            self.reference.remove(subject.name, [number for number in came if number not in there])
        self.figures.statements[f"{statement.kind}, {'keyed' if before.key else 'log'}, {before.lake}"] += 1

    def _forget_versions(self, subject: Subject) -> None:
        for version in subject.versions.values():
            self.reference.drop(version.copy)
        subject.versions.clear()

    # -- checks ---------------------------------------------------------------------------------------------------

    def _compare(
        self, reader: str, subject: Subject, found: Rows, expected: Rows | None = None, *, detail: str = ""
    ) -> None:
        self.figures.checks[reader] += 1
        expected = self.reference.rows(subject.name) if expected is None else expected
        if found != expected:
            missing, strange = expected - found, found - expected
            raise DifferenceError(
                f"{reader} of {subject.name}{detail}: expected {expected.total()} rows, found {found.total()}\n"
                f"  missing {missing.total()}: {list(missing)[:4]}\n  strange {strange.total()}: {list(strange)[:4]}"
            )

    def _check(self, subject: Subject, rng: Random) -> None:
        self._compare("Table.to_arrow", subject, self.house.python_rows(subject.name, subject.names))
        if rng.random() < 0.35:
            self._compare("SELECT *", subject, self.house.spark_rows(subject.name, subject.names))
        if rng.random() < 0.35:
            self._query(subject, rng)
        if subject.versions and rng.random() < 0.3:
            self._check_version(subject, rng.choice(sorted(subject.versions)), rng)
        self._remember(subject)

    def _query(self, subject: Subject, rng: Random) -> None:
        of = Grammar(rng, self._target(subject), guarded=False).of("t.")
        where = rng.choice([of.condition(2), of.simple(), "TRUE"])
        chosen = [f"t.{c.name}" for c in subject.columns if rng.random() < 0.4]
        items = rng.choice(["count(*)", ", ".join(chosen or ["t.id"])])
        found = self.house.query(subject.name, items, where)
        expected = self.reference.rows(subject.name, in_reference(where), items)
        self._compare("SELECT with conditions", subject, found, expected, detail=f": SELECT {items} WHERE {where}")

    def _check_version(self, subject: Subject, number: int, rng: Random) -> None:
        """An earlier version has its rows, or is said to be gone; a tagged one is there."""
        version = subject.versions[number]
        names = [column.name for column in version.columns]
        name = f"'{version.tag}'" if version.tag else str(number)
        expected = self.reference.rows(version.copy)
        with self._refusing(*([] if version.tag else [GONE])):
            found = self.house.spark_rows(subject.name, names, tail=f" VERSION AS OF {name}")
            self._compare("VERSION AS OF", subject, found, expected)

    def _remember(self, subject: Subject) -> None:
        number = self.house.version(subject.name)
        if number in subject.versions:
            return
        copy = f"{subject.name}_v{number}"
        self.reference.copy(subject.name, copy)
        subject.versions[number] = Version(tuple(subject.columns), subject.changes, copy)
        loose = [n for n, version in sorted(subject.versions.items()) if version.tag is None]
        for old in loose[: max(0, len(loose) - VERSIONS_KEPT)]:
            self.reference.drop(subject.versions.pop(old).copy)

    def _finish(self, rng: Random) -> None:
        """Every reader of the table and of the lake's part, earlier versions, and the changes between them."""
        for subject in self.subjects:
            self._compare("SELECT *", subject, self.house.spark_rows(subject.name, subject.names))
            self._query(subject, rng)
            for number in sorted(subject.versions)[-3:]:
                self._check_version(subject, number, rng)
            self._check_changes(subject)
            self._check_changelog(subject)
            if rng.random() < 0.25:
                self._check_stream(subject)
            self.script.append(f"tier({subject.name})")
            upkeep.done(self.house, rng, subject.name, "tier")
            for reader, read in self.house.lake_readers(subject.name, subject.names).items():
                try:
                    self._compare(reader, subject, read())
                except DifferenceError:
                    raise
                except Exception as error:
                    raise DifferenceError(f"{reader} of {subject.name}: {type(error).__name__}: {error}") from error

    def _check_changes(self, subject: Subject) -> None:
        """The changes between two versions lead from the rows of one to those of the other, or are not told."""
        same = [n for n, version in sorted(subject.versions.items()) if version.changes == subject.changes]
        table = self.house.table(subject.name)
        for first, last in pairwise(same):
            try:
                found = changes(table, first + 1, last)
            except InvalidOptionError:
                self.figures.refusals["changes that are not told"] += 1
                continue
            except StreamhouseError as error:
                if reason_of(error) != GONE:
                    raise
                self.figures.refusals[GONE] += 1
                continue
            rows = self.reference.rows(subject.versions[first].copy)
            for change in found:
                rows[tuple(exact(change[name]) for name in subject.names)] += ADDS[change["_change_type"]]
            if min(rows.values(), default=0) < 0:
                raise DifferenceError(f"changes {first} to {last} of {subject.name} take rows away that were not there")
            self._compare("CHANGES", subject, +rows, self.reference.rows(subject.versions[last].copy))

    def _check_changelog(self, subject: Subject) -> None:
        """All changes of the keys, where the log still has them, lead from nothing to the rows of now."""
        state = self.house.table(subject.name).refresh()
        if not subject.form.key or subject.form.images != "full":
            return
        if any(log.start > state.first_offset(bucket) for bucket, log in state.buckets.items()):
            return
        changes = self.house.changelog(subject.name)
        self._compare("$changelog", subject, _replayed(changes, subject.names))

    def _check_stream(self, subject: Subject) -> None:
        """A stream from the beginning has the rows of now; of a table with a key, changes that lead to them."""
        if not subject.form.key:
            state = self.house.table(subject.name).refresh()
            if state.deletions and any(log.start > state.first_offset(b) for b, log in state.buckets.items()):
                return  # rows that were trimmed are not read by their offsets once some were deleted
            self._compare("a stream", subject, rows_of(self.house.streamed(subject.name, ""), subject.names))
        elif subject.form.images == "full":
            changes = self.house.streamed(subject.name, "$changelog").to_pylist()
            self._compare("a stream of changes", subject, _replayed(changes, subject.names))


def _replayed(changes: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Rows:
    rows: Rows = Counter()
    for change in changes:
        sign = -1 if change["_change_type"] in ("update_before", "delete") else 1
        rows[tuple(exact(change[name]) for name in names)] += sign
    return Counter({row: count for row, count in rows.items() if count})
