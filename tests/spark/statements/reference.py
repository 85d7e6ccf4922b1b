"""The reference: DuckDB, which runs the same statements on plain tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb
from pyspark.sql import VariantVal

from spark.statements.columns import MARK, Column, ddl_in_reference, in_reference, json_text
from spark.statements.grammar import Statement

Rows = Counter[tuple[Any, ...]]


def exact(value: Any) -> Any:
    """The value in a form that is equal only to itself and can be a key; fields of a struct in no order. A variant is
    the text of its JSON, as PySpark reads it.
    """
    if isinstance(value, dict):
        if value.keys() == {"value", "metadata"}:
            return exact(json_text(json.loads(VariantVal(value["value"], value["metadata"]).toJson())))
        return tuple(sorted((name, exact(item)) for name, item in value.items()))
    if isinstance(value, list):
        return ("list", *map(exact, value))
    if isinstance(value, float):
        return ("float", repr(value))
    return (type(value).__name__, value)


def counted(rows: Iterable[Sequence[Any]]) -> Rows:
    return Counter(tuple(map(exact, row)) for row in rows)


class Reference:
    """Tables under short names. A statement is begun, and then kept or undone."""

    def __init__(self) -> None:
        self._duck = duckdb.connect()

    def close(self) -> None:
        self._duck.close()

    def create(self, name: str, columns: Sequence[Column]) -> None:
        self._duck.execute(f"CREATE TABLE {name} ({ddl_in_reference(columns)})")

    def copy(self, name: str, to: str) -> None:
        self._duck.execute(f"CREATE OR REPLACE TABLE {to} AS FROM {name}")

    def set_defaults(self, name: str, columns: Sequence[Column]) -> None:
        """Give the copy of a table the defaults of its columns."""
        for column in columns:
            if column.default is not None:
                self._duck.execute(f"ALTER TABLE {name} ALTER COLUMN {column.name} SET DEFAULT {column.default}")

    def drop(self, name: str) -> None:
        self._duck.execute(f"DROP TABLE IF EXISTS {name}")

    def names(self, name: str) -> list[str]:
        return [row[0] for row in self._duck.execute(f"DESCRIBE {name}").fetchall()]

    def rows(self, name: str, where: str = "TRUE", items: str = "*") -> Rows:
        return counted(self._duck.execute(f"SELECT {items} FROM {name} AS t WHERE {where}").fetchall())

    def count(self, name: str) -> int:
        return int(self._duck.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0])

    def add(self, name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
        """Add rows that others appended: their ids and days, and defaults or null in all else."""
        for row in rows:
            self._duck.execute(f"INSERT INTO {name} (id, day) VALUES (?, ?)", [row["id"], row["day"]])
        self.generate(name, columns)

    def generate(self, name: str, columns: Sequence[Column]) -> None:
        """Give generated columns their values."""
        for column in columns:
            if column.generated is not None:
                self._duck.execute(f"UPDATE {name} SET {column.name} = {column.generated}")

    def run(self, *texts: str) -> None:
        for text in texts:
            self._duck.execute(text)

    def breaks(self, name: str, checks: Sequence[tuple[str, str]]) -> bool:
        """Whether some row is in breach of a constraint."""
        return any(self._has_row(f"SELECT 1 FROM {name} WHERE NOT ({condition})") for _, condition in checks)

    def remove(self, name: str, ids: Sequence[int]) -> None:
        self._duck.execute(f"DELETE FROM {name} WHERE id IN (SELECT unnest(?))", [list(ids)])

    def marked(self, name: str, where: str) -> set[int]:
        """The ids of others' rows of a condition."""
        found = self._duck.execute(f"SELECT id FROM {name} AS t WHERE id >= {MARK} AND ({where})").fetchall()
        return {row[0] for row in found}

    def begin(
        self, name: str, statement: Statement, other: str | None, columns: Sequence[Column], *, guarded: bool
    ) -> list[str]:
        """Run a statement, not yet for good, and return the refusals that it has to meet. A ``guarded`` one does not
        see rows of others. The table has these ``columns`` afterwards.
        """
        own = f"before_{name}"

        def text(given: str) -> str:
            return in_reference(given.replace("{t}", name).replace("{own}", own).replace("{other}", other or ""))

        if any("{own}" in part for part in (*statement.model, *statement.fails_if.values())):
            self._duck.execute(f"CREATE OR REPLACE TABLE {own} AS FROM {name} WHERE {not guarded} OR id < {MARK}")
        refusals = [reason for reason, query in statement.fails_if.items() if self._has_row(text(query))]
        self._duck.execute("BEGIN")
        for part in statement.model:
            self._duck.execute(text(part))
        self.generate(name, columns)
        return refusals

    def has_twice(self, name: str, key: Sequence[str]) -> bool:
        listed = ", ".join(key)
        return bool(key) and self._has_row(f"SELECT {listed} FROM {name} GROUP BY {listed} HAVING count(*) > 1")

    def keep(self) -> None:
        self._duck.execute("COMMIT")

    def undo(self) -> None:
        self._duck.execute("ROLLBACK")

    def _has_row(self, query: str) -> bool:
        return bool(self._duck.execute(f"{query} LIMIT 1").fetchall())
