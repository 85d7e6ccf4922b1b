"""Cache of parsed and compiled view queries, valid while the columns of their sources stay the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING

from streamhouse_spark.config.view_definition import ViewDefinition
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.views.query_analysis import ParsedQuery, parse_query, session_values, session_with_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamhouse_spark.views.ivm.refresh_sql import Statements


class PlanCache:
    """Compiled queries of one session, one per view. A new definition or different columns replace the entry."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[str, ParsedQuery]] = {}
        self._compiled: dict[str, tuple[Hashable, Statements]] = {}
        self._sessions: dict[Hashable, SparkSession] = {}

    def session(self, spark: SparkSession, view: str, settings: Mapping[str, str]) -> SparkSession:
        """Return a session with the settings of a view. Raises like `session_with_settings`."""
        cache_key = (tuple(sorted(settings.items())), tuple(session_values(spark).items()))
        if cache_key not in self._sessions:
            self._sessions[cache_key] = session_with_settings(spark, view, settings)
        return self._sessions[cache_key]

    def parse(self, view: str, query: str) -> ParsedQuery:
        """Return the parsed query. Raises like `parse_query`."""
        entry = self._parsed.get(view)
        if entry is None or entry[0] != query:
            entry = self._parsed[view] = (query, parse_query(view, query))
        return entry[1]

    def compile(
        self,
        view: str,
        definition: ViewDefinition,
        states: Mapping[str, TableState],
        make: Callable[[], Statements],
    ) -> Statements:
        """Return the cached statements of a view, or call ``make`` if its definition or its sources' columns
        changed.
        """
        of_sources = sorted((name, state.table_uuid, state.schema_id) for name, state in states.items())
        cache_key = (definition.query, definition.names, tuple(sorted(definition.session.items())), tuple(of_sources))
        entry = self._compiled.get(view)
        if entry is None or entry[0] != cache_key:
            entry = self._compiled[view] = (cache_key, make())
        return entry[1]
