"""The demo's proofs that every written row can be read everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.demo.flights import KEY_COLUMNS
from streamhouse_spark.demo.monitor import Observations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FACTS: Final = {
    "rows": "count(*)",
    "departed": "count(dep_time)",
    "sum of distance": "sum(distance)",
    "sum of air_time": "sum(air_time)",
    "sum of arr_delay": "sum(arr_delay)",
    "checksum of keys": f"sum(CAST(xxhash64({', '.join(KEY_COLUMNS)}) AS DECIMAL(38, 0)))",
}
"""Aggregates that Spark computes on the source and on the table: name → SQL."""


@dataclass(frozen=True, slots=True)
class Proof:
    claim: str
    holds: bool
    detail: str


def compute_facts(rows: DataFrame) -> dict[str, Any]:
    row = rows.selectExpr(*(f"{sql} AS `{name}`" for name, sql in FACTS.items())).collect()[0]
    return {name: row[name] for name in FACTS}


def prove_equal_facts(claim: str, facts: Mapping[str, Any], source: Mapping[str, Any]) -> Proof:
    different = [f"{name} is {facts[name]}, expected {source[name]}" for name in FACTS if facts[name] != source[name]]
    shown = ", ".join(f"{name} {facts[name]:,}" for name in FACTS)
    return Proof(claim, not different, "; ".join(different) or shown)


def prove_same_rows(claim: str, rows: pa.Table, source: pa.Table) -> Proof:
    """Prove that both have the same rows in every column, regardless of order."""
    if rows.num_rows != source.num_rows:
        return Proof(claim, holds=False, detail=f"{rows.num_rows:,} rows, expected {source.num_rows:,}")
    ordered, expected = sort_rows(rows, source.schema), sort_rows(source, source.schema)
    differing_columns = [name for name in source.schema.names if not ordered[name].equals(expected[name])]
    if differing_columns:
        return Proof(claim, holds=False, detail=f"columns with other values: {', '.join(differing_columns)}")
    detail = f"{source.num_rows:,} rows × {source.num_columns} columns are equal, one by one"
    return Proof(claim, holds=True, detail=detail)


def sort_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    keys = [(name, "ascending") for name in KEY_COLUMNS]
    return rows.select(schema.names).cast(schema).sort_by(keys).combine_chunks()


def prove_queries(observed: Observations) -> Proof:
    """Prove that each query during the stream saw all rows committed before it, without duplicates."""
    wrong = "; ".join(
        f"{q.name}: {q.rows:,} rows, expected {q.at_least:,} to {q.at_most:,}" for q in observed.wrong[:3]
    )
    return Proof(
        "each query during the stream saw all rows committed before it, none twice",
        observed.queries > 0 and not observed.wrong,
        wrong or f"{observed.queries} queries of the table and of its lake",
    )


def prove_independently(
    lake_path: str, source: pa.Table, readers: Mapping[str, Callable[[str], pa.Table]]
) -> list[Proof]:
    """Read the lake table with readers that do not use streamhouse-spark."""
    return [
        prove_same_rows(f"{name} alone reads the same from the lake", read(lake_path), source)
        for name, read in readers.items()
    ]
