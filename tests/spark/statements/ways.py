"""The ways in which a statement reaches a table: SQL, a writer of Spark's, or a call in Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from pyspark.sql import VariantVal
from pyspark.sql import functions as f

from spark.statements.columns import in_reference
from streamhouse_spark.schema.variant import is_variant

if TYPE_CHECKING:
    from spark.statements.grammar import Statement
    from spark.statements.lakehouse import Lakehouse

Way = Callable[["Lakehouse", "Statement", str, str], Any]
"""It gets the statement, its text for Spark, and the short name of the table."""


def in_sql(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.spark.sql(text)


def _overwrite(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.spark.sql(text).writeTo(house.sql_name(name)).overwrite(f.expr(statement.where))


def _overwrite_partitions(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.spark.sql(text).writeTo(house.sql_name(name)).overwritePartitions()


def _replace_where(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    writer = house.spark.sql(text).write.format("streamhouse").option("warehouse", house.url)
    writer.option("replaceWhere", statement.where).mode("overwrite").save(house.full_name(name))


def _merge_schema(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.spark.sql(text).writeTo(house.sql_name(name)).option("mergeSchema", "true").append()


def _roll_back(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    where = statement.where
    house.table(name).rollback_to_version(int(where) if where.isdigit() else where)


def _roll_back_in_time(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.table(name).rollback_to_timestamp(int(statement.where))


def _set_partitioning(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.table(name).set_partitioning(json.loads(statement.where))


def _append(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.table(name).append(_rows(house, statement, name))


def _upsert(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    rows = _rows(house, statement, name)
    house.table(name).upsert(rows, columns=json.loads(statement.where) if statement.where else None)


def _overwrite_rows(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.table(name).overwrite(_rows(house, statement, name), where=_filter(statement))


def _overwrite_partitions_by_rows(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.table(name).overwrite_partitions(_rows(house, statement, name))


def _delete_where(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.table(name).delete(where=_filter(statement))


def _delete_keys(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.table(name).delete(_rows(house, statement, name))


def _truncate(house: Lakehouse, statement: Statement, text: str, name: str) -> None:
    house.table(name).truncate()


def _filter(statement: Statement) -> list[tuple[Any, ...]] | None:
    return [tuple(part) for part in json.loads(statement.where)] if statement.where else None


def _rows(house: Lakehouse, statement: Statement, name: str) -> pa.Table:
    """The rows of a statement, with variants as PySpark makes them."""
    found, schema = rows_of_query(statement.sql), house.table(name).refresh().schema.arrow
    for place, column in enumerate(found.column_names):
        if is_variant(schema.field(column).type):
            made = [None if text is None else VariantVal.parseJson(text) for text in found.column(place).to_pylist()]
            cells = [None if one is None else {"value": one.value, "metadata": one.metadata} for one in made]
            found = found.set_column(place, column, pa.array(cells, schema.field(column).type))
    return found


def rows_of_query(query: str) -> pa.Table:
    """The rows of a query of constants, made without Spark."""
    with duckdb.connect() as connection:
        return connection.execute(in_reference(query)).arrow().read_all()


WAYS: Mapping[str, Way] = {
    "sql": in_sql,
    "overwrite": _overwrite,
    "overwritePartitions": _overwrite_partitions,
    "replaceWhere": _replace_where,
    "mergeSchema": _merge_schema,
    "rollback": _roll_back,
    "rollback in time": _roll_back_in_time,
    "set_partitioning": _set_partitioning,
    "Table.append": _append,
    "Table.upsert": _upsert,
    "Table.overwrite": _overwrite_rows,
    "Table.overwrite_partitions": _overwrite_partitions_by_rows,
    "Table.delete(where)": _delete_where,
    "Table.delete(keys)": _delete_keys,
    "Table.truncate": _truncate,
}
