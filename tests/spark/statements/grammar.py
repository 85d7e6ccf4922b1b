"""Random statements that change rows, each with its text for Spark and its meaning for the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from spark.statements.columns import MARK, Column, Form, literal
from spark.statements.expressions import Expressions

TWO_ROWS = "two rows of a key"
CARDINALITY = "cardinality"
OUTSIDE = "outside the part"


@dataclass(frozen=True)
class Statement:
    """A statement; see `columns` for the placeholders in its texts."""

    kind: str
    sql: str
    """Its text for Spark; of a `way` of a DataFrame, the query of its rows."""
    model: tuple[str, ...]
    way: str = "sql"
    """``sql``, or another of `ways`."""
    where: str = ""
    """More that the way has to know: the condition of ``overwrite``, the version of ``rollback``."""
    may: tuple[str, ...] = ()
    """Refusals that depend on more than the model knows."""
    must: str | None = None
    """The refusal that it has to meet."""
    fails_if: Mapping[str, str] = field(default_factory=dict)
    """Refusal → a query of the reference that has a row where the statement has to meet it."""
    gone: str | None = None
    """A condition for rows that go even if others added them meanwhile."""
    dynamic: bool = False
    columns: tuple[Column, ...] | None = None
    """The columns afterwards, where they change."""
    staying: str = ""
    """The part of its meaning that gives it these columns, which stay where it is refused behind that."""
    form: Form | None = None
    """The form afterwards, where another table takes the place."""
    reform: Form | None = None
    """The form afterwards, where that of the table changes."""
    alone: bool = False
    """Whether nothing else may run beside it."""


@dataclass(frozen=True)
class Target:
    """A table as the grammar sees it."""

    columns: Sequence[Column]
    form: Form
    other: bool
    """Whether there is another table."""

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def changeable(self) -> list[Column]:
        return [c for c in self.columns if c.is_given and c.name != "id" and c.name not in self.form.key]

    @property
    def takes_stars(self) -> bool:
        """Whether ``UPDATE SET *`` is possible."""
        return not any(column.is_identity for column in self.columns)

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)


class Grammar:
    """Statements on one table. ``guarded`` ones leave the rows alone that others add meanwhile."""

    def __init__(self, rng: Random, target: Target, *, guarded: bool) -> None:
        self.rng, self.target, self.guarded = rng, target, guarded

    def statement(self) -> Statement:
        kinds: list[tuple[Callable[[], Statement], int]] = [
            (self.insert, 5),
            (self.insert_own, 2),
            (self.insert_others, 1),
            (self.delete, 4),
            (self.update, 5),
            (self.merge, 9),
            (self.overwrite_all, 1),
            (self.overwrite_part, 3),
            (self.overwrite_where, 3),
            (self.truncate, 1),
        ]
        return self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()

    # -- parts ----------------------------------------------------------------------------------------------------

    def of(self, prefix: str) -> Expressions:
        return Expressions(self.rng, self.target.columns, prefix)

    def guard(self, condition: str, prefix: str = "t.") -> str:
        return f"{prefix}id < {MARK} AND ({condition})" if self.guarded else condition

    def values(self, columns: Sequence[Column], count: int, *, ids: Sequence[int] | None = None, day: str = "") -> str:
        """A query of rows whose ids are unique."""
        chosen = ids or self.rng.sample(range(30), count)
        rows = []
        for number in chosen:
            cells = [str(number) if c.name == "id" else literal(self.rng, c) for c in columns]
            cells = [day if c.name == "day" and day else cell for c, cell in zip(columns, cells, strict=True)]
            cells = [f"CAST({x} AS BIGINT)" if c.name == "id" else x for c, x in zip(columns, cells, strict=True)]
            rows.append(f"({', '.join(cells)})")
        return f"SELECT * FROM (VALUES {', '.join(rows)}) AS v({', '.join(c.name for c in columns)})"

    def from_own(self, columns: Sequence[Column], *, moved: int, day: str = "") -> str:
        of = self.of("o.")
        items = [f"o.id + {moved} AS id" if c.name == "id" else f"{of.value(c)} AS {c.name}" for c in columns]
        items = [f"{day} AS day" if c.name == "day" and day else i for c, i in zip(columns, items, strict=True)]
        return f"SELECT {', '.join(items)} FROM {{own}} AS o WHERE o.id < 500 AND {of.condition()}"

    def unique(self, query: str) -> dict[str, str]:
        """Where rows are of a key, two of one batch would depend on their order: the statement is left out."""
        if not self.target.form.key:
            return {}
        key = ", ".join(self.target.form.key)
        return {SKIPPED: f"SELECT 1 FROM ({query}) q GROUP BY {key} HAVING count(*) > 1"}

    def loaded(self, query: str, gone: str = "FALSE") -> tuple[str, ...]:
        """The meaning of rows that come, where others go: with a key, those of the same keys too."""
        same = " AND ".join(f"fresh.{name} = t.{name}" for name in self.target.form.key)
        replaced = [f"DELETE FROM {{t}} AS t WHERE EXISTS (SELECT 1 FROM fresh WHERE {same})"] if same else []
        return (
            f"CREATE OR REPLACE TEMP TABLE fresh AS {query}",
            f"DELETE FROM {{t}} AS t WHERE {gone}",
            *replaced,
            "INSERT INTO {t} BY NAME SELECT * FROM fresh",
        )

    # -- rows that come -------------------------------------------------------------------------------------------

    def insert(self) -> Statement:
        columns = list(self.target.columns)
        if self.rng.random() < 0.35:
            required = {"id", "day"}
            columns = [c for c in columns if c.name in required or self.rng.random() < 0.6]
        by_name = self.rng.random() < 0.3
        if by_name:
            self.rng.shuffle(columns)
        query = self.values(columns, self.rng.randint(1, 12))
        names = ", ".join(c.name for c in columns)
        how = "BY NAME" if by_name else f"({names})"
        return Statement("INSERT", f"INSERT INTO {{t}} {how} {query}", self.loaded(query))

    def insert_own(self) -> Statement:
        query = self.from_own(self.target.columns, moved=self.rng.choice([30, 60]))
        return Statement(
            "INSERT of its own rows",
            f"INSERT INTO {{t}} {query}",
            self.loaded(query),
            fails_if=self.unique(query),
        )

    def insert_others(self) -> Statement:
        if not self.target.other:
            return self.insert()
        moved = self.rng.choice([0, 30])
        query = f"SELECT o.id + {moved} AS id, o.day FROM {{other}} AS o WHERE o.id < 500 AND o.day < 3"
        text = f"INSERT INTO {{t}} (id, day) {query}"
        return Statement("INSERT of another table's rows", text, self.loaded(query), fails_if=self.unique(query))

    # -- rows that change -----------------------------------------------------------------------------------------

    def condition(self) -> tuple[str, str]:
        """A condition on ``t``, and the word for its kind."""
        if self.rng.random() < 0.35:
            return self.of("t.").with_subquery("other" if self.target.other else None), " by a subquery"
        return self.of("t.").condition(2), ""

    def delete(self) -> Statement:
        condition, word = self.condition()
        text = f"DELETE FROM {{t}} AS t WHERE {self.guard(condition)}"
        return Statement(f"DELETE{word}", text, (text,))

    def sets(self, prefix: str, *, of: Expressions | None = None) -> str:
        chosen = self.rng.sample(self.target.changeable, self.rng.randint(1, min(3, len(self.target.changeable))))
        source = of or self.of(prefix)
        return ", ".join(f"{c.name} = {source.value(c, ignores_old=of is not None)}" for c in chosen)

    def update(self) -> Statement:
        condition, word = self.condition()
        sets = self.sets("t.")
        numbers = [c for c in self.target.changeable if c.kind == "INT"]
        if numbers and self.rng.random() < 0.15:
            name = self.rng.choice(numbers).name
            sets, word = f"{name} = (SELECT max(o.{name}) FROM {{own}} AS o)", " by a subquery"
        text = f"UPDATE {{t}} AS t SET {sets} WHERE {self.guard(condition)}"
        return Statement(f"UPDATE{word}", text, (text,))

    # -- MERGE ----------------------------------------------------------------------------------------------------

    def merge(self) -> Statement:
        columns, word = self.target.columns, "MERGE"
        match self.rng.choice(["values", "values", "values", "own", "twice"]):
            case "values":
                source = self.values(columns, self.rng.randint(1, 10))
            case "own":
                source, word = self.from_own(columns, moved=self.rng.choice([0, 0, 1, 30])), "MERGE with itself"
            case _:
                ids = [self.rng.randrange(12) for _ in range(self.rng.randint(2, 5))]
                source = self.values(columns, len(ids), ids=ids)
        keys = self.target.form.key or ("id",)
        by_key = " AND ".join(f"t.{name} = s.{name}" for name in keys)
        on = self.rng.choice([by_key, by_key, by_key, f"{by_key} AND {self.of('s.').condition(0)}", self.on_another()])
        clauses = self.clauses(is_by_key=by_key in on)
        on = self.guard(on)
        form = "MERGE INTO {{t}} AS t USING ({source}) AS s ON {on} {clauses}"
        texts = [form.format(source=source, on=on, clauses=" ".join(pair[side] for pair in clauses)) for side in (0, 1)]
        texts = [text.replace("{{t}}", "{t}") for text in texts]
        fails: dict[str, str] = {}
        matched = [pair[0] for pair in clauses if pair[0].startswith("WHEN MATCHED")]
        if matched and matched != ["WHEN MATCHED THEN DELETE"]:
            fails[CARDINALITY] = (
                f"SELECT 1 FROM (SELECT rowid AS place, * FROM {{t}}) t JOIN ({source}) s ON {on} "
                "GROUP BY t.place HAVING count(*) > 1"
            )
        return Statement(word, texts[0], (texts[1],), fails_if=fails)

    def on_another(self) -> str:
        chosen = [c.name for c in self.target.columns if c.kind in ("INT", "STRING", "BIGINT") and c.is_given]
        name = self.rng.choice(chosen)
        return f"t.{name} = s.{name} AND t.day = s.day"

    def clauses(self, *, is_by_key: bool) -> list[tuple[str, str]]:
        """Clauses for both sides: an action with ``*`` has all columns in the reference."""
        found: list[tuple[str, str]] = []
        while not found:
            found += self.clauses_of("MATCHED", lambda: self.matched(is_by_key), "t.", "s.")
            found += self.clauses_of("NOT MATCHED", self.not_matched, "s.")
            found += self.clauses_of("NOT MATCHED BY SOURCE", self.not_by_source, "t.")
        return found

    def clauses_of(self, when: str, action: Callable[[], tuple[str, str]], *sides: str) -> list[tuple[str, str]]:
        found = []
        count = self.rng.choice([0, 1, 1, 2, 3] if when == "MATCHED" else [0, 1, 1, 2])
        for number in range(count):
            has_condition = number < count - 1 or self.rng.random() < 0.4
            condition = self.of(self.rng.choice(sides)).condition() if has_condition else ""
            if when == "NOT MATCHED BY SOURCE" and self.guarded:
                condition = self.guard(condition or "TRUE")
            with_condition = f" AND {condition}" if condition else ""
            found.append(tuple(f"WHEN {when}{with_condition} THEN {text}" for text in action()))
        return found  # type: ignore[return-value]

    def matched(self, is_by_key: bool) -> tuple[str, str]:
        if self.rng.random() < 0.3:
            return "DELETE", "DELETE"
        if is_by_key and self.target.takes_stars and self.rng.random() < 0.4:
            listed = ", ".join(f"{name} = s.{name}" for name in self.target.names)
            return "UPDATE SET *", f"UPDATE SET {listed}"
        sets = self.sets("t.") if self.rng.random() < 0.4 else self.sets("s.", of=self.of("s."))
        return f"UPDATE SET {sets}", f"UPDATE SET {sets}"

    def not_matched(self) -> tuple[str, str]:
        if self.rng.random() < 0.5:
            names = ", ".join(self.target.names)
            values = ", ".join(f"s.{name}" for name in self.target.names)
            return "INSERT *", f"INSERT ({names}) VALUES ({values})"
        columns = [c for c in self.target.columns if c.name in ("id", "day") or self.rng.random() < 0.5]
        of = self.of("s.")
        values = ", ".join(f"s.{c.name}" if c.name in ("id", "day") else of.value(c, ignores_old=True) for c in columns)
        text = f"INSERT ({', '.join(c.name for c in columns)}) VALUES ({values})"
        return text, text

    def not_by_source(self) -> tuple[str, str]:
        text = "DELETE" if self.rng.random() < 0.5 else f"UPDATE SET {self.sets('t.')}"
        return text, text

    # -- parts that are replaced ----------------------------------------------------------------------------------

    def new_rows(self, day: str = "") -> str:
        count = self.rng.randint(1, 8)
        if self.rng.random() < 0.3:
            return self.from_own(self.target.columns, moved=self.rng.choice([0, 30]), day=day)
        return self.values(self.target.columns, count, day=day)

    def overwrite_all(self) -> Statement:
        query = self.new_rows()
        model = self.loaded(query, "TRUE")
        fails = self.unique(query)
        if self.rng.random() < 0.4:
            text = f"CREATE OR REPLACE TABLE {{t}} AS {query}"
            return Statement("CREATE OR REPLACE AS, same columns", text, model, fails_if=fails, gone="TRUE", alone=True)
        return Statement("INSERT OVERWRITE", f"INSERT OVERWRITE {{t}} {query}", model, fails_if=fails, gone="TRUE")

    def overwrite_part(self) -> Statement:
        """Partitions: the named one, or those that the rows are of; without partitions the whole table is one."""
        form, names = self.target.form, self.target.names
        if form.partition == "day" and self.rng.random() < 0.4:
            day = str(self.rng.randrange(4))
            query = self.new_rows(day)
            rest = ", ".join(name for name in names if name != "day")
            text = f"INSERT OVERWRITE {{t}} PARTITION (day = {day}) SELECT {rest} FROM ({query}) AS q"
            gone, kind, dynamic = f"t.day = {day}", "INSERT OVERWRITE PARTITION", False
            way: Any = "sql"
        else:
            query = self.new_rows()
            fresh = form.partition_of(is_new=True)
            gone = f"{form.partition_of('t.')} IN (SELECT {fresh} FROM fresh)" if form.partition else "TRUE"
            way = self.rng.choice(["sql", "overwritePartitions"])
            text = f"INSERT OVERWRITE {{t}} {query}" if way == "sql" else query
            kind, dynamic = "INSERT OVERWRITE, dynamic" if way == "sql" else "overwritePartitions", way == "sql"
        return Statement(
            kind,
            text,
            self.loaded(query, gone),
            way=way,
            fails_if=self.unique(query),
            gone=gone,
            dynamic=dynamic,
        )

    def overwrite_where(self) -> Statement:
        form = self.target.form
        if form.key and form.partition is None:
            return self.update()
        width = form.id_width() if form.key else None
        names = ["id" if width else "day"] if form.key else None
        condition = f"id >= {width * self.rng.randrange(6)}" if width else self.of("").simple(names)
        if form.key and names == ["day"]:
            condition = condition.replace(" OR day IS NULL", "")
        query = self.new_rows()
        if self.rng.random() < 0.8:
            query = f"SELECT * FROM ({query}) AS q WHERE {condition}"
        outside = f"SELECT 1 FROM ({query}) q WHERE ({condition}) IS NOT TRUE"
        fails = {**self.unique(query), OUTSIDE: outside}
        model = self.loaded(query, condition)
        kinds = ["REPLACE WHERE", "overwrite(condition)"]
        is_plain = "CAST" not in condition and "DATE" not in condition
        kind = self.rng.choice([*kinds, "replaceWhere"] if is_plain else kinds)
        if kind == "REPLACE WHERE":
            text = f"INSERT INTO {{t}} REPLACE WHERE {condition} {query}"
            return Statement(kind, text, model, fails_if=fails, gone=condition)
        way = "overwrite" if kind == "overwrite(condition)" else kind
        return Statement(kind, query, model, way=way, where=condition, fails_if=fails, gone=condition)

    def truncate(self) -> Statement:
        if self.target.form.partition == "day" and self.rng.random() < 0.7:
            day = self.rng.randrange(3)
            text = self.rng.choice(
                [
                    f"TRUNCATE TABLE {{t}} PARTITION (day = {day})",
                    f"ALTER TABLE {{t}} DROP IF EXISTS PARTITION (day = {day})",
                ]
            )
            kind = "TRUNCATE PARTITION" if text.startswith("TRUNCATE") else "DROP PARTITION"
            model = (f"DELETE FROM {{t}} WHERE day = {day}",)
            return Statement(kind, text, model, gone=f"t.day = {day}", alone=kind == "DROP PARTITION")
        text = self.rng.choice(["TRUNCATE TABLE {t}", "DELETE FROM {t}", ""])
        return Statement("TRUNCATE", text, ("DELETE FROM {t}",), way="sql" if text else "Table.truncate", gone="TRUE")


SKIPPED = "left out"
"""Not a refusal: the meaning of the statement depends on an order that nobody promises."""
