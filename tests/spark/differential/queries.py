"""Random SELECTs. A query is a template: its relations are named when it is rendered for one side or the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark.differential.dataset import Side
from spark.differential.expressions import FAMILIES, Expressions

TIME_ZONES = ("America/New_York", "UTC", "Asia/Kolkata", "Pacific/Apia", "Europe/Berlin")
SETTINGS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.parquet.enableVectorizedReader": "false",
    "spark.sql.sources.v2.bucketing.partiallyClusteredDistribution.enabled": "true",
    "spark.sql.sources.v2.bucketing.shuffle.enabled": "true",
    "spark.sql.sources.v2.bucketing.enabled": "false",
    "spark.sql.sources.v2.bucketing.allowCompatibleTransforms.enabled": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.optimizer.dynamicPartitionPruning.reuseBroadcastOnly": "false",
    "spark.sql.exchange.reuse": "false",
    "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
}
"""What a session may have set otherwise; each query has a few of these."""


@dataclass(frozen=True)
class Query:
    seed: int
    template: str
    sides: tuple[Side, ...]
    settings: dict[str, str] = field(default_factory=dict)
    has_sums: bool = False
    """Floats depend on the order in which rows come."""
    any_rows: int | None = None
    """So many rows, whichever, of what the query without LIMIT gives."""

    def on(self, *, catalog: bool) -> str:
        return self.template.format(*[side.catalog if catalog else side.copy for side in self.sides])


class Generator:
    def __init__(self, seed: int, sides: Sequence[Side]) -> None:
        self._seed = seed
        self.rng = random.Random(seed)
        self._known = sides
        self._used: list[Side] = []
        self._has_sums = False
        self._any_rows: int | None = None

    def query(self) -> Query:
        shapes: list[tuple[Callable[[], str], int]] = [
            (self._rows, 8),
            (self._limited, 2),
            (self._top, 3),
            (self._aggregate, 5),
            (self._metadata_aggregate, 2),
            (self._join, 7),
            (self._self_join, 3),
            (self._grouped_join, 2),
            (self._set_operation, 3),
            (self._subquery, 4),
            (self._window, 1),
        ]
        template = self.rng.choices([s for s, _ in shapes], [w for _, w in shapes])[0]()
        settings = {"spark.sql.session.timeZone": self.rng.choice(TIME_ZONES)}
        if self.rng.random() < 0.5:
            for key in self.rng.sample(sorted(SETTINGS), self.rng.choice([1, 1, 2, 3])):
                settings[key] = SETTINGS[key]
        return Query(self._seed, template, tuple(self._used), settings, self._has_sums, self._any_rows)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _side(self, side: Side | None = None) -> tuple[str, Side]:
        side = side or self.rng.choices(self._known, [4 if side.has_place else 2 for side in self._known])[0]
        self._used.append(side)
        return f"{{{len(self._used) - 1}}}", side

    def _expressions(self, side: Side, alias: str = "") -> Expressions:
        prefix = f"{alias}." if alias else ""
        return Expressions(self.rng, prefix, has_extra=side.has_extra, has_place=side.has_place)

    def _parse_select(self, items: Sequence[str]) -> str:
        return "SELECT " + ", ".join(f"{_braces(item)} AS c{i}" for i, item in enumerate(items))

    def _where(self, of: Expressions, *, always: bool = False, depth: int = 2) -> str:
        return f" WHERE {_braces(of.filter(depth))}" if always or self.rng.random() < 0.85 else ""

    def _functions(self, of: Expressions) -> list[str]:
        found = []
        for _ in range(self.rng.randrange(1, 4)):
            column = of.ref(of.column())
            number = of.ref(of.column("integer", "decimal"))
            inexact = of.ref(of.column("float"))
            choice = self.rng.choice(
                [
                    "count(*)",
                    f"count({column})",
                    f"min({column})",
                    f"max({column})",
                    f"count(DISTINCT {column})",
                    f"sum({number})",
                    f"sum({inexact})",
                    f"avg({inexact})",
                    f"count_if({of.filter(0)})",
                    f"max(length({of.ref('s')}))",
                    f"count(*) FILTER (WHERE {of.filter(0)})",
                    f"min(struct({of.ref('u')}, {of.ref('s')}))",
                    f"array_sort(collect_list({of.ref('u')}))",
                    f"sum(DISTINCT {of.ref('n')})",
                    f"bool_or({of.ref('flag')})",
                ]
            )
            self._has_sums = True  # -0.0 and 0.0 are equal: which of them min() gives depends on the order
            found.append(choice)
        return found

    # -- shapes ---------------------------------------------------------------------------------------------------

    def _rows(self) -> str:
        name, side = self._side()
        of = self._expressions(side)
        items = [of.value() for _ in range(self.rng.choice([1, 2, 3, 8]))]
        if self.rng.random() < 0.1:
            items = [*(c for columns in FAMILIES.values() for c in columns if c != "extra"), "arr", "mp", "st"]
        return f"{self._parse_select(['u', *items])} FROM {name}{self._where(of)}"

    def _limited(self) -> str:
        name, side = self._side()
        of = self._expressions(side)
        self._any_rows = self.rng.choice([0, 1, 5, 40, 1000])
        return (
            f"{self._parse_select(['u', of.value()])} FROM {name}{self._where(of) if self.rng.random() < 0.4 else ''}"
        )

    def _top(self) -> str:
        name, side = self._side()
        of = self._expressions(side)
        keys = [f"{of.scalar()} {self.rng.choice(['', 'DESC', 'DESC NULLS LAST', 'NULLS LAST'])}" for _ in range(2)]
        offset = self.rng.choice(["", "", " OFFSET 3"])
        order = _braces(f"ORDER BY {', '.join(keys)}, u LIMIT {self.rng.choice([1, 7, 50])}{offset}")
        return f"{self._parse_select(['u', of.value()])} FROM {name}{self._where(of)} {order}"

    def _aggregate(self) -> str:
        name, side = self._side()
        of = self._expressions(side)
        keys = [self.rng.choice([of.scalar(), "k", "p"]) for _ in range(self.rng.choice([0, 1, 1, 2]))]
        functions = self._functions(of)
        tail = f" GROUP BY {', '.join(f'c{i}' for i in range(len(keys)))}" if keys else ""
        if keys and self.rng.random() < 0.4:
            tail += f" HAVING count(*) {self.rng.choice(['>', '<=', '='])} {self.rng.randrange(1, 5)}"
        return f"{self._parse_select([*keys, *functions])} FROM {name}{self._where(of, depth=1)}{tail}"

    def _metadata_aggregate(self) -> str:
        name, side = self._side()
        of = self._expressions(side)
        functions = ["count(*)"]
        of_column = ("min", "max", "count")
        functions += [f"{self.rng.choice(of_column)}({of.column()})" for _ in range(self.rng.randrange(4))]
        self._has_sums = True
        where = f" WHERE p = {self.rng.choice(['north', 'south'])!r}" if self.rng.random() < 0.2 else ""
        return f"{self._parse_select(functions)} FROM {name}{where}"

    def _on(self, left: Expressions, right: Expressions) -> str:
        column = self.rng.choice(["k", "k", "k", "p", "day", left.column("integer", "string", "date")])
        if column == "extra":
            column = "n"
        equals = self.rng.choice(["=", "=", "=", "<=>"])
        on = f"l.{column} {equals} r.{column}"
        if self.rng.random() < 0.2:
            on += (
                f" AND {self.rng.choice(['l.n < r.n', 'l.day = r.day', 'l.p = r.p', left.filter(0), right.filter(0)])}"
            )
        return _braces(on)

    def _join(self) -> str:
        (left_name, left_side), (right_name, right_side) = self._side(), self._side()
        left, right = self._expressions(left_side, "l"), self._expressions(right_side, "r")
        kind = self.rng.choice(
            ["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
        )
        hint = self.rng.choice(
            ["", "", "/*+ BROADCAST(r) */", "/*+ BROADCAST(l) */", "/*+ MERGE(r) */", "/*+ SHUFFLE_HASH(r) */"]
        )
        one_sided = "SEMI" in kind or "ANTI" in kind
        items = ["l.u", left.value()] if one_sided else ["l.u", "r.u", left.value(), right.value()]
        select = self._parse_select(items).replace("SELECT", f"SELECT {hint}", 1)
        filters = [left.filter(1)] + ([] if one_sided else [right.filter(1)])
        where = (
            f" WHERE {_braces(' AND '.join(self.rng.sample(filters, self.rng.randrange(len(filters) + 1))) or 'TRUE')}"
        )
        inner = f"(SELECT * FROM {right_name}{self._where(self._expressions(_hidden(right_side)), depth=1)})"
        source = inner if self.rng.random() < 0.4 and not right_side.has_place else right_name
        return f"{select} FROM {left_name} l {kind} {source} r ON {self._on(left, right)}{where}"

    def _self_join(self) -> str:
        name, side = self._side()
        again, _ = self._side(side)
        left, right = self._expressions(side, "l"), self._expressions(side, "r")
        filters = _braces(f"{left.filter(1)} AND {right.filter(1)}")
        on = self.rng.choice(["l.k = r.k", "l.u = r.u", "l.p = r.p", "l.k = r.u"])
        return (
            f"{self._parse_select(['l.u', 'r.u', left.scalar()])} FROM {name} l JOIN {again} r ON {on} WHERE {filters}"
        )

    def _grouped_join(self) -> str:
        (left_name, left_side), (right_name, right_side) = self._side(), self._side()
        left, right = self._expressions(left_side), self._expressions(right_side)
        kind = self.rng.choice(["JOIN", "LEFT JOIN", "FULL JOIN"])
        counts = f"SELECT k, count(*) AS c FROM {left_name}{self._where(left, depth=1)} GROUP BY k"
        maxima = f"SELECT k, max(n) AS c FROM {right_name}{self._where(right, depth=1)} GROUP BY k"
        return f"SELECT l.k AS c0, l.c AS c1, r.c AS c2 FROM ({counts}) l {kind} ({maxima}) r ON l.k = r.k"

    def _set_operation(self) -> str:
        (left_name, left_side), (right_name, right_side) = self._side(), self._side()
        if self.rng.random() < 0.5:
            self._used[-1] = right_side = left_side
        left, right = self._expressions(left_side), self._expressions(right_side)
        operator = self.rng.choice(
            ["UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"]
        )
        columns = ["k", "n", left.column("string", "date", "timestamp", "decimal")]
        return (
            f"{self._parse_select(columns)} FROM {left_name}{self._where(left)} {operator} "
            f"{self._parse_select(columns)} FROM {right_name}{self._where(right)}"
        )

    def _subquery(self) -> str:
        (name, side), (other_name, other_side) = self._side(), self._side()
        of, other = self._expressions(side, "x"), self._expressions(other_side, "o")
        column = self.rng.choice(["k", "n", "p", "day", "s"])
        inner_filter = _braces(other.filter(1))
        condition = self.rng.choice(
            [
                f"x.{column} IN (SELECT o.{column} FROM {other_name} o WHERE {inner_filter})",
                f"x.k IN (SELECT o.k FROM {other_name} o WHERE {inner_filter} AND o.k IS NOT NULL)",
                (
                    f"x.{column} NOT IN (SELECT o.{column} FROM {other_name} o "
                    f"WHERE {inner_filter} AND o.{column} IS NOT NULL)"
                ),
                f"EXISTS (SELECT 1 FROM {other_name} o WHERE o.{column} = x.{column} AND {inner_filter})",
                f"NOT EXISTS (SELECT 1 FROM {other_name} o WHERE o.{column} = x.{column} AND {inner_filter})",
                f"x.n > (SELECT min(o.n) FROM {other_name} o WHERE {inner_filter})",
                f"x.n >= (SELECT max(o.t) FROM {other_name} o WHERE o.k = x.k AND {inner_filter})",
            ]
        )
        if self.rng.random() < 0.25:
            bare = self._expressions(side)
            common = f"{self._parse_select(['u', 'k', bare.value()])} FROM {name}{self._where(bare, depth=1)}"
            condition = f"a.c0 IN (SELECT u FROM {other_name}) OR b.c0 % 2 = 0"
            return (
                f"WITH w AS ({common}) SELECT a.c0, b.c0 AS c1, a.c2 FROM w a JOIN w b ON a.c1 = b.c1 WHERE {condition}"
            )
        return f"{self._parse_select(['x.u', of.scalar()])} FROM {name} x WHERE {condition} AND {_braces(of.filter(1))}"

    def _window(self) -> str:
        name, side = self._side()
        of = self._expressions(side)
        key = self.rng.choice(["k", "p", "day"])
        items = ["u", f"row_number() OVER (PARTITION BY {key} ORDER BY u)", f"sum(n) OVER (PARTITION BY {key})"]
        return f"{self._parse_select(items)} FROM {name}{self._where(of)}"


def _hidden(side: Side) -> Side:
    return Side(side.catalog, side.copy, side.has_extra, has_place=False, num_rows=side.num_rows)


def _braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def queries(seed: int, sides: Sequence[Side], count: int) -> list[Query]:
    """The queries of a seed."""
    return [Generator(seed * 100 + i, sides).query() for i in range(count)]
