"""Changing the partitioning of a table with an Iceberg lake: `Table.set_partitioning`.

Only rows that are tiered from then on are partitioned anew, those of the hot log among them. Files of the lake stay
where they are, and each is read by the partitions that it was written with. The record begins a schema of its own, of
the same columns: whoever planned by the partitions of before notices, and plans again.
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
    """Partition rows by other fields from now on. **Commit point:** one record.

    Fields are as in ``partition_by`` of `Warehouse.create_table`: columns, ``days(ts)``, ``truncate(4, name)``; none of
    them for a table without partitions. ``bucket(8, id)`` may be among them, and has to be what it is: rows of the log
    lie by it. Nothing is written again, and nothing of a row changes. The lake has the new partitions from the next
    tiering round on. A table that is partitioned so already is left as it is.

    Raises `InvalidOptionError` for a lake in another format than Iceberg, a branch, a materialized view, other buckets,
    a field that cannot be, and where a property needs the partitions of before; `SchemaMismatchError` for an unknown
    column. Nothing was written then.
    """
    if not is_text_list(partition_by):
        raise InvalidOptionError(f"partition_by is {partition_by!r}, expected a list of fields, such as days(ts)")
    table.log.commit(lambda state, _time_ms: _make_set_partitioning(table.require_there(state), partition_by))


def _make_set_partitioning(state: TableState, partition_by: Sequence[str]) -> Sequence[Action]:
    """Return the action that partitions a table of this state anew; none where it is so already. Pure."""
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
            f"{state.name} is a materialized view, which stays partitioned as it was made; make another view, with the "
            "partitions that you want"
        )
    if state.parsed.datalake_format != "iceberg":
        raise InvalidOptionError(
            f"table {state.name} is for a lake in the format {state.parsed.datalake_format}, whose partition keys are "
            "fixed when its table is created; create a new table, and copy the rows"
        )


def _remove_bucket_field(state: TableState, partition_by: Sequence[str]) -> list[str]:
    """Return the fields but for the bucket. Raises `InvalidOptionError` for another bucket than the table's."""
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
    """Raise for a partitioning that the table cannot have, as `Warehouse.create_table` does."""
    for name in action.columns:
        require_free_partition_name(name)
    texts = action.changes(state.schemas, state.schema, state.properties)["properties"]
    parse_properties(texts, state.schema, action.columns)
    if state.primary_key:
        from streamhouse_spark.kv.table_config import parse_keyed_properties

        parse_keyed_properties(texts, state.schema, action.columns)
