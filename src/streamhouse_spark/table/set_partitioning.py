"""Changes the partitioning of a table with an Iceberg lake: `Table.set_partitioning`.

Only rows tiered afterwards get the new partitions, including those of the hot log. Existing lake files stay in place
and are read by the partitions with which they were written. The record starts a new schema with the same columns, so
that writers and readers that planned by the old partitions notice and plan again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from streamhouse_spark.config.partition_specs import SetPartitioning
from streamhouse_spark.config.properties import check_partition_columns, parse_properties
from streamhouse_spark.config.view_definition import VIEW
from streamhouse_spark.core.option_parsing import parse_names
from streamhouse_spark.core.types import is_text_list
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import require_no_branch
from streamhouse_spark.schema.partition_fields import PartitionField, join_fields, parse_fields
from streamhouse_spark.schema.reserved_names import require_free_partition_name

_BUCKET: Final = re.compile(r"\s*bucket\s*\(\s*([0-9]{1,9})\s*,(.*)\)\s*", re.DOTALL | re.IGNORECASE)


def set_partitioning(table: TableHandle, partition_by: Sequence[str]) -> None:
    """Partition new rows by other fields. **Commit point:** one record.

    Fields are as in ``partition_by`` of `Warehouse.create_table`: columns, ``days(ts)``, ``truncate(4, name)``; an
    empty list removes the partitioning. ``bucket(8, id)`` is accepted only if it equals the existing bucketing, by
    which log rows are stored. No file or row is rewritten. The lake has the new partitions from the next tiering round
    on. An unchanged partitioning is a no-op.

    Raises `InvalidOptionError` for a lake format other than Iceberg, a branch, a materialized view, other buckets, an
    invalid field, and a property that needs the old partitions; `SchemaMismatchError` for an unknown column. Then
    nothing was written.
    """
    if not is_text_list(partition_by):
        raise InvalidOptionError(f"partition_by is {partition_by!r}, expected a list of fields, such as days(ts)")
    table.log.commit(lambda state, _time_ms: _make_set_partitioning(table.require_not_dropped(state), partition_by))


def _make_set_partitioning(state: TableState, partition_by: Sequence[str]) -> Sequence[Action]:
    """Return the action that changes the partitioning; none if it is unchanged. Pure."""
    _require_supported(state)
    fields = parse_fields(_remove_bucket_field(state, partition_by), state.schema)
    if fields == state.parsed.partition_fields:
        return ()
    columns = check_partition_columns([f.column for f in fields if f.transform == "identity"], state.schema)
    action = SetPartitioning(max(state.schemas) + 1, columns, _format_fields(fields))
    _validate(state, action)
    return (action,)


def _require_supported(state: TableState) -> None:
    require_no_branch(state, "changing the partitioning")
    if VIEW in state.properties:
        raise InvalidOptionError(
            f"{state.name} is a materialized view, whose partitioning cannot be changed; make another view, with the "
            "partitions that you want"
        )
    if state.parsed.datalake_format != "iceberg":
        raise InvalidOptionError(
            f"table {state.name} has a {state.parsed.datalake_format} lake, whose partition keys are fixed when its "
            "table is created; create a new table, and copy the rows"
        )


def _remove_bucket_field(state: TableState, partition_by: Sequence[str]) -> list[str]:
    """Return the fields without the bucket. Raises `InvalidOptionError` for another bucket than the table's."""
    fields, key = [], state.parsed.bucket_key
    for text in partition_by:
        match = None if state.schema.find(text) is not None else _BUCKET.fullmatch(text)
        if match is None:
            fields.append(text)
            continue
        names = tuple(state.schema.column(name).name for name in parse_names(match[2]))
        if names != key or int(match[1]) != state.num_buckets:
            has = f"bucket({state.num_buckets}, {', '.join(key)})" if key else "no bucket key"
            raise InvalidOptionError(
                f"PARTITIONED BY {text.strip()}: table {state.name} has {has}, by which rows of the log lie and which "
                "is fixed when it is created; leave the bucket out"
            )
    return fields


def _format_fields(fields: Sequence[PartitionField]) -> str:
    return join_fields(fields) if any(field.transform != "identity" for field in fields) else ""


def _validate(state: TableState, action: SetPartitioning) -> None:
    """Raise for a partitioning that the table does not support, as `Warehouse.create_table` does."""
    for name in action.columns:
        require_free_partition_name(name)
    texts = action.changes(state.schemas, state.schema, state.properties)["properties"]
    parse_properties(texts, state.schema, action.columns)
    if state.primary_key:
        from streamhouse_spark.kv.table_config import parse_keyed_properties

        parse_keyed_properties(texts, state.schema, action.columns)
