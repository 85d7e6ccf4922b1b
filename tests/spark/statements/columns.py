"""Columns and forms of random tables, and the text of both dialects: that of Spark and that of the reference.

Texts of statements are neutral. ``«‹a›1, ‹b›2»`` is a struct with the fields ``a`` and ``b``; ``{t}`` is the table that
a statement changes, ``{own}`` its rows as they were before, ``{other}`` another table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

WIDER = {"INT": "BIGINT"}
SCALARS = ("INT", "BIGINT", "STRING", "DOUBLE", "DATE", "BOOLEAN")
MARK = 1_000_000
"""Rows that others append meanwhile have ids from here on."""


@dataclass(frozen=True)
class Column:
    """A column, or a field of one: ``kind`` is the name of a type, or the fields of a struct."""

    name: str
    kind: str | tuple[Column, ...]
    required: bool = False
    default: str | None = None

    def type_in_spark(self) -> str:
        if isinstance(self.kind, str):
            return self.kind
        return f"STRUCT<{', '.join(f'{field.name}: {field.type_in_spark()}' for field in self.kind)}>"

    def type_in_reference(self) -> str:
        if isinstance(self.kind, str):
            return self.kind
        return f"STRUCT({', '.join(f'{field.name} {field.type_in_reference()}' for field in self.kind)})"


FIRST = (
    Column("id", "BIGINT", required=True),
    Column("day", "INT"),
    Column("n", "INT"),
    Column("s", "STRING"),
    Column("st", (Column("a", "INT"), Column("b", "STRING"))),
)


@dataclass(frozen=True)
class Form:
    """The part of a table that its columns do not say."""

    lake: str = "iceberg"
    key: tuple[str, ...] = ()
    partition: str | None = None
    """``day``, a transform, or nothing."""
    buckets: int = 1
    bucket_key: str | None = None
    trims: bool = False
    images: str = "full"

    @property
    def fixed(self) -> frozenset[str]:
        """The columns that are not renamed, dropped or widened."""
        return frozenset({"id", "day", *(re.findall(r"[a-z]\w*(?![\w(])", self.partition or ""))})

    def partition_of(self, prefix: str = "") -> str:
        """The partition of a row, as an expression of the reference."""
        if self.partition is None:
            return "1"
        match re.fullmatch(r"truncate\((\d+), (\w+)\)", self.partition):
            case None:
                return prefix + self.partition
            case found if found[2] == "id":
                return f"({prefix}id // {found[1]})"
            case found:
                return f"left({prefix}{found[2]}, {found[1]})"

    def clauses(self) -> str:
        """The text behind the columns of CREATE TABLE."""
        properties = {"bucket.num": str(self.buckets), "table.datalake.format": self.lake}
        if self.bucket_key:
            properties["bucket.key"] = self.bucket_key
        if self.trims:
            properties["table.log.ttl"] = "1ms"
        if self.key:
            properties["table.changelog.image"] = self.images
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        partitioned = f" PARTITIONED BY ({self.partition})" if self.partition else ""
        return f"{partitioned} TBLPROPERTIES ({listed})"


def random_form(rng: Random, lake: str | None = None, *, keyed: bool | None = None) -> Form:
    lake = lake or rng.choice(["iceberg", "iceberg", "paimon"])
    keyed = rng.random() < 0.5 if keyed is None else keyed
    partition = rng.choice([None, "day", "day"])
    if lake == "iceberg" and rng.random() < 0.25:
        partition = rng.choice(["truncate(4, id)"] if keyed else ["truncate(1, s)", "truncate(4, id)"])
    key: tuple[str, ...] = ()
    if keyed:
        key = ("id", "day") if partition == "day" else ("id",)
    return Form(
        lake,
        key,
        partition,
        rng.choice([1, 2, 3]),
        "id" if not keyed and rng.random() < 0.5 else None,
        rng.random() < 0.4,
        rng.choice(["full", "full", "wal"]),
    )


def first_columns(form: Form) -> list[Column]:
    return [replace(column, required=column.required or column.name in form.key) for column in FIRST]


def ddl_in_spark(columns: Sequence[Column], form: Form) -> str:
    listed = [f"{c.name} {c.type_in_spark()}{' NOT NULL' if c.required else ''}" for c in columns]
    key = [f"PRIMARY KEY ({', '.join(form.key)})"] if form.key else []
    return f"({', '.join(listed + key)}){form.clauses()}"


def ddl_in_reference(columns: Sequence[Column]) -> str:
    return ", ".join(f"{column.name} {column.type_in_reference()}" for column in columns)


def in_spark(text: str) -> str:
    return re.sub(r"‹(\w+)›", r"'\1', ", text.replace("«", "named_struct(").replace("»", ")"))


def in_reference(text: str) -> str:
    return re.sub(r"‹(\w+)›", r"\1 := ", text.replace("«", "struct_pack(").replace("»", ")"))


def literal(rng: Random, column: Column) -> str:
    """A value of a column, typed also where it is null."""
    if not column.required and rng.random() < 0.15:
        return null(column)
    match column.kind:
        case "INT":
            return str(rng.randrange(3 if column.name == "day" else 12))
        case "BIGINT":
            return f"CAST({rng.randrange(12)} AS BIGINT)"
        case "STRING":
            return repr(rng.choice(["", "a", "ab", "b", "bc", "zz"]))
        case "DOUBLE":
            return f"CAST({rng.randrange(-8, 9) / 4} AS DOUBLE)"
        case "DATE":
            return f"DATE '2024-01-{rng.randrange(1, 29):02}'"
        case "BOOLEAN":
            return rng.choice(["TRUE", "FALSE"])
        case fields:
            return "«" + ", ".join(f"‹{field.name}›{literal(rng, field)}" for field in fields) + "»"


def null(column: Column) -> str:
    if isinstance(column.kind, str):
        return f"CAST(NULL AS {column.kind})"
    return "CASE WHEN 1 = 0 THEN «" + ", ".join(f"‹{f.name}›{null(f)}" for f in column.kind) + "» END"
