"""A branch: statements on it and on its table, and then its publication, or its end."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from spark.statements.lakehouse import CONFLICT, NO_BRANCH
from spark.statements.subjects import DifferenceError, Subject

if TYPE_CHECKING:
    from spark.statements.history import History

_OF_TABLES = ("CREATE OR REPLACE", "DROP PARTITION", "TRUNCATE PARTITION")
"""Kinds of statements that a branch does not take."""
_ADDING = ("INSERT", "Table.append")


@dataclass
class _Branch:
    main: Subject
    made: Subject
    base: str
    """The copy of the rows with which it began."""
    only_adds: bool = True
    is_main_touched: bool = False


def branch(history: History, subject: Subject, rng: Random) -> None:
    """Begin a branch, write to it and beside it, and publish or drop it."""
    name = f"b{len(history.script)}"
    made = Subject(f"{subject.name}_{name}", subject.columns, subject.form)
    history.script.append(f"create_branch({subject.name}, {name})")
    with history.checks.refusing(*([NO_BRANCH] if subject.has_numbers else [])):
        with history.checks.timed("branches"):
            history.house.branch_off(subject.name, made.name, name, in_sql=rng.random() < 0.5)
        for copy in (made.name, base := f"{made.name}_base"):
            history.reference.copy(subject.name, copy)
        history.reference.set_defaults(made.name, made.columns)
        begun = _Branch(subject, made, base)
        for _ in range(rng.randint(1, 4)):
            _write(history, begun, rng)
        if rng.random() < 0.2:
            history.script.append(f"drop_branch({subject.name}, {name})")
            history.house.drop_branch(made.name, in_sql=rng.random() < 0.5)
        else:
            _publish(history, begun, rng)
        for copy in (made.name, base):
            history.reference.drop(copy)


def _write(history: History, begun: _Branch, rng: Random) -> None:
    match rng.choice(["branch", "branch", "branch", "main", "upkeep"]):
        case "branch":
            statement = history.random_statement(begun.made, rng)
            if statement.kind.startswith(_OF_TABLES):
                return
            if history.perform(begun.made, statement, rng):
                begun.only_adds = begun.only_adds and statement.kind in _ADDING
            history.checks.rows("a branch", begun.made)
            if rng.random() < 0.3:
                history.checks.spark(begun.made)
                history.checks.query(begun.made, rng)
        case "main":
            history.perform(begun.main, history.random_statement(begun.main, rng), rng)
            begun.is_main_touched = True
        case _:
            history.keep_up(begun.main, rng)
    history.checks.rows("Table.to_arrow", begun.main)


def _publish(history: History, begun: _Branch, rng: Random) -> None:
    history.script.append(f"fast_forward({begun.main.name}, {begun.made.name})")
    with history.checks.timed("branches"):
        reason = history.house.publish(begun.made.name, in_sql=rng.random() < 0.5)
    adds_beside = begun.only_adds and not begun.main.form.key
    if reason == CONFLICT:
        if not begun.is_main_touched or adds_beside:
            raise DifferenceError("the branch was not published, and has to be")
        history.figures.rejections["a branch that is not published"] += 1
        if rng.random() < 0.5:
            history.house.drop_branch(begun.made.name, in_sql=rng.random() < 0.5)
        return
    history.figures.statements["fast_forward"] += 1
    if begun.is_main_touched:
        _lay_over(history, begun)
    else:
        history.reference.run(f"DELETE FROM {begun.main.name}", f"INSERT INTO {begun.main.name} FROM {begun.made.name}")
    history.checks.rows("a published branch", begun.main)


def _lay_over(history: History, begun: _Branch) -> None:
    """Put the branch's changes on the rows of the table, which others changed meanwhile."""
    main, made, base = begun.main.name, begun.made.name, begun.base
    if not begun.main.form.key:
        if history.reference.rows(base) - history.reference.rows(made):
            if history.reference.rows(base) != history.reference.rows(main):
                raise DifferenceError("a branch with deleted rows was published behind changes of its table")
            history.reference.run(f"DELETE FROM {main}", f"INSERT INTO {main} FROM {made}")
            return
        history.reference.run(f"INSERT INTO {main} (FROM {made} EXCEPT ALL FROM {base})")
        return
    key = ", ".join(begun.main.form.key)
    changed = f"SELECT {key} FROM ((FROM {made} EXCEPT FROM {base}) UNION (FROM {base} EXCEPT FROM {made}))"
    history.reference.run(
        f"CREATE OR REPLACE TEMP TABLE changed AS {changed}",
        f"DELETE FROM {main} WHERE ({key}) IN (SELECT ({key}) FROM changed)",
        f"INSERT INTO {main} FROM {made} WHERE ({key}) IN (SELECT ({key}) FROM changed)",
    )
