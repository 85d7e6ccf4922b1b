"""Arguments of catalog calls: table names and schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import parse_database, parse_table_name
from streamhouse_spark.core.types import TablePath


@dataclass(frozen=True, slots=True)
class StructJson:
    """A ``StructType`` as its JSON text, for `TableSchema.of`."""

    text: str

    def json(self) -> str:
        return self.text


def table_path(database: object, table: object, doing: str) -> TablePath:
    """Return the path of a database and a table name. Raises `InvalidNameError`, also for a suffix or a branch.

    Each part is validated separately, so that a dot or ``$`` in one cannot name another table.
    """
    return parse_table_name(f"{parse_database(database)}.{table}").require_table(doing)


def rows_path_of(args: Mapping[str, Any], doing: str) -> TablePath:
    """Return the path in ``database`` and ``table``, which may name a branch."""
    return parse_table_name(f"{parse_database(args['database'])}.{args['table']}").require_rows(doing)


def path_of(args: Mapping[str, Any], doing: str) -> TablePath:
    """Return the path in ``database`` and ``table``."""
    return table_path(args["database"], args["table"], doing)
