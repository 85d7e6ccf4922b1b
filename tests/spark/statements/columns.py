"""Columns and forms of random tables, and the text of both dialects: that of Spark and that of the reference.

Texts of statements are neutral. ``«‹a›1, ‹b›2»`` is a struct with the fields ``a`` and ``b``, ``⟦1, 2⟧`` is a list,
``⟨[1,2]⟩`` is a variant, which the reference has as the text of its JSON;
``{t}`` is the table that a statement changes, ``{own}`` its rows as they were before, ``{other}`` another table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

WIDER = {"INT": "BIGINT"}
SCALARS = ("INT", "BIGINT", "STRING", "DOUBLE", "DATE", "BOOLEAN")
VARIANT = "VARIANT"
"""Only of tables whose lake has the type."""
DOCUMENTS = (
    *({"a": number, "b": text} for number, text in ((0, "a"), (3, "ab"), (7, "zz"), (-200, ""), (70_000, "b"))),
    *({"a": 5, "c": [1, {"b": None}]}, {"a": None}, {"b": "a" * 80}, {}, [], [1, 2.5, "x"], "text", 7, None, True),
)
"""Values of variants. A field ``a`` is a number, and ``b`` is a text."""
MARK = 1_000_000
"""Rows that others append meanwhile have ids from here on."""


@dataclass(frozen=True)
class Items:
    """The type of a list of structs."""

    fields: tuple[Column, ...]


@dataclass(frozen=True)
class Column:
    """A column, or a field of one: ``kind`` is the name of a type, the fields of a struct, or those of a list's."""

    name: str
    kind: str | tuple[Column, ...] | Items
    required: bool = False
    default: str | None = None
    generated: str | None = None
    """The expression that gives its values."""
    is_identity: bool = False
    """Whether the table numbers its rows; the reference has null in their place."""

    @property
    def is_given(self) -> bool:
        """Whether statements may give it a value."""
        return self.generated is None and not self.is_identity

    def type_in_spark(self) -> str:
        if isinstance(self.kind, str):
            return self.kind
        struct = f"STRUCT<{', '.join(f'{field.name}: {field.type_in_spark()}' for field in self.fields)}>"
        return f"ARRAY<{struct}>" if isinstance(self.kind, Items) else struct

    def type_in_reference(self) -> str:
        if isinstance(self.kind, str):
            return "VARCHAR" if self.kind == VARIANT else self.kind
        struct = f"STRUCT({', '.join(f'{field.name} {field.type_in_reference()}' for field in self.fields)})"
        return f"{struct}[]" if isinstance(self.kind, Items) else struct

    @property
    def fields(self) -> tuple[Column, ...]:
        """The fields inside."""
        if isinstance(self.kind, Items):
            return self.kind.fields
        return () if isinstance(self.kind, str) else self.kind

    def with_fields(self, fields: Sequence[Column]) -> Column:
        return replace(self, kind=Items(tuple(fields)) if isinstance(self.kind, Items) else tuple(fields))


FIRST = (
    Column("id", "BIGINT", required=True),
    Column("day", "INT"),
    Column("n", "INT"),
    Column("s", "STRING"),
    Column("st", (Column("a", "INT"), Column("b", "STRING"))),
    Column("d", "DATE"),
)
LIST = Column("l", Items((Column("a", "INT"), Column("b", "STRING"))))
DOCUMENT = Column("v", VARIANT)
IDENTITY = Column("k", "BIGINT", is_identity=True)
GENERATED = (
    Column("g", "INT", generated="n + 1"),
    Column("g", "INT", generated="n * 2 - day"),
    Column("g", "INT", generated="length(s)"),
    Column("g", "INT", generated="month(d)"),
    Column("g", "BIGINT", generated="id * 3"),
    Column("g", "STRING", generated="upper(s)"),
    Column("g", "STRING", generated="s || '-'"),
)
CHECKS = (
    "n <= 40",
    "length(s) <= 2 OR day = 1",
    "n * 2 <> 26 OR s IS NULL",
    "n BETWEEN 0 AND 45",
    "s <> 'zzu'",
    f"id < 75 OR id >= {MARK}",
)
"""Conditions that most rows keep: those that others append, and constants that are defaults, always."""
CHECKED = {"n": ("INT", "BIGINT"), "s": ("STRING",), "day": ("INT",), "id": ("BIGINT",)}
"""The types of the columns in them."""


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
    extra: tuple[Column, ...] = ()
    """Columns beside the first ones: of numbers, of an expression, of lists."""
    checks: tuple[tuple[str, str], ...] = ()
    """Constraints: their names and conditions."""
    former: tuple[str, ...] = ()
    """What the table was partitioned by before."""

    @property
    def fixed(self) -> frozenset[str]:
        """The columns that are not renamed, dropped or widened."""
        texts = [self.partition or "", *self.former, *(condition for _, condition in self.checks)]
        texts += [column.generated or "" for column in self.extra]
        found = {name for text in texts for name in re.findall(r"[a-z]\w*(?![\w(])", text)}
        return frozenset({"id", "day", *found, *(column.name for column in self.extra)})

    def partition_of(self, prefix: str = "", *, is_new: bool = False) -> str:
        """The partition of a row, as a text that is never null. Rows that are ``new`` lack generated columns yet."""
        generated = {c.name: c.generated for c in self.extra if c.generated} if is_new else {}
        parts = []
        for field in [] if self.partition is None else re.split(r", (?![^(]*\))", self.partition):
            match re.fullmatch(r"(?:(\w+)\((?:(\d+), )?)?(\w+)\)?", field).groups():  # type: ignore[union-attr]
                case ("truncate", width, "id"):
                    part = f"{prefix}id // {width}"
                case ("truncate", width, name):
                    part = f"left({prefix}{name}, {width})"
                case ("months", _, name):
                    part = f"date_trunc('month', {prefix}{name})"
                case (_, _, name):
                    part = generated.get(name) or prefix + name
            parts.append(f"coalesce(CAST({part} AS STRING), 'null')")
        return " || '|' || ".join(parts) or "'all'"

    def id_width(self) -> int | None:
        """The number of ids in a partition, where it is by ids alone."""
        found = re.fullmatch(r"truncate\((\d+), id\)", self.partition or "")
        return int(found[1]) if found else None

    def other_partitions(self) -> list[str | None]:
        """What the table may be partitioned by instead."""
        if self.key == ("id",):
            return [None, "truncate(4, id)", "truncate(8, id)"]
        found = [None, "day", "truncate(4, id)", "day, truncate(4, id)"]
        return found if self.key else [*found, "truncate(1, s)", "days(d)", "months(d)", "s"]

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
    extra: list[Column] = []
    if rng.random() < 0.25:
        extra.append(rng.choice(GENERATED))
        if not keyed and rng.random() < 0.4:
            partition = "g"
    if rng.random() < 0.12:
        extra.append(IDENTITY)
    if rng.random() < 0.25:
        extra.append(LIST)
    if lake == "paimon" and rng.random() < 0.4:
        extra.append(DOCUMENT)
    if lake == "iceberg" and rng.random() < 0.3:
        by_value = ["truncate(1, s)", "truncate(4, id)", "days(d)", "months(d)"]
        partition = rng.choice(["truncate(4, id)"] if keyed else by_value)
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
        tuple(extra),
        (("c0", rng.choice(CHECKS)),) if rng.random() < 0.2 else (),
    )


