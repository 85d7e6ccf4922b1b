"""Random queries that can be kept: a grammar over tables and the kinds of their columns.

Tables stand in braces, so that a query can be read over the lakehouse and over the model. Every value is the same in
Spark and in DuckDB: sums are exact, and times are cut by the session's zone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

Kinds = Mapping[str, str]
"""Column → int, text, dec, dbl, ts, bool or avg. Averages are only shown: sums of them are not exact."""
LITERALS = {"int": "7", "text": "'z'", "dbl": "CAST(1.5 AS DOUBLE)", "bool": "TRUE"}


@dataclass(frozen=True)
class Query:
    text: str
    columns: Kinds


@dataclass(frozen=True)
class Column:
    sql: str
    kind: str


class Grammar:
    """``tables`` maps names to their columns. A column ``id`` is the key that joins prefer."""

    def __init__(self, rng: Random, tables: Mapping[str, Kinds]) -> None:
        self._rng, self._tables = rng, tables
        self._aliases = 0
        self._common: list[str] = []

    def query(self) -> Query:
        """A query of one of the forms: groups, rows, DISTINCT, UNION and UNION ALL, also nested."""
        self._aliases, self._common = 0, []
        found = self._union(2) if self._rng.random() < 0.14 else self._select(2)
        if not self._common:
            return found
        return Query(f"WITH {', '.join(self._common)} {found.text}", found.columns)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _alias(self) -> str:
        self._aliases += 1
        return f"r{self._aliases}"

    def _union(self, depth: int) -> Query:
        kinds = [self._rng.choice(["int", "int", "text"]) for _ in range(self._rng.randint(1, 2))]
        parts = [self._select(depth - 1, kinds) for _ in range(self._rng.randint(2, 3))]
        word = self._rng.choice([" UNION ALL ", " UNION ALL ", " UNION "])
        return Query(word.join(part.text for part in parts), parts[0].columns)

    def _select(self, depth: int, kinds: Sequence[str] | None = None) -> Query:
        """A SELECT; with ``kinds`` rows of these kinds of columns."""
        begin, columns = self._from(depth)
        where = self._where(columns)
        form = "rows" if kinds else self._rng.choice(["groups"] * 6 + ["rows", "rows", "distinct", "all"])
        if form in ("groups", "all"):
            return self._grouped(begin, where, columns, is_all=form == "all")
        if kinds:
            chosen = [self._of_kind(columns, kind) for kind in kinds]
        else:
            chosen = [self._expression(columns) for _ in range(self._rng.randint(1, 3))]
        listed = ", ".join(f"{column.sql} AS c{n}" for n, column in enumerate(chosen))
        word = "DISTINCT " if form == "distinct" else ""
        return Query(f"SELECT {word}{listed} FROM {begin}{where}", {f"c{n}": c.kind for n, c in enumerate(chosen)})

    def _grouped(self, begin: str, where: str, columns: Sequence[Column], *, is_all: bool) -> Query:
        # Whole numbers and texts are most often added up by the driver, bare columns alone.
        bare = self._chance(0.5)
        count = 0 if is_all else self._rng.choice([1, 1, 2])
        groups = [self._rng.choice(columns) if bare else self._expression(columns) for _ in range(count)]
        groups = list({column.sql: column for column in groups}.values())
        found = [self._aggregate(columns, bare=bare) for _ in range(self._rng.randint(0 if groups else 1, 3))]
        if self._chance(0.55) or all(column.kind == "avg" for column in found):
            found.append(Column("count(*)", "int"))
        shown = [*(g for g in groups if self._chance(0.9)), *found]
        listed = ", ".join(f"{column.sql} AS c{n}" for n, column in enumerate(shown))
        by = f" GROUP BY {', '.join(group.sql for group in groups)}" if groups else ""
        having = f" HAVING {self._having(columns)}" if groups and self._chance(0.15) else ""
        return Query(f"SELECT {listed} FROM {begin}{where}{by}{having}", {f"c{n}": c.kind for n, c in enumerate(shown)})

    def _from(self, depth: int) -> tuple[str, list[Column]]:
        text, columns = self._relation(depth)
        for _ in range(self._rng.choice([0, 0, 0, 1, 1, 2] if depth > 1 else [0, 0, 1])):
            more, its = self._relation(depth - 1)
            on = self._equal(columns, its)
            if on is None:
                break
            word = self._rng.choice(["JOIN", "JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
            text, columns = f"{text} {word} {more} ON {on}", [*columns, *its]
        return text, columns

    def _relation(self, depth: int) -> tuple[str, list[Column]]:
        alias = self._alias()
        if depth > 0 and self._chance(0.22):
            inner = self._union(depth - 1) if self._chance(0.25) else self._select(depth - 1)
            if self._chance(0.5):
                self._common.append(f"w_{alias} AS ({inner.text})")
                return f"w_{alias} {alias}", _of(alias, inner.columns)
            return f"({inner.text}) {alias}", _of(alias, inner.columns)
        name = self._rng.choice(list(self._tables))
        return f"{{{name}}} {alias}", _of(alias, self._tables[name])

    def _equal(self, ours: Sequence[Column], theirs: Sequence[Column]) -> str | None:
        """A condition of a join, most often by whole numbers, and by the key of a table where it can be."""
        mine, its = _of_kinds(ours, "int"), _of_kinds(theirs, "int")
        if not mine or not its:
            return None
        keys = [c for c in its if c.sql.endswith(".id")]
        right = self._rng.choice(keys if keys and self._chance(0.6) else its)
        parts = [f"{self._rng.choice(mine).sql} = {right.sql}"]
        if self._chance(0.15):
            parts.append(self._condition(theirs))
        if self._chance(0.1):
            parts.append(f"{self._rng.choice(mine).sql} <= {self._rng.choice(its).sql}")
        return " AND ".join(parts)

    # -- expressions ----------------------------------------------------------------------------------------------

    def _of_kind(self, columns: Sequence[Column], kind: str) -> Column:
        there = _of_kinds(columns, kind)
        if not there:
            return Column(LITERALS[kind], kind)
        column = self._rng.choice(there)
        worked = self._worked(column)
        return worked if worked.kind == kind and self._chance(0.5) else column

    def _expression(self, columns: Sequence[Column]) -> Column:
        column = self._rng.choice(columns)
        return column if self._chance(0.65) else self._worked(column)

    def _worked(self, column: Column) -> Column:
        sql = column.sql
        forms: dict[str, list[tuple[str, str]]] = {
            "int": [
                (f"{sql} % 2", "int"), (f"{sql} + 1", "int"), (f"coalesce({sql}, 0)", "int"), (f"abs({sql})", "int"),
                (f"CASE WHEN {sql} > 1 THEN 'many' ELSE 'few' END", "text"),
            ],
            "text": [
                (f"upper({sql})", "text"), (f"coalesce({sql}, 'n')", "text"), (f"concat({sql}, 'x')", "text"),
                (f"length({sql})", "int"),
            ],
            "ts": [
                (f"date_trunc('HOUR', {sql})", "ts"), (f"date_trunc('DAY', {sql})", "ts"),
                (f"unix_seconds({sql}) DIV 600", "int"),
            ],
            "dec": [(sql, "dec")],
            "dbl": [(f"{sql} * 2", "dbl")],
            "bool": [(f"NOT {sql}", "bool")],
        }  # fmt: skip
        return Column(*self._rng.choice(forms[column.kind]))

    def _aggregate(self, columns: Sequence[Column], *, bare: bool) -> Column:
        """An aggregate that does not depend on the order of rows; ``bare`` is of a column and by whole numbers."""
        column = self._rng.choice(columns) if bare or self._chance(0.7) else self._expression(columns)
        sql, kind = column.sql, column.kind
        forms: list[tuple[str, str]] = [(f"count({sql})", "int")]
        if kind != "bool":
            forms += [(f"min({sql})", kind), (f"max({sql})", kind)]
        if kind in ("int", "dec", "dbl"):
            forms += [(f"sum({sql})", kind)] * 2
        if not bare:
            forms += [(f"count(DISTINCT {sql})", "int"), (f"count_if({self._condition(columns)})", "int")]
            if kind == "int":
                forms += [(f"avg({sql})", "avg"), (f"sum({sql}) * 2 + count({sql})", "int")]
                forms.append((f"max({sql}) - min({sql})", "int"))
            if kind == "bool":
                forms.append((f"bool_or({sql})", "bool"))
        return Column(*self._rng.choice(forms))

    def _having(self, columns: Sequence[Column]) -> str:
        forms = ["count(*) > 1", "count(*) = 1"]
        for column in columns:
            forms += [f"min({column.sql}) IS NOT NULL"] if column.kind != "bool" else []
            forms += [f"sum({column.sql}) > 2"] if column.kind == "int" else []
        return self._rng.choice(forms)

    def _condition(self, columns: Sequence[Column]) -> str:
        column = self._rng.choice(columns)
        sql = column.sql
        forms = {
            "int": [f"{sql} > 1", f"{sql} <= 2", f"{sql} IN (1, 3, 5)", f"{sql} BETWEEN 1 AND 4", f"{sql} % 2 = 0"],
            "text": [f"{sql} = 'a'", f"{sql} <> 'a'", f"{sql} LIKE 'b%'"],
            "ts": [f"{sql} >= TIMESTAMP '2026-01-01 10:20:00'"],
            "dec": [f"{sql} > 1"],
            "dbl": [f"{sql} > 0", f"{sql} < 2"],
            "bool": [sql],
        }[column.kind]
        return self._rng.choice([*forms, *forms, f"{sql} IS NULL", f"({sql} IS NOT NULL OR {forms[0]})"])

    def _where(self, columns: Sequence[Column]) -> str:
        parts = []
        if self._chance(0.35):
            parts.append(self._condition(columns))
        if self._chance(0.12) and (whole := _of_kinds(columns, "int")):
            parts.append(self._member(self._rng.choice(whole)))
        return f" WHERE {' AND '.join(f'({part})' if ' OR ' in part else part for part in parts)}" if parts else ""

    def _member(self, column: Column) -> str:
        name = self._rng.choice(list(self._tables))
        its = [c for c, kind in self._tables[name].items() if kind == "int"]
        if not its:
            return f"{column.sql} IS NOT NULL"
        alias, mine = self._alias(), self._rng.choice(its)
        forms: list[Callable[[], str]] = [
            lambda: f"EXISTS (SELECT 1 FROM {{{name}}} {alias} WHERE {alias}.{mine} = {column.sql})",
            lambda: f"NOT EXISTS (SELECT 1 FROM {{{name}}} {alias} WHERE {alias}.{mine} = {column.sql})",
            lambda: f"{column.sql} IN (SELECT {alias}.{mine} FROM {{{name}}} {alias})",
        ]
        return self._rng.choice(forms)()


def _of(alias: str, kinds: Kinds) -> list[Column]:
    return [Column(f"{alias}.{name}", kind) for name, kind in kinds.items() if kind != "avg"]


def _of_kinds(columns: Sequence[Column], *kinds: str) -> list[Column]:
    return [column for column in columns if column.kind in kinds]
