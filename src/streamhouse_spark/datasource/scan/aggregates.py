"""COUNT, MIN and MAX from metadata alone, if the result is exact."""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import scalar_to_ticks
from streamhouse_spark.datasource.scan.cache_validators import observe_lake_once, plan_validators
from streamhouse_spark.datasource.scan.catalog_options import parse_scan_options
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot, open_at_snapshot
from streamhouse_spark.datasource.scan.scan_planning import SparkScanRequest, plan_sources
from streamhouse_spark.datasource.spark_literals import json_values
from streamhouse_spark.expressions.predicates import constant_bounds, family_of
from streamhouse_spark.lake.types import ScanFile
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.scan import LogSplit, read_split
from streamhouse_spark.log.segments.statistics import decode_stored_value
from streamhouse_spark.read.scan_planning import ScanRequest
from streamhouse_spark.read.scan_tasks import LogScanTask
from streamhouse_spark.schema.table_schema import Column, TableSchema
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection

READ_BYTES_MAX = 4 << 20
"""Maximum bytes that are read from log segments without statistics, such as small appends."""
_EXACT_IN_LAKE = ("number", "date", "timestamp", "timestamp_ntz", "boolean")
"""Type families whose bounds in lake files are exact: text bounds may be truncated, and NaN is not counted."""
_EXACT = decimal.Context(prec=38)
"""Exact context for decimals: Python's default rounds to 28 digits."""


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """Count and bounds of a column. Without values, ``low`` and ``high`` are None."""

    value_count: int
    low: Any = None
    high: Any = None


