"""Streams whose table gets new columns: ``schemaEvolutionMode=addNewColumns``.

Spark fixes a query's columns at its start. To lose no value of a new column, the query ends before the first rows that
were written with it. After a restart it continues with these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.schema.table_schema import TableSchema

CONDITION: Final = "COLUMNS_ADDED"


def first_offsets_with(state: TableState, added: AbstractSet[int], lower_bounds: Mapping[int, int]) -> dict[int, int]:
    """Return bucket → its first row that may have a value in an added column. Buckets without such a row are absent.

    ``added`` holds column ids. ``lower_bounds`` is bucket → an offset below which no row has these columns. The columns
    of a row are known in the hot log only: if the log was trimmed past the lower bound, the lower bound is returned.
    """
    having = {number for number, schema in state.schemas.items() if any(c.id in added for c in schema.columns)}
    if not having:
        return {}
    first_offsets = {}
    for bucket, log in state.buckets.items():
        begin = max(lower_bounds.get(bucket, 0), state.first_offset(bucket))
        first = next((s.base_offset for s in log.segments if s.schema_id in having), None)
        if log.start > begin:
            first_offsets[bucket] = begin
        elif first is not None:
            first_offsets[bucket] = first
    return first_offsets


class AddedColumns:
    """Watches a table for a running query that reads ``columns`` of the schema at its start.

    The first row with a new column fixes the query's end: before that row in its bucket, and at the current end in all
    other buckets. Later rows are left to the restarted query whatever their columns, so the end is reached however fast
    writers append.
    """

    def __init__(self, initial_state: TableState, columns: tuple[str, ...]) -> None:
        self._column_ids = frozenset(initial_state.schema.column(name).id for name in columns)
        self._missing = _column_names(
            initial_state.schema, frozenset(c.id for c in initial_state.schema.columns) - self._column_ids
        )
        self._seen_ends: Mapping[int, int] = initial_state.ends
        self._end: dict[int, int] | None = None
        self._new_names: tuple[str, ...] = ()
        """Names of the columns that the query lacks, as of the last update before the end was fixed."""

    def update(self, state: TableState) -> None:
        """Take a newer state of the table. Raises `SchemaMismatchError` for a query that never read all columns."""
        if self._missing:
            raise SchemaMismatchError(
                f"{state.name}: schemaEvolutionMode=addNewColumns reads all columns, and this query does not have "
                f"{', '.join(self._missing)}: leave .schema(…) out; or they were added since its DataFrame was made, "
                "then make the DataFrame again and start it from its checkpoint",
                condition=CONDITION,
            )
        if self._end is not None:
            return
        added = frozenset(column.id for column in state.schema.columns) - self._column_ids
        self._new_names = _column_names(state.schema, added)  # without columns that were dropped again
        first = first_offsets_with(state, added, self._seen_ends)
        if first:
            self._end = {bucket: first.get(bucket, end) for bucket, end in state.ends.items()}
        else:
            self._seen_ends = state.ends

    @property
    def has_end(self) -> bool:
        return self._end is not None

    @property
    def has_new_columns(self) -> bool:
        """Whether the table has columns that the query lacks, as of the last update."""
        return bool(self._new_names)

    def limit_ends(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return bucket → the end up to which the query may read, at most the last update."""
        limits = self._seen_ends if self._end is None else self._end
        return {bucket: min(end, limits.get(bucket, 0)) for bucket, end in ends.items()}

    def error(self, table_name: str) -> SchemaMismatchError:
        """Return the error for a query that has processed all rows it may read."""
        where = f"offsets {self._end}" if self._end is not None else "its beginning"
        return SchemaMismatchError(
            f"{table_name}: columns {', '.join(self._new_names)} were added, and this stream, which started without "
            f"them, has processed all earlier rows, up to {where}; restart the query from its checkpoint: it "
            "continues there with the current columns (schemaEvolutionMode=addNewColumns)",
            condition=CONDITION,
        )


def _column_names(schema: TableSchema, ids: AbstractSet[int]) -> tuple[str, ...]:
    return tuple(column.name for column in schema.columns if column.id in ids)
