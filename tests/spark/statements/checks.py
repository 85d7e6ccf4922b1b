"""Comparisons of tables with the reference: by every reader, as of earlier versions, and by their changes."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any

from kit.change_replay import ADDS, changes
from spark.statements.columns import IDENTITY, Items, in_reference
from spark.statements.expressions import Expressions
from spark.statements.lakehouse import GONE, Lakehouse, reason_of, rows_of
from spark.statements.reference import Reference, Rows, exact
from spark.statements.subjects import DifferenceError, Figures, Subject, Version
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError

VERSIONS_KEPT = 6
IN_PYTHON_SHARE = 0.6
"""Reads of versions in this process, which take a tenth of the time: both ways have the plan alone in common."""


class Checks:
    """Compares, counts in ``figures``, and raises `DifferenceError`."""

    def __init__(self, house: Lakehouse, reference: Reference, figures: Figures) -> None:
        self.house, self.reference, self.figures = house, reference, figures

    @contextlib.contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.figures.seconds[kind] += time.monotonic() - began  # type: ignore[assignment]

    @contextlib.contextmanager
    def refusing(self, *reasons: str) -> Iterator[None]:
        """Let the block end early where it is refused for one of these reasons."""
        try:
            yield
        except Exception as error:
            reason = reason_of(error)
            if reason not in reasons:
                raise
            self.figures.rejections[str(reason)] += 1

    def compare(
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

    def rows(self, reader: str, subject: Subject) -> None:
        with self.timed("Table.to_arrow"):
            self.compare(reader, subject, self.house.python_rows(subject.name, subject.names))

    def step(self, subject: Subject, rng: Random) -> None:
        """Check a table after something was done with it."""
        self.rows("Table.to_arrow", subject)
        if rng.random() < 0.35:
            self.spark(subject)
        if rng.random() < 0.35:
            self.query(subject, rng)
        if subject.versions and rng.random() < 0.3:
            self.version(subject, rng.choice(sorted(subject.versions)), rng)
        self.remember(subject)

    def spark(self, subject: Subject) -> None:
        with self.timed("SELECT *"):
            self.compare("SELECT *", subject, self.house.spark_rows(subject.name, subject.names))

    def query(self, subject: Subject, rng: Random) -> None:
        of = Expressions(rng, subject.columns, "t.")
        where = rng.choice([of.condition(2), of.simple(), "TRUE"])
        chosen = [f"t.{c.name}" for c in subject.columns if rng.random() < 0.4 and not c.is_identity]
        items = rng.choice(["count(*)", ", ".join(chosen or ["t.id"])])
        with self.timed("SELECT with conditions"):
            found = self.house.query(subject.name, items, where)
        expected = self.reference.rows(subject.name, in_reference(where), items)
        self.compare("SELECT with conditions", subject, found, expected, detail=f": SELECT {items} WHERE {where}")

    # -- versions -------------------------------------------------------------------------------------------------

    def version(self, subject: Subject, number: int, rng: Random) -> None:
        """An earlier version has its rows, or is said to be gone; a tagged one is there."""
        version = subject.versions[number]
        names = [column.name for column in version.columns]
        place: int | str = version.tag or number
        moment = None
        if not version.tag and rng.random() < 0.3:
            moment = self.house.moment(subject.name, number)
        in_python = rng.random() < IN_PYTHON_SHARE
        reader = "as_of_timestamp_ms" if moment is not None else "read_version"
        if not in_python:
            reader = "TIMESTAMP AS OF" if moment is not None else "VERSION AS OF"
        read = self.house.python_version if in_python else self.house.spark_version
        expected = self.reference.rows(version.copy)
        with self.timed(reader), self.refusing(*([] if version.tag else [GONE])):
            found = read(subject.name, names, place, moment)
            self.compare(reader, subject, found, expected, detail=f" at {place if moment is None else moment}")
            if version.numbers:
                self.numbers(subject, version, number)

    def numbers(self, subject: Subject, version: Version, number: int | None = None) -> None:
        """The identity column of a version, or of the table behind a rollback, has the values that it had then."""
        found = self.house.numbers(subject.name, number)
        self.figures.checks["identity column"] += 1
        if found != version.numbers:
            raise DifferenceError(
                f"identity column of {subject.name}: numbers {sorted(version.numbers - found)} went, "
                f"{sorted(found - version.numbers)} came"
            )

    def remember(self, subject: Subject) -> None:
        number = self.house.version(subject.name)
        if number in subject.versions:
            return
        copy = f"{subject.name}_v{number}"
        self.reference.copy(subject.name, copy)
        numbers = self.house.numbers(subject.name) if subject.has_numbers else frozenset()
        subject.versions[number] = Version(tuple(subject.columns), subject.form, subject.changes, copy, numbers)
        loose = [n for n, version in sorted(subject.versions.items()) if version.tag is None]
        for old in loose[: max(0, len(loose) - VERSIONS_KEPT)]:
            self.reference.drop(subject.versions.pop(old).copy)

    def forget_versions(self, subject: Subject) -> None:
        for version in subject.versions.values():
            self.reference.drop(version.copy)
        subject.versions.clear()

    # -- the end --------------------------------------------------------------------------------------------------

    def end(self, subject: Subject, rng: Random) -> None:
        """Earlier versions, and the changes between them."""
        self.spark(subject)
        self.query(subject, rng)
        for number in sorted(subject.versions)[-3:]:
            self.version(subject, number, rng)
        with self.timed("changes"):
            self._changes(subject, rng)
            self._changelog(subject)
        if rng.random() < 0.25:
            with self.timed("streams"):
                self._stream(subject, rng)

    def lake(self, subject: Subject) -> None:
        """Every reader of the lake's part, once all is tiered."""
        for reader, read in self.house.lake_readers(subject.name, subject.names).items():
            try:
                with self.timed(reader):
                    found, expected = read(), self.reference.rows(subject.name)
                    if reader == "pyiceberg":
                        found, expected = (_without_null_lists(rows, subject) for rows in (found, expected))
                    self.compare(reader, subject, found, expected)
            except DifferenceError:
                raise
            except Exception as error:
                raise DifferenceError(f"{reader} of {subject.name}: {type(error).__name__}: {error}") from error

    def _changes(self, subject: Subject, rng: Random) -> None:
        """The changes between two versions lead from the rows of one to those of the other, or are not told."""
        same = [n for n, version in sorted(subject.versions.items()) if version.changes == subject.changes]
        table = self.house.table(subject.name)
        ranges = [(first, last, False) for first, last in pairwise(same)]
        ranges += [(same[0], same[-1], True)] if len(same) > 2 else []
        for first, last, is_net in ranges:
            try:
                found = changes(table, first + 1, last, is_net=is_net)
            except InvalidOptionError:
                self.figures.rejections["changes that are not told"] += 1
                continue
            except StreamhouseError as error:
                if reason_of(error) != GONE:
                    raise
                self.figures.rejections[GONE] += 1
                continue
            self._lead("net CHANGES" if is_net else "CHANGES", subject, first, last, found)
            if rng.random() < 0.15:
                in_sql = self.house.changes(subject.name, first, last, is_net=is_net)
                self._lead("CHANGES in SQL", subject, first, last, in_sql)

    def _lead(self, reader: str, subject: Subject, first: int, last: int, found: Iterable[Mapping[str, Any]]) -> None:
        rows = self.reference.rows(subject.versions[first].copy)
        for change in found:
            rows[_row(change, subject.names)] += ADDS[change["_change_type"]]
        if min(rows.values(), default=0) < 0:
            raise DifferenceError(f"{reader} {first} to {last} of {subject.name} take rows away that were not there")
        expected = self.reference.rows(subject.versions[last].copy)
        self.compare(reader, subject, +rows, expected, detail=f" from {first} to {last}")

    def _changelog(self, subject: Subject) -> None:
        """All changes of the keys, where the log still has them, lead from nothing to the rows of now."""
        state = self.house.table(subject.name).refresh()
        if not subject.form.key or subject.form.images != "full":
            return
        if any(log.start > state.first_offset(bucket) for bucket, log in state.buckets.items()):
            return
        self.compare("$changelog", subject, _replayed(self.house.changelog(subject.name), subject.names))

    def _stream(self, subject: Subject, rng: Random) -> None:
        """A stream from the beginning has the rows of now; of a table with a key, changes that lead to them."""
        if not subject.form.key:
            suffix = rng.choice(["", "$changelog"])
            try:
                found = self.house.streamed(subject.name, suffix)
            except Exception as error:
                if reason_of(error) != GONE:  # as where another engine wrote rows again, which lost their offsets
                    raise
                self.figures.rejections["a stream of rows that are gone"] += 1
                return
            rows = _replayed(found.to_pylist(), subject.names) if suffix else rows_of(found, subject.names)
            self.compare(f"a stream{suffix}", subject, rows)
        elif subject.form.images == "full":
            told = self.house.streamed(subject.name, "$changelog").to_pylist()
            self.compare("a stream of changes", subject, _replayed(told, subject.names))


def _without_null_lists(rows: Rows, subject: Subject) -> Rows:
    """Rows as pyiceberg 0.12 gives them, which takes a null list of structs for an empty one."""
    places = {place for place, column in enumerate(subject.columns) if isinstance(column.kind, Items)}
    found: Rows = Counter()
    for row, count in rows.items():
        found[tuple(exact([]) if at in places and cell == exact(None) else cell for at, cell in enumerate(row))] += (
            count
        )
    return found


def _row(change: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(exact(None if name == IDENTITY.name else change[name]) for name in names)


def _replayed(found: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Rows:
    rows: Rows = Counter()
    for change in found:
        sign = -1 if change["_change_type"] in ("update_before", "delete") else 1
        rows[_row(change, names)] += sign
    return Counter({row: count for row, count in rows.items() if count})
