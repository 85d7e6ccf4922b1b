"""Compilation of a view's query for a session: Spark determines names and types, and `views.ivm` the plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from streamhouse_spark.config.table_properties import ViewDefinition
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource.spark_schema import SIZE_METADATA
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.views.ivm.delta_sql import DeltaSqlWriter, quote_name
from streamhouse_spark.views.ivm.logical_plan import Group, Node, SourceColumns, UnsupportedQueryError, print_sql
from streamhouse_spark.views.ivm.query_parser import (
    TypesOf,
    build_plan,
    parse_sql,
    prune_columns,
    strip_length,
    table_names,
)
from streamhouse_spark.views.ivm.refresh_sql import RefreshStatements, choose_identity
from streamhouse_spark.views.temp_views import CATALOG, TempViews

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SESSION = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.legacy.timeParserPolicy",
)
"""Session settings that affect the result of a query."""
_REMEDY = "rewrite this part, or use mode='full', which computes the full query each time"


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query, with the full names of its tables."""

    text: str
    """The original text of the query."""
    tree: exp.Query
    tables: Mapping[str, str]
    """Name in the query → ``database.table``."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The distinct source tables, sorted by name."""
        return tuple(sorted(set(self.tables.values())))

    def text_over(self, relations: Mapping[str, str]) -> str:
        """Return the original text with each ``database.table`` replaced by its relation, and no other change."""
        edits = [(c.parts[0].meta["start"], c.parts[-2].meta["start"], "") for c in self._columns_with_database()]
        for table in self._source_tables():
            first, last = table.parts[0].meta["start"], table.parts[-1].meta["end"] + 1
            alias = "" if table.alias else f" AS {quote_name(table.name)}"
            edits.append((first, last, relations[self.tables[_dotted_name(table.parts)]] + alias))
        text = self.text
        for start, end, replacement in sorted(edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text.rstrip().rstrip(";")

    def printed_over(self, relations: Mapping[str, str]) -> str:
        """Return the text printed from the parsed query, with each ``database.table`` replaced by its relation."""
        parsed = ParsedQuery(self.text, self.tree.copy(), self.tables)
        for column in parsed._columns_with_database():
            column.set("db", None)
            column.set("catalog", None)
        for table in parsed._source_tables():
            alias = table.alias or table.name
            relation = relations[self.tables[_dotted_name(table.parts)]]
            table.set("db", None)
            table.set("catalog", None)
            table.set("this", exp.to_identifier(relation))
            table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        return print_sql(parsed.tree)

    def _source_tables(self) -> list[exp.Table]:
        return [table for table in self.tree.find_all(exp.Table) if _dotted_name(table.parts) in self.tables]

    def _columns_with_database(self) -> list[exp.Column]:
        """Return the column references with a database, which must be removed because relations have no database."""
        names = {name.lower() for name in (*self.tables, *self.tables.values())}
        columns = (column for column in self.tree.find_all(exp.Column) if len(column.parts) > 2)
        return [column for column in columns if _dotted_name(column.parts[:-1]).lower() in names]


def _dotted_name(parts: Sequence[exp.Expr]) -> str:
    return ".".join(part.name for part in parts)


@contextmanager
def reject_unsupported(view: str, remedy: str = _REMEDY) -> Iterator[None]:
    """Convert `UnsupportedQueryError` to `InvalidOptionError`, with the unsupported part and the remedy."""
    try:
        yield
    except UnsupportedQueryError as error:
        raise InvalidOptionError(
            f"the query of {view} cannot be maintained incrementally: {error}; {remedy}"
        ) from error


def parse_query(view: str, query: str) -> ParsedQuery:
    """Parse a query. Raises `InvalidOptionError` or `InvalidNameError` if it does not read tables of the warehouse."""
    with reject_unsupported(view, "rewrite this part"):
        tree = parse_sql(query)
        names = {name: _resolve_table_name(view, name) for name in table_names(tree)}
        for table in tree.find_all(exp.Table):
            if table.args.get("version"):
                raise UnsupportedQueryError(
                    "a table as of a version (a view reads the latest versions of its sources)", table
                )
            if table.args.get("sample") and not table.alias:
                raise UnsupportedQueryError("a sample of a table without an alias (add AS and a name)", table)
    if view in names.values():
        raise InvalidOptionError(f"the query of {view} reads {view} itself; read other tables")
    if not names:
        raise InvalidOptionError(f"the query of {view} reads no table; read at least one table of the warehouse")
    return ParsedQuery(query, tree, names)


def _resolve_table_name(view: str, name: str) -> str:
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


def make_session_with_settings(spark: SparkSession, view: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with the settings with which the view was created.

    Returns ``spark`` if its settings match. Otherwise creates a session of the same application, with the other
    settings of ``spark``. Raises `InvalidOptionError` on Spark Connect, which cannot create sessions.
    """
    current = session_values(spark)
    different = {name: value for name, value in settings.items() if current.get(name) != value}
    if not different:
        return spark
    if not hasattr(spark, "_jsparkSession"):
        name, value = next(iter(different.items()))
        raise InvalidOptionError(
            f"{view} was created with {name} = {value}, but this session has {current.get(name)}, which may change the "
            f"result of the query; set it to {value} for refreshes"
        )
    session = spark.newSession()
    for name, value in {**dict(spark.conf.getAll), **different}.items():
        if session.conf.isModifiable(name) and session.conf.get(name, None) != value:
            session.conf.set(name, value)
    return session


def compile_statements(
    relations: TempViews, parsed: ParsedQuery, sources: Mapping[str, TableHandle], names: tuple[str, ...]
) -> RefreshStatements:
    """Return the statements of a query, with Spark's types. Raises `UnsupportedQueryError`."""
    writer = DeltaSqlWriter(relations.prefix, frozenset())

    def types_of(node: Node) -> dict[str, str]:
        fields: Any = relations.sql(writer.rows(node, "new")).schema.fields
        return {field.name: field.metadata.get(SIZE_METADATA) or field.dataType.simpleString() for field in fields}

    root = _build_plan(parsed, sources, types_of)
    types = types_of(root)
    if isinstance(root, Group):
        types |= types_of(root.child)
    types = {name: strip_length(kind) for name, kind in types.items()}
    return RefreshStatements(root, names, types, choose_identity(root, types))


def _build_plan(parsed: ParsedQuery, sources: Mapping[str, TableHandle], types_of: TypesOf) -> Node:
    """Return the plan, without columns that the query does not use."""
    ids = {name: f"t{number}" for number, name in enumerate(parsed.sources)}
    columns = {}
    for name, source in sources.items():
        state = source.state
        not_null = {column.name for column in state.schema.columns if not column.nullable}
        columns[ids[name]] = SourceColumns(state.schema.names, state.primary_key, frozenset(not_null))
    by_name = {query_name: ids[name] for query_name, name in parsed.tables.items()}
    return prune_columns(build_plan(parsed.tree, columns, by_name, types_of))


def require_same_meaning(view: str, query: str, printed_query: str, written: DataFrame, printed: DataFrame) -> None:
    """Raise `InvalidOptionError` unless a query and the text printed from its parsed form have equal plans.

    An incremental view runs SQL that `views.ivm.delta_sql` prints from the parsed query, so Spark must analyse this SQL
    in the same way as the query. ``written`` is the analysed query, ``printed`` the analysed printed text, over the
    same relations.
    """
    if have_equal_plans(written, printed):
        return
    if not hasattr(written, "_jdf") and re.search(r"\bwith\b", query, re.IGNORECASE):
        raise InvalidOptionError(
            f"the query of {view} has WITH, for which Spark Connect cannot compare plans; use subqueries in FROM, "
            "create the view with CALL streamhouse.system.materialize, or use mode='full'"
        )
    raise InvalidOptionError(
        f"the query of {view} cannot be maintained incrementally: it is parsed as "
        f"{_first_difference(query, printed_query)}, which Spark analyses differently; rewrite this part, or "
        "use mode='full', which runs the text as written"
    )


def have_equal_plans(left: DataFrame, right: DataFrame) -> bool:
    """Return whether Spark's analysed plans are equal, apart from expression ids."""
    if not hasattr(left, "_jdf"):  # the only comparison in Spark Connect; it distinguishes equal CTEs
        return bool(left.sameSemantics(right))
    plans: list[Any] = [frame._jdf.queryExecution().normalized() for frame in (left, right)]  # noqa: SLF001 - no public API
    return bool(plans[0].sameResult(plans[1]))


def _first_difference(query: str, printed_query: str) -> str:
    """Return the printed words around the first difference of two texts of a query, ignoring case and whitespace."""
    words, printed_words = (text.replace("`", "").split() for text in (query, printed_query))
    pairs = zip(words, printed_words, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a.lower() != b.lower()), min(len(words), len(printed_words)))
    return " ".join(printed_words[max(place - 2, 0) : place + 6])


class PlanCache:
    """Caches the parsed and compiled query of each view, and sessions with the settings of views."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[str, ParsedQuery]] = {}
        self._compiled: dict[str, tuple[Hashable, RefreshStatements]] = {}
        self._sessions: dict[Hashable, SparkSession] = {}

    def session(self, spark: SparkSession, view: str, settings: Mapping[str, str]) -> SparkSession:
        """Return a session with the settings of a view. Raises the errors of `make_session_with_settings`."""
        cache_key = (tuple(sorted(settings.items())), tuple(session_values(spark).items()))
        if cache_key not in self._sessions:
            self._sessions[cache_key] = make_session_with_settings(spark, view, settings)
        return self._sessions[cache_key]

    def parse(self, view: str, query: str) -> ParsedQuery:
        """Return the parsed query. Raises the errors of `parse_query`."""
        entry = self._parsed.get(view)
        if entry is None or entry[0] != query:
            entry = self._parsed[view] = (query, parse_query(view, query))
        return entry[1]

    def compile(
        self,
        view: str,
        definition: ViewDefinition,
        states: Mapping[str, TableState],
        make: Callable[[], RefreshStatements],
    ) -> RefreshStatements:
        """Return the cached statements of a view. Calls ``make`` if its definition or the columns of its sources
        changed.
        """
        of_sources = sorted((name, state.table_uuid, state.schema_id) for name, state in states.items())
        cache_key = (definition.query, definition.names, tuple(sorted(definition.session.items())), tuple(of_sources))
        entry = self._compiled.get(view)
        if entry is None or entry[0] != cache_key:
            entry = self._compiled[view] = (cache_key, make())
        return entry[1]
