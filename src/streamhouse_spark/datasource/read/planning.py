"""Plans of the plain source: what Spark's partitions are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.query.projection import Projection
from streamhouse_spark.read import planner
from streamhouse_spark.read.pieces import ReadPlan, ViewPiece
from streamhouse_spark.read.pin import Pin, pin_as_of, pin_newest
from streamhouse_spark.read.planner import Wanted, plan_pin
from streamhouse_spark.read.ranges import binlog_pieces, range_pieces
from streamhouse_spark.read.stand_ins import Begun, with_stand_ins
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.views import BINLOG


def plan_union(table: TableHandle, columns: Sequence[str], *, as_of_timestamp_ms: int | None = None) -> ReadPlan:
    """Plan a read of the newest state, or of one at a time.

    Raises `OffsetsTrimmedError`, `SnapshotExpiredError`, `SchemaMismatchError`.
    """

    def plan(pin: Pin) -> ReadPlan:
        return plan_pin(table, pin, Wanted(tuple(columns))).plan(table)

    state = table.refresh()
    if as_of_timestamp_ms is not None:
        return plan(pin_as_of(state, as_of_timestamp_ms))
    return with_stand_ins(table, pin_newest(state), Begun(columns), plan)


def plan_lake(
    table: TableHandle, columns: Sequence[str], *, as_of_snapshot: int | None, as_of_timestamp_ms: int | None
) -> ReadPlan:
    """Plan a read of a lake snapshot alone. It has no pieces before the first tiering round."""
    state = table.refresh()
    return planner.plan_lake(
        table,
        state,
        Projection.of(state.schema, columns, None),
        as_of_snapshot=as_of_snapshot,
        as_of_timestamp_ms=as_of_timestamp_ms,
    )


def plan_view(table: TableHandle, state: TableState, suffix: str) -> ReadPlan:
    """Plan a read of a whole view."""
    pieces = binlog_pieces(state) if suffix == BINLOG else (ViewPiece(suffix),)
    return ReadPlan(table.name, table.uuid, state.schema, pieces)


def plan_ranges(
    table: TableHandle,
    state: TableState,
    ranges: Mapping[int, OffsetRange],
    columns: Sequence[str],
    *,
    fail_on_data_loss: bool,
) -> ReadPlan:
    """Plan a read of offset ranges of a state. Raises as `range_pieces` does."""
    schema = state.schema.select(columns) if columns else TableSchema(state.schema.columns[:1])
    pieces = range_pieces(state, ranges, fail_on_data_loss=fail_on_data_loss)
    return ReadPlan(table.name, table.uuid, schema, pieces)
