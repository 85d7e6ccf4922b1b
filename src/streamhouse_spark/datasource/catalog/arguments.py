"""What the JVM class says in a call's arguments: names of tables, schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamhouse_spark.core.model import TablePath
from streamhouse_spark.core.paths import parse_database, parse_table_name


@dataclass(frozen=True, slots=True)
class StructJson:
    """A ``StructType`` as its JSON text: what `TableSchema.of` reads."""

    text: str

    def json(self) -> str:
        return self.text


def table_path(database: object, table: object, doing: str) -> TablePath:
    """The path of two names that Spark keeps apart. Raises `InvalidNameError`, also for a suffix.

    Each part is checked as what it is, so that no dot or ``$`` in one of them can name another table.
    """
    return parse_table_name(f"{parse_database(database)}.{table}").require_table(doing)


def path_of(args: Mapping[str, Any], doing: str) -> TablePath:
    """The path in ``database`` and ``table``."""
    return table_path(args["database"], args["table"], doing)