def aggregate(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Compute pushed-down aggregates without a scan. ``row`` has one value per function, or is null if any value cannot
    be computed exactly.
    """
    snapshot = QuerySnapshot.from_text(args["snapshot"])
    options = parse_scan_options(snapshot, args.get("options") or {})
    table, state = open_at_snapshot(connection, snapshot)
    request = SparkScanRequest(table, state, snapshot, options, ScanRequest(()))
    with observe_lake_once(request) as lake:
        row = _aggregate_row(request, args["aggregates"])
    return {"row": row, "validators": plan_validators(request, lake)}


def _aggregate_row(request: SparkScanRequest, functions: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    schema = request.state.schema
    named = [function["column"] for function in functions if function["column"] is not None]
    columns = [schema.find(str(name)) for name in dict.fromkeys(named)]
    supported_columns = [column for column in columns if column is not None]
    if len(supported_columns) < len(columns) or any(family_of(column.type) is None for column in supported_columns):
        return None
    read = tuple(column.name for column in supported_columns) or schema.names[:1]
    sources = plan_sources(replace(request, scan=ScanRequest(read, statistics_of=read)))
    files = sources.lake.files if sources.lake is not None else ()
    splits = [piece.split for piece in sources.tasks if isinstance(piece, LogScanTask)]
    num_rows = sources.count_rows()
    if num_rows is None:
        return None
    summaries = _summarise_columns(request.table, sources.state.schema, files, splits, supported_columns)
    by_folded_name = {c.name.casefold(): (c, s) for c, s in zip(supported_columns, summaries, strict=True)}
    row = []
    for function in functions:
        if function["function"] == "count_star":
            row.append(num_rows)
            continue
        column, summary = by_folded_name[function["column"].casefold()]
        cell = None if summary is None else _aggregate_value(function["function"], column, summary)
        if cell is None:
            return None
        row.append(cell[0])
    return row


def _aggregate_value(function: str, column: Column, summary: ColumnSummary) -> tuple[Any] | None:
    """Return the function's value in a tuple, or None if it is unknown."""
    if function == "count":
        return (summary.value_count,)
    if function not in ("min", "max"):
        return None
    if not summary.value_count:
        return (None,)
    value = summary.low if function == "min" else summary.high
    return None if value is None else (_to_spark_json(value, column.type),)


def _to_spark_json(value: Any, data_type: pa.DataType) -> Any:
    """Return the value in Spark's internal form, as JSON."""
    if pa.types.is_date32(data_type) or pa.types.is_timestamp(data_type):
        return value
    if pa.types.is_decimal(data_type):
        value = decimal.Decimal(value).quantize(decimal.Decimal(1).scaleb(-data_type.scale), context=_EXACT)
    return json_values(pa.array([value], data_type))[0]


# -- summaries --------------------------------------------------------------------------------------------------------


def _summarise_columns(
    table: TableHandle,
    schema: TableSchema,
    files: Sequence[ScanFile],
    splits: Sequence[LogSplit],
    columns: Sequence[Column],
) -> list[ColumnSummary | None]:
    parts: list[list[ColumnSummary | None]] = [[] for _ in columns]
    splits_to_read: list[LogSplit] = []
    for file in files:
        for column, summary in zip(columns, parts, strict=True):
            summary.append(_summarise_file(file, column))
    for split in splits:
        for segment in split.segments:
            of_columns = [_summarise_segment(split, segment, column) for column in columns]
            if None in of_columns:
                schemas = {segment.schema_id: split.schemas[segment.schema_id]}
                splits_to_read.append(replace(split, segments=(segment,), schemas=schemas))
                continue
            for summary, summary_of_segment in zip(parts, of_columns, strict=True):
                summary.append(summary_of_segment)
    if sum(split.size_bytes for split in splits_to_read) > READ_BYTES_MAX:
        return [None] * len(columns)
    for split in splits_to_read:
        for summary, counted in zip(parts, _summarise_rows(table, schema, split, columns), strict=True):
            summary.append(counted)
    return [_merge_summaries(summary) for summary in parts]


def _merge_summaries(parts: Sequence[ColumnSummary | None]) -> ColumnSummary | None:
    """Merge summaries of parts. Returns None if a count is unknown. Bounds are None if those of a part are unknown."""
    known_parts = [part for part in parts if part is not None]
    if len(known_parts) < len(parts):
        return None
    with_values = [part for part in known_parts if part.value_count]
    count = sum(part.value_count for part in with_values)
    if not with_values or any(part.low is None or part.high is None for part in with_values):
        return ColumnSummary(count)
    return ColumnSummary(count, min(part.low for part in with_values), max(part.high for part in with_values))


def _summarise_file(file: ScanFile, column: Column) -> ColumnSummary | None:
    if not file.has_rows_as_stored:
        return None
    if column.name in file.partition:
        value = file.partition[column.name]
        is_exact = value is not None and constant_bounds(value).low == value  # a float partition may be NaN
        return (
            ColumnSummary(0)
            if value is None
            else ColumnSummary(file.num_rows, *((value, value) if is_exact else (None, None)))
        )
    stats = file.statistics.get(column.name)
    if stats is None or stats.null_count is None or stats.value_count != file.num_rows:
        return None
    value_count = file.num_rows - stats.null_count
    is_exact = family_of(column.type) in _EXACT_IN_LAKE
    return ColumnSummary(value_count, stats.low, stats.high) if is_exact else ColumnSummary(value_count)


def _summarise_segment(split: LogSplit, segment: Segment, column: Column) -> ColumnSummary | None:
    written = next((c for c in split.schemas[segment.schema_id].columns if c.id == column.id), None)
    inside = segment.offsets.intersect(split.offsets)
    if written is None:
        return ColumnSummary(0)
    if inside != segment.offsets or split.num_live(inside) < len(inside):
        return None
    if not segment.stats or written.name not in segment.stats:
        return None
    low, high, nulls = segment.stats[written.name]
    if low is None:
        return ColumnSummary(0)
    bounds = decode_stored_value(low, column.type), decode_stored_value(high, column.type)
    return ColumnSummary(segment.num_rows - nulls, *bounds)


def _summarise_rows(
    table: TableHandle, schema: TableSchema, split: LogSplit, columns: Sequence[Column]
) -> Iterator[ColumnSummary]:
    """Summarise the columns by reading the rows of a split."""
    batches = [b.batch for b in read_split(table.storage, split, schema, [c.name for c in columns])]
    rows = pa.Table.from_batches(batches)
    for column in columns:
        values = rows[column.name].drop_null()
        family = family_of(column.type)
        if not len(values) or family == "binary" or (family == "float" and pc.any(pc.is_nan(values)).as_py()):
            yield ColumnSummary(len(values))
            continue
        bounds = pc.min_max(values)
        yield ColumnSummary(len(values), scalar_to_ticks(bounds["min"]), scalar_to_ticks(bounds["max"]))
