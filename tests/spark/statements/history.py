"""One random history: statements, upkeep and others' rows on a few tables, compared with the reference on the way."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from spark.differential.compare import configured
from spark.statements import branches, upkeep
from spark.statements.calls import called
from spark.statements.changes import altered, replaced
from spark.statements.checks import Checks
from spark.statements.columns import MARK, Column, Form, ddl_in_spark, first_columns, in_reference, random_form
from spark.statements.company import Appender, Keeper, beside
from spark.statements.grammar import SKIPPED, TWO_ROWS, Grammar, Statement, Target
from spark.statements.lakehouse import (
    CHECK,
    COLUMNS_CHANGED,
    CONFLICT,
    GONE,
    NO_CLONE,
    NOT_TOLD,
    PARTITIONED,
    Lakehouse,
)
from spark.statements.reference import Reference
from spark.statements.subjects import DifferenceError, Figures, Subject, Version
from streamhouse_spark.errors import StreamhouseError

STEPS = 14
TABLES_MAX = 3
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.explainMode": "simple",
}
"""Each statement is another one, and to compile it takes longer than to run it."""
QUICK_SHARE = 0.9
CALLED_SHARE = 0.15
"""Statements that are calls in Python."""


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
        self.checks = Checks(house, self.reference, self.figures)
        self.script: list[str] = []
        house.clock.ahead_ms = 0
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
            raise DifferenceError(self._story(step, f"{shown[:3000]}\n{_where(error)}")) from error
        finally:
            self.reference.close()
            with contextlib.suppress(StreamhouseError), self.checks.timed("forget"):
                self.house.forget([subject.name for subject in self.subjects])

    def _numbered(self, step: int) -> None:
        if step == -1:
            self._create(self.subjects[0])
        elif step == self.steps:
            self._finished(Random(f"{self.seed} end"))
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
        with self.checks.timed("CREATE"):
            self.house.spark.sql(text)
        self.reference.create(subject.name, subject.columns)
        rng = Random(f"{self.seed} rows")
        self.perform(subject, Grammar(rng, self.target(subject), guarded=False).insert(), rng)

    def _step(self, rng: Random) -> None:
        subject = rng.choice(self.subjects)
        kinds: dict[str, tuple[Callable[[Subject, Random], Any], int]] = {
            "statement": (self._statement, 50),
            "alter": (self._alter, 12),
            "replace": (self._replace, 2),
            "rollback": (self._roll_back, 6),
            "tag": (self._tag, 3),
            "clone": (self._clone, 4),
            "branch": (self._branch, 5),
            "upkeep": (self.keep_up, 26),
        }
        kinds[self._chosen(rng, {kind: weight for kind, (_, weight) in kinds.items()})][0](subject, rng)
        self.checks.step(subject, rng)

    def _chosen(self, rng: Random, weights: Mapping[str, int]) -> str:
        weights = {kind: self.bias.get(kind, weight) for kind, weight in weights.items()}
        return rng.choices(list(weights), list(weights.values()))[0]

    def target(self, subject: Subject) -> Target:
        return Target(tuple(subject.columns), subject.form, other=len(self.subjects) > 1)

    def _statement(self, subject: Subject, rng: Random) -> None:
        company = self.company and rng.random() < 0.25
        statement = self.random_statement(subject, rng, guarded=company)
        self.perform(subject, statement, rng, company=company and not statement.alone)

    def random_statement(self, subject: Subject, rng: Random, *, guarded: bool = False) -> Statement:
        if rng.random() < CALLED_SHARE:
            return called(rng, self.target(subject), guarded=guarded)
        return Grammar(rng, self.target(subject), guarded=guarded).statement()

    def _alter(self, subject: Subject, rng: Random) -> None:
        statement = altered(rng, self.target(subject))
        if statement is not None:
            company = self.company and rng.random() < 0.2
            self.perform(subject, statement, rng, company=company and not statement.alone)

    def _replace(self, subject: Subject, rng: Random) -> None:
        self.perform(subject, replaced(rng, self.target(subject)), rng)

    def _branch(self, subject: Subject, rng: Random) -> None:
        branches.branch(self, subject, rng)

    def _roll_back(self, subject: Subject, rng: Random) -> None:
        if not subject.versions:
            return
        number = rng.choice(sorted(subject.versions))
        version = subject.versions[number]
        way, where = rng.choice(["sql", "rollback"]), str(number)
        if version.tag is not None and rng.random() < 0.5:
            way, where = "rollback", version.tag
        elif rng.random() < 0.3 and (moment := self.house.moment(subject.name, number)) is not None:
            way, where = "rollback in time", str(moment)
        reformed = version.form.former != subject.form.former
        alike = _plain(version.columns) == _plain(subject.columns)  # or a column went and another of its name came
        changed = version.changes != subject.changes and not alike
        statement = Statement(
            "rollback in time" if "time" in way else "rollback",
            f"CALL streamhouse.system.rollback_to_version('{{name}}', {number})",
            () if changed else ("DELETE FROM {t}", f"INSERT INTO {{t}} FROM {version.copy}"),
            may=(GONE, NOT_TOLD, *([COLUMNS_CHANGED] if version.changes != subject.changes else [])),
            must=PARTITIONED if reformed else COLUMNS_CHANGED if changed else None,
            gone="TRUE",
            way=way,
            where=where,
        )
        company = self.company and rng.random() < 0.2
        if self.perform(subject, statement, rng, company=company) and version.numbers and not company:
            self.checks.numbers(subject, version)

    def _tag(self, subject: Subject, rng: Random) -> None:
        if not subject.versions:
            return
        number = rng.choice(sorted(subject.versions))
        version, tag = subject.versions[number], f"tag{len(self.script)}"
        if version.tag is None:
            self.script.append(f"create_tag({subject.name}, {tag}, {number})")
            with self.checks.refusing(GONE):
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
        if rng.random() < 0.15:
            self._make_alike(subject, made)
            return
        number, version = None, None
        if subject.versions and rng.random() < 0.4:
            number = rng.choice(sorted(subject.versions))
            version = subject.versions[number]
            made.columns, made.form = version.columns, version.form
        names = f"'{self.house.full_name(subject.name)}', '{self.house.full_name(made.name)}'"
        text = f"clone({names}{'' if number is None else f', {number}'})"
        self.script.append(f"CALL streamhouse.system.{text}")
        in_sql = rng.random() < 0.5
        no_clone = [NO_CLONE] if subject.form.lake == "paimon" else []
        with self.checks.refusing(GONE, COLUMNS_CHANGED, PARTITIONED, *no_clone), self.checks.timed("clone"):
            if in_sql:
                self.house.call(text)
            else:
                self.house.clone(subject.name, made.name, number)
            self._cloned(subject, made, version)

    def _make_alike(self, subject: Subject, made: Subject) -> None:
        text = f"CREATE TABLE {self.house.sql_name(made.name)} LIKE {self.house.sql_name(subject.name)}"
        self.script.append(text)
        self.house.spark.sql(text)
        made.form, made.appended = replace(subject.form, former=()), 0
        self.reference.create(made.name, made.columns)
        self.reference.set_defaults(made.name, made.columns)
        self.subjects.append(made)
        self.figures.statements["CREATE TABLE LIKE"] += 1
        self.checks.rows("a table like another", made)

    def _cloned(self, subject: Subject, made: Subject, version: Version | None) -> None:
        self.reference.copy(version.copy if version is not None else subject.name, made.name)
        self.reference.set_defaults(made.name, made.columns)
        self.subjects.append(made)
        self.figures.statements["clone"] += 1
        self.checks.rows("a clone", made)
        if version is not None and version.numbers:
            self.checks.numbers(made, version)

    def keep_up(self, subject: Subject, rng: Random) -> None:
        kind = self._chosen(rng, {kind: weight for kind, (_, weight) in upkeep.KINDS.items()})
        self.script.append(f"{kind}({subject.name})")
        with self.checks.timed("upkeep"):
            reason = upkeep.done(self.house, rng, subject.name, kind)
        self.figures.upkeep[f"{kind}: {reason}" if reason else kind] += 1
        if kind == "tier":
            read = self.house.lake_readers(subject.name, subject.names)["Table.lake"]
            self.checks.compare("Table.lake", subject, read())

    def _finished(self, rng: Random) -> None:
        """Every reader of the table and of the lake's part, earlier versions, and the changes between them."""
        for subject in self.subjects:
            self.checks.end(subject, rng)
            self.script.append(f"tier({subject.name})")
            with self.checks.timed("upkeep"):
                upkeep.done(self.house, rng, subject.name, "tier")
            self.checks.lake(subject)

    # -- statements -----------------------------------------------------------------------------------------------

    def perform(self, subject: Subject, statement: Statement, rng: Random, *, company: bool = False) -> bool:
        """Run a statement on both sides, beside others where there is ``company``; after a conflict again, alone.
        Returns whether it was taken.
        """
        others = [one.name for one in self.subjects if one is not subject]
        other = others[0] if others else None
        columns, form = statement.columns or subject.columns, statement.form or statement.reform or subject.form
        must = set(self.reference.begin(subject.name, statement, other, columns, guarded=company))
        if SKIPPED in must:
            self.reference.undo()
            return False
        must |= {TWO_ROWS} if self.reference.has_twice(subject.name, subject.form.key) else set()
        must |= {CHECK} if self.reference.breaks(subject.name, form.checks) else set()
        must |= {statement.must} if statement.must else set()
        text = self.house.text(statement, subject.name, other, guarded_below=MARK if company else None)
        self.script.append(f"{_way(statement)}{text}{'  -- beside others' if company else ''}")
        with self.checks.timed("beside others" if company else statement.kind):
            appended, reason = self._run(subject, statement, text, rng, company=company)
        allowed = must | set(statement.may) | ({CONFLICT} if company else set())
        if reason is None and must:
            raise DifferenceError(f"it was taken, and has to be refused: {', '.join(sorted(must))}")
        if reason is not None and reason not in allowed:
            raise DifferenceError(f"it was refused ({reason}), and has to be taken")
        if reason is None:
            self._keep(subject, statement, appended)
            return True
        self.reference.undo()
        if statement.columns is not None and statement.staying:
            self.reference.run(statement.staying.replace("{t}", subject.name))
            subject.columns = statement.columns
            subject.changes += 1
        self.reference.add(subject.name, appended, subject.columns)
        self.figures.rejections[reason] += 1
        if reason == CONFLICT:
            self.checks.rows("after a conflict", subject)
            return self.perform(subject, statement, rng)
        return False

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
            self.checks.forget_versions(subject)
        subject.form = statement.form or statement.reform or subject.form
        self.reference.add(subject.name, appended, subject.columns)
        if statement.gone is not None and appended:
            inside = self.reference.marked(subject.name, in_reference(statement.gone))
            came = [row["id"] for row in appended if row["id"] in inside]
            there = {key[0][1] for key in self.house.python_rows(subject.name, subject.names)}
            kept = [number for number in came if number in there]
            if kept != came[len(came) - len(kept) :]:
                raise DifferenceError(f"rows of others came in the order {came}, and {kept} of them are there")
            self.reference.remove(subject.name, [number for number in came if number not in there])
        self.figures.statements[f"{statement.kind}, {'keyed' if before.key else 'log'}, {before.lake}"] += 1


def _plain(columns: Sequence[Column]) -> list[Column]:
    return [replace(column, default=None) for column in columns]


def _where(error: Exception) -> str:
    """The lines of this package that led to an error."""
    calls = [call for call in traceback.extract_tb(error.__traceback__) if "statements" in call.filename]
    return "in " + ", ".join(f"{Path(call.filename).name}:{call.lineno}" for call in calls)


def _way(statement: Statement) -> str:
    if statement.way == "sql":
        return "(dynamic) " if statement.dynamic else ""
    return f"{statement.way}({statement.where}) of "
