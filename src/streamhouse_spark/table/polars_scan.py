"""`scan_polars`: a table as a polars ``LazyFrame``, with pushdown of columns, conditions and row limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamhouse_spark.errors import InvalidOptionError, quote
from streamhouse_spark.table.scan import FixedSchemaScan, Scannable, require_library

if TYPE_CHECKING:
    import polars as pl

_OPERATORS: Final = {"Eq": "=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}


def scan_polars(rows: Scannable) -> pl.LazyFrame:
    """Return a table, view or scan as a lazy polars frame. Each ``collect`` reads the latest rows.

    The frame keeps its columns: ``collect`` fails if one was dropped or has another type. The selected columns and the
    row limit are pushed down to the scan, as are comparisons of a column with a number, text or date that must all
    hold. Polars applies every condition again. Raises `MissingExtraError` without polars.

    >>> sh.scan_polars(orders).filter(pl.col("amount") > 5).select("id").collect().rows()
    [(1,)]
    """
    if not isinstance(rows, Scannable):
        raise InvalidOptionError(f"rows is {quote(rows)}, expected a table, view or scan")
    polars = require_library("polars")
    fixed = FixedSchemaScan(rows.scan())
    from polars.io.plugins import register_io_source

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, num_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        scan = fixed.scan if columns is None else fixed.scan.select(*columns)
        if num_rows is not None:  # polars filters after this limit
            scan = scan.limit(num_rows)
        elif predicate is not None and scan.max_rows is None:  # a scan filters before it limits
            scan = scan.filter(pushed_conditions(predicate, fixed.schema))
        for batch in fixed.open(scan):
            frame = polars.from_arrow(batch) if batch.num_columns else polars.DataFrame(height=batch.num_rows)
            frame = frame if predicate is None else frame.filter(predicate)
            yield from frame.iter_slices(batch_size) if batch_size else (frame,)

    schema = polars.from_arrow(fixed.schema.empty_table()).schema
    frame: pl.LazyFrame = register_io_source(read, schema=schema)
    return frame


def pushed_conditions(predicate: pl.Expr, schema: pa.Schema) -> list[tuple[str, str, Any]]:
    """Return comparisons that every row of a predicate satisfies, possibly none.

    Comparisons of floating-point columns are omitted, because polars orders NaN above all numbers.
    """
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # noqa: BLE001 - polars does not guarantee this format; without pushdown the result is the same
        return []
    return list(_conditions(tree, schema))


def _conditions(tree: Any, schema: pa.Schema) -> Iterator[tuple[str, str, Any]]:
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _conditions(left, schema)
            yield from _conditions(right, schema)
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(compared), "right": {"Literal": literal}}}:
            index = schema.get_field_index(name)
            value = None if index < 0 else _constant(literal, schema.field(index).type)
            if value is not None and compared in _OPERATORS:
                yield name, _OPERATORS[compared], value
        case {"Function": {"input": [column, low, high], "function": {"Boolean": {"IsBetween": {"closed": "Both"}}}}}:
            for compared, bound in (("GtEq", low), ("LtEq", high)):
                yield from _conditions({"BinaryExpr": {"left": column, "op": compared, "right": bound}}, schema)


def _constant(literal: Any, column: pa.DataType) -> Any:
    """Return a literal as a value of the column's type; None if they differ."""
    match literal:
        case {"Dyn": {"Int": int(value)}} | {"Scalar": {"Int64": int(value)}} | {"Scalar": {"Int32": int(value)}}:
            return value if pa.types.is_integer(column) else None
        case {"Scalar": {"String": str(value)}}:
            return value if pa.types.is_string(column) else None
        case {"Scalar": {"Date": int(value)}}:
            return pa.scalar(value, pa.int32()).cast(pa.date32()) if pa.types.is_date32(column) else None
    return None