def first_columns(form: Form) -> list[Column]:
    return [*(replace(column, required=column.required or column.name in form.key) for column in FIRST), *form.extra]


def ddl_in_spark(columns: Sequence[Column], form: Form) -> str:
    listed = [f"{c.name} {c.type_in_spark()}{_clause(c)}" for c in columns]
    listed += [f"PRIMARY KEY ({', '.join(form.key)})"] if form.key else []
    listed += [f"CONSTRAINT {name} CHECK ({condition})" for name, condition in form.checks]
    return f"({', '.join(listed)}){form.clauses()}"


def _clause(column: Column) -> str:
    if column.is_identity:
        return " GENERATED ALWAYS AS IDENTITY"
    if column.generated is not None:
        return f" GENERATED ALWAYS AS ({column.generated})"
    return " NOT NULL" if column.required else ""


def ddl_in_reference(columns: Sequence[Column]) -> str:
    return ", ".join(f"{column.name} {column.type_in_reference()}" for column in columns)


def in_spark(text: str) -> str:
    text = text.replace("«", "named_struct(").replace("»", ")").replace("⟦", "array(").replace("⟧", ")")
    text = text.replace("⟨", "parse_json('").replace("⟩", "')")
    return re.sub(r"‹(\w+)›", r"'\1', ", text)


def in_reference(text: str) -> str:
    text = text.replace("«", "struct_pack(").replace("»", ")").replace("⟦", "[").replace("⟧", "]")
    text = text.replace("⟨", "'").replace("⟩", "'").replace(f" AS {VARIANT})", " AS VARCHAR)")
    text = re.sub(r"variant_get\(([\w.]+), ('[$.\w]+'), '(\w+)'\)", r"CAST(json_extract_string(\1, \2) AS \3)", text)
    return re.sub(r"‹(\w+)›", r"\1 := ", text)


def literal(rng: Random, column: Column) -> str:
    """A value of a column, typed also where it is null, which a column that the table fills in always is."""
    if not column.is_given or (not column.required and rng.random() < 0.15):
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
            return f"DATE '2024-{rng.randrange(1, 4):02}-{rng.randrange(1, 6):02}'"
        case "BOOLEAN":
            return rng.choice(["TRUE", "FALSE"])
        case "VARIANT":
            return f"⟨{json_text(rng.choice(DOCUMENTS))}⟩"
        case Items(fields):
            return f"⟦{', '.join(literal(rng, Column(column.name, fields)) for _ in range(rng.randint(1, 3)))}⟧"
        case fields:
            return "«" + ", ".join(f"‹{field.name}›{literal(rng, field)}" for field in fields) + "»"


def scalars_of(form: Form) -> tuple[str, ...]:
    """The types of columns that such a table may get."""
    return (*SCALARS, VARIANT) if form.lake == "paimon" else SCALARS


def json_text(value: Any) -> str:
    """The one text of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def null(column: Column) -> str:
    if isinstance(column.kind, str):
        return f"CAST(NULL AS {column.kind})"
    struct = "«" + ", ".join(f"‹{f.name}›{null(f)}" for f in column.fields) + "»"
    return f"CASE WHEN 1 = 0 THEN {f'⟦{struct}⟧' if isinstance(column.kind, Items) else struct} END"
