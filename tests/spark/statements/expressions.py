"""Random conditions and expressions that mean the same in Spark and in the reference."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from spark.statements.columns import VARIANT, Column, Items, literal, null


class Expressions:
    """Expressions over columns, with a prefix such as ``t.``."""

    def __init__(self, rng: Random, columns: Sequence[Column], prefix: str = "") -> None:
        self.rng, self.columns, self.prefix = rng, [c for c in columns if not c.is_identity], prefix

    # -- conditions -----------------------------------------------------------------------------------------------

    def condition(self, depth: int = 1) -> str:
        if depth and self.rng.random() < 0.45:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            return self.rng.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
        return self._leaf(*self._chosen())

    def simple(self, names: Sequence[str] | None = None) -> str:
        """A condition that compares columns with constants: one that any part of a table can be chosen by."""
        chosen = [c for c in self.columns if c.kind in ("INT", "BIGINT", "STRING", "DATE") and c.is_given]
        column = self.rng.choice([c for c in chosen if names is None or c.name in names])
        name, value = self.prefix + column.name, _constant(self.rng, column)
        leaf = self.rng.choice(
            [f"{name} = {value}", f"{name} >= {value}", f"{name} IN ({value}, {_constant(self.rng, column)})"]
        )
        return f"({leaf} OR {name} IS NULL)" if self.rng.random() < 0.2 else leaf

    def with_subquery(self, other: str | None) -> str:
        """A condition on ``t`` that reads the table once more, or another one."""
        inner = Expressions(self.rng, self.columns, "o.").condition(0)
        column = self.rng.choice([c.name for c in self.columns if c.kind in ("INT", "BIGINT", "STRING")])
        some = f"SELECT o.{column} FROM {{own}} AS o WHERE {inner}"
        numbers = [c.name for c in self.columns if c.kind in ("INT", "BIGINT")]
        number = self.rng.choice(numbers)
        choices = [
            f"t.{column} IN ({some})",
            f"t.{column} NOT IN ({some})",
            f"t.{column} NOT IN ({some} AND o.{column} IS NOT NULL)",
            f"EXISTS (SELECT 1 FROM {{own}} AS o WHERE o.day = t.day AND o.id > t.id AND {inner})",
            "NOT EXISTS (SELECT 1 FROM {own} AS o WHERE o.id = t.id + 1)",
            f"t.{number} >= (SELECT max(o.{number}) FROM {{own}} AS o WHERE {inner}) - 3",
        ]
        if other is not None:
            choices += [
                "t.id IN (SELECT o.id FROM {other} AS o WHERE o.day > 0)",
                "NOT EXISTS (SELECT 1 FROM {other} AS o WHERE o.id = t.id)",
            ]
        return self.rng.choice(choices)

    def _chosen(self) -> tuple[str, Column]:
        column = self.rng.choice(self.columns)
        if not isinstance(column.kind, tuple) or self.rng.random() < 0.2:
            return self.prefix + column.name, column
        field = self.rng.choice(column.kind)
        return f"{self.prefix}{column.name}.{field.name}", field

    def _leaf(self, name: str, column: Column) -> str:
        if self.rng.random() < 0.15 or not isinstance(column.kind, str):
            return self.rng.choice([f"{name} IS NULL", f"{name} IS NOT NULL"])
        if column.kind == VARIANT:
            return self._of_document(name)
        value = _constant(self.rng, column)
        choices = [f"{name} = {value}", f"{name} > {value}", f"{name} <= {value}", f"NOT ({name} = {value})"]
        match column.kind:
            case "INT" | "BIGINT":
                k = self.rng.randrange(10)
                choices += [f"{name} % 3 = {k % 3}", f"{name} IN ({k}, {k + 1}, {k + 5})"]
                choices += [f"{name} BETWEEN {k} AND {k + 4}", f"coalesce({name}, 3) < {k}"]
            case "STRING":
                choices += [f"{name} LIKE 'a%'", f"length({name}) > 1", f"{name} || 'b' = 'ab'"]
            case "BOOLEAN":
                return self.rng.choice([name, f"NOT {name}", f"coalesce({name}, FALSE)"])
        return self.rng.choice(choices)

    def _of_document(self, name: str) -> str:
        number, text = f"variant_get({name}, '$.a', 'int')", f"variant_get({name}, '$.b', 'string')"
        k = self.rng.randrange(10)
        return self.rng.choice(
            [f"{number} > {k}", f"coalesce({number}, 3) < {k}", f"{number} IS NULL", f"{text} LIKE 'a%'"]
        )

    # -- values ---------------------------------------------------------------------------------------------------

    def value(self, wanted: Column, *, ignores_old: bool = False) -> str:
        """Return an expression for a column; with ``ignores_old`` it does not use the old value of the column."""
        if not wanted.is_given:
            return null(wanted)
        alike = [c.name for c in self.columns if c.kind == wanted.kind and not (wanted.required and not c.required)]
        if self.rng.random() < 0.3 or not alike:
            return literal(self.rng, wanted)
        name = self.prefix + self.rng.choice(alike)
        own = self.prefix + wanted.name
        is_here = any(c.name == wanted.name and c.kind == wanted.kind for c in self.columns)
        if ignores_old or not is_here or wanted.name in ("id", "day"):
            return name if wanted.name != "day" or wanted.required else literal(self.rng, wanted)
        match wanted.kind:
            case "INT":
                return self.rng.choice([name, f"({own} + {self.rng.randrange(9)}) % 50", f"({own} * 2) % 41"])
            case "BIGINT":
                return self.rng.choice([name, f"({own} + {self.prefix}id) % 97"])
            case "STRING":
                return self.rng.choice([name, f"substring({own}, 1, 2) || 'u'", f"upper({own})"])
            case "DOUBLE":
                return self.rng.choice([name, f"{own} + CAST(0.5 AS DOUBLE)"])
            case "BOOLEAN":
                return self.rng.choice([name, f"NOT {own}"])
            case "DATE" | "VARIANT" | Items():
                return name
        changed = self.rng.choice(wanted.fields).name
        parts = [f"‹{f.name}›{literal(self.rng, f) if f.name == changed else f'{own}.{f.name}'}" for f in wanted.fields]
        return f"CASE WHEN {own} IS NULL THEN NULL ELSE «{', '.join(parts)}» END"


def _constant(rng: Random, column: Column) -> str:
    return literal(rng, Column(column.name, column.kind, required=True))
