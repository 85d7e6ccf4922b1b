"""Creation of materialized tables, and their handles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StringType, StructField, StructType

from streamhouse_spark.config.table_properties import (
    PRIMARY_KEY,
    VIEW,
    ViewDefinition,
    parse_freshness_ms,
    parse_mode,
    parse_step_rows,
)
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, TableExistsError, TableNotFoundError
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.table.refresh_commit import (
    RefreshStep,
    compute_lag,
    last_refresh,
    pause_refreshes,
    resume_refreshes,
)
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.ivm.delta_sql import DeltaSqlWriter
from streamhouse_spark.views.ivm.refresh_sql import KEY, ORDINAL
from streamhouse_spark.views.query_analysis import (
    compile_statements,
    parse_query,
    reject_unsupported,
    require_same_meaning,
    session_values,
)
from streamhouse_spark.views.refresh import Refresher, RefreshReport
from streamhouse_spark.views.step_execution import make_temp_views
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ViewDescription:
    """The current definition and status of a materialized table."""

    name: str
    query: str
    mode: str
    freshness_ms: int
    refreshes: int
    """Number of committed refresh steps."""
    lineage: Lineage | None
    """The source versions that the view reflects; None before the first refresh."""
    commits_behind: Mapping[str, int]
    """Source → number of commits that the view does not contain completely."""
    rows_behind: Mapping[str, int]
    """Source → number of rows in these commits; of changes for a primary-key table. After a step that ends within a
    commit, all rows of this commit are counted."""
    step_rows: int | None
    paused: bool = False
    """Whether refresh services skip the view."""


class MaterializedTable:
    """A table that stores the result of a query. `materialize` returns it. Its rows are read like rows of any table."""

    def __init__(self, spark: SparkSession, connection: Connection, name: str) -> None:
        self._connection = connection
        self._refresh = Refresher(spark, connection)
        self.name = name

    @property
    def table(self) -> Table:
        """The table that stores the rows. Opened by name for each access."""
        return self._connection.table(self.name)

    def refresh(self) -> RefreshReport:
        """Refresh the view to the latest versions of its sources, in one commit or in steps; see `materialize`.

        A paused view is also refreshed, because a pause affects only services.
        """
        return self._refresh(self.name)

    def pause(self) -> None:
        """Make refresh services skip the view until `resume`.

        The pause is durable when this returns. Services check it before each refresh; a refresh in progress may still
        commit. Idempotent.

        **Commit point:** one record of the view's table, with its definition.
        """
        pause_refreshes(self.table)

    def resume(self) -> None:
        """End a pause: refresh services refresh the view again, starting with the source versions that it reflects.

        Durable when this returns; services detect it within seconds. Idempotent.

        **Commit point:** one record of the view's table, with its definition.
        """
        resume_refreshes(self.table)

    def describe(self) -> ViewDescription:
        """Return the query, the source versions that the view reflects, and its lag behind them."""
        state = self.table.refresh()
        definition = ViewDefinition.of(state.properties, self.name)
        number, lineage = last_refresh(state)
        commits: Mapping[str, int] = {}
        rows: Mapping[str, int] = {}
        if lineage is not None:
            states = {source.name: self._connection.table(source.name).refresh() for source in lineage.sources}
            lag = compute_lag(lineage, states)
            commits, rows = lag.commits, lag.rows
        return ViewDescription(
            self.name,
            definition.query,
            definition.mode,
            definition.freshness_ms,
            number,
            lineage,
            commits,
            rows,
            definition.step_rows,
            definition.paused,
        )


def create_view_table(
    spark: SparkSession,
    connection: Connection,
    name: str,
    query: str,
    freshness: str,
    mode: str,
    properties: Mapping[str, str],
    step_rows: int | None = None,
) -> MaterializedTable:
    """Create the table of a view, or open the existing table with this query, without a refresh."""
    path = str(parse_table_name(name).require_table("materialize"))
    if reserved := sorted({VIEW, PRIMARY_KEY} & properties.keys()):
        raise InvalidOptionError(f"{path}: materialize sets the property {reserved[0]}; omit it")
    freshness_ms, parsed_mode = parse_freshness_ms(freshness), parse_mode(mode)
    steps = parse_step_rows(step_rows, parsed_mode)
    try:
        definition = ViewDefinition.of(connection.table(path).state.properties, path)
    except TableNotFoundError:
        definition = None
    except InvalidOptionError as error:
        raise TableExistsError(
            f"{path} already exists, but is not a materialized table; choose another name"
        ) from error
    if definition is not None and (definition.query, definition.mode) != (query, parsed_mode):
        raise TableExistsError(f"{path} is a materialized table with another query or mode; drop it first")
    if definition is None:
        session = session_values(spark)
        new = ViewDefinition(query, parsed_mode, freshness_ms, (), "bag", session, step_rows=steps)
        _create(spark, connection, path, new, properties)
    return MaterializedTable(spark, connection, path)


def _create(
    spark: SparkSession, connection: Connection, path: str, definition: ViewDefinition, properties: Mapping[str, str]
) -> None:
    parsed = parse_query(path, definition.query)
    sources = {name: connection.table(name) for name in parsed.sources}
    relations = make_temp_views(spark, parsed, sources)
    states = {name: source.refresh() for name, source in sources.items()}
    versions = (SourceVersion(n, s.table_uuid, s.version, s.attempt, s.ends) for n, s in states.items())
    relations.begin(RefreshStep(1, None, Lineage(tuple(versions), f"{path} is created")))
    try:
        new = {name: f"{relations.prefix}{source_id}_new" for name, source_id in relations.ids.items()}
        written = relations.sql(parsed.text_over(new))
        columns = written.schema.fields
        names = tuple(column.name for column in columns)
        if len({name.lower() for name in names}) < len(names):
            raise SchemaMismatchError(
                f"the query of {path} has columns with equal names ({', '.join(names)}); rename columns with AS"
            )
        identity: str = "bag"
        key: tuple[str, ...] = (KEY, ORDINAL)
        if definition.mode != "full":
            with reject_unsupported(path):
                statements = compile_statements(relations, parsed, sources, names)
                whole = relations.sql(statements.full_sql(DeltaSqlWriter(relations.prefix, frozenset()))).schema
                identity, key = statements.identity, statements.key_columns
            printed = parsed.printed_over(new)
            require_same_meaning(path, parsed.text_over(new), printed, written, relations.sql(printed))
            if [field.dataType for field in whole.fields][-len(names) :] != [column.dataType for column in columns]:
                raise InvalidOptionError(
                    f"the query of {path} has types here that differ from Spark's types; use mode='full'"
                )
    finally:
        relations.drop()
    hidden = {KEY: StringType(), ORDINAL: LongType()}
    fields = [StructField(name, hidden[name], nullable=False) for name in key if name in hidden]
    fields += [StructField(column.name, column.dataType, nullable=column.name not in key) for column in columns]
    text = replace(definition, names=names, identity=identity).to_text()
    connection.warehouse().create_table(
        path, StructType(fields), primary_key=key, properties={**properties, VIEW: text}
    )
