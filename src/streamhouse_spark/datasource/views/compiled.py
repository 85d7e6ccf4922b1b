"""A view's query compiled for a session: names and types are Spark's, the plan is ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.datasource.spark_schema import SIZE_METADATA
from streamhouse_spark.datasource.views.relations import CATALOG, Relations
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, MissingExtraError
from streamhouse_spark.handle import TableHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlglot import exp

    from streamhouse_spark.zset.plan import Node
    from streamhouse_spark.zset.statements import Statements
    from streamhouse_spark.zset.types import TypesOf

SESSION = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""Settings that the values of a query depend on."""


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query, with the tables that it reads under their full names."""

    tree: exp.Query
    tables: Mapping[str, str]
    """Name in the query → ``database.table``."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The tables, each once, in an order that depends on their names alone."""
        return tuple(sorted(set(self.tables.values())))

    def text_over(self, relations: Mapping[str, str]) -> str:
        """Return the query over other relations: ``database.table`` → relation."""
        from sqlglot import exp

        tree = self.tree.copy()
        for table in tree.find_all(exp.Table):
            name = ".".join(part.name for part in table.parts)
            if name in self.tables:
                alias = table.alias or table.name
                table.set("db", None)
                table.set("catalog", None)
                table.set("this", exp.to_identifier(relations[self.tables[name]]))
                table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        return str(tree.sql("spark"))


@contextmanager
def refusing(view: str) -> Iterator[None]:
    """Raise what a plan refuses as `InvalidOptionError`, with the part that prevents it."""
    try:
        from streamhouse_spark.zset.plan import RefusedPart
    except ImportError as error:
        raise MissingExtraError(
            "materialised tables need sqlglot, which is not installed; use pip install 'streamhouse-spark[spark]'"
        ) from error
    try:
        yield
    except RefusedPart as error:
        raise InvalidOptionError(
            f"the query of {view} cannot be kept: {error}; write it otherwise, or use mode='full', which computes the "
            "whole query each time"
        ) from error


def parse_query(view: str, query: str) -> ParsedQuery:
    """Parse a query. Raises `InvalidOptionError`, `InvalidNameError` for what is none over tables of the warehouse."""
    with refusing(view):
        from streamhouse_spark.zset.reader import parsed, table_names

        tree = parsed(query)
        found = {name: _table_name(view, name) for name in table_names(tree)}
    if view in found.values():
        raise InvalidOptionError(f"the query of {view} reads {view} itself; read other tables")
    if not found:
        raise InvalidOptionError(f"the query of {view} reads no table; there is nothing to keep it from")
    return ParsedQuery(tree, found)


def _table_name(view: str, name: str) -> str:
    parts = name.split(".")
    if len(parts) == 3 and parts[0] == CATALOG:
        parts = parts[1:]
    if len(parts) != 2 or "$" in name:
        raise InvalidNameError(
            f"the query of {view} reads {name!r}; expected tables of the warehouse as database.table, without a suffix"
        )
    return str(parse_table_name(".".join(parts)).path)


def session_values(spark: SparkSession) -> dict[str, str]:
    return {name: str(spark.conf.get(name)) for name in SESSION}


def require_session(spark: SparkSession, view: str, wanted: Mapping[str, str]) -> None:
    """Raise `InvalidOptionError` where the session would give the query other values than the view's."""
    for name, value in session_values(spark).items():
        if name in wanted and wanted[name] != value:
            raise InvalidOptionError(
                f"{view} was made with {name} = {wanted[name]}, this session has {value}, by which the query may have "
                f"other values; set it to {wanted[name]} for refreshes"
            )


def compiled(
    relations: Relations, parsed: ParsedQuery, sources: Mapping[str, TableHandle], names: tuple[str, ...]
) -> Statements:
    """Return the statements of a query, with Spark's types. Raises `RefusedPart`."""
    from streamhouse_spark.zset.plan import Group
    from streamhouse_spark.zset.statements import Statements, identity_of
    from streamhouse_spark.zset.types import without_size
    from streamhouse_spark.zset.writer import Writer

    writer = Writer(relations.prefix, frozenset())

    def types_of(node: Node) -> dict[str, str]:
        fields: Any = relations.sql(writer.rows(node, "new")).schema.fields
        return {field.name: field.metadata.get(SIZE_METADATA) or field.dataType.simpleString() for field in fields}

    root = _plan(parsed, sources, types_of)
    types = types_of(root)
    if isinstance(root, Group):
        types |= types_of(root.child)
    types = {name: without_size(kind) for name, kind in types.items()}
    return Statements(root, names, types, identity_of(root, types))


def _plan(parsed: ParsedQuery, sources: Mapping[str, TableHandle], types_of: TypesOf) -> Node:
    """Return the plan, of the columns that the query needs."""
    from streamhouse_spark.zset.narrowed import narrowed
    from streamhouse_spark.zset.plan import SourceColumns
    from streamhouse_spark.zset.reader import plan_of

    ids = {name: f"t{number}" for number, name in enumerate(parsed.sources)}
    columns = {}
    for name, source in sources.items():
        state = source.state
        firm = {column.name for column in state.schema.columns if not column.nullable}
        columns[ids[name]] = SourceColumns(state.schema.names, state.primary_key, frozenset(firm))
    of_name = {given: ids[name] for given, name in parsed.tables.items()}
    return narrowed(plan_of(parsed.tree, columns, of_name, types_of))
