"""ALTER TABLE, changes of the partitioning, and removal of stored transactions.

**Commit point:** one record with all changes. Before a constraint is added, all rows are validated. Each commit attempt
validates the rows that were appended since, so no concurrently committed row is missed. The record also starts a new
schema with the same columns. A writer that staged rows before it conflicts and retries, because log tables compare the
constraints and primary-key tables the schema.

After a change of the partitioning, rows that are not tiered get the new partitions. Existing lake files keep the
partitions with which they were written. The record starts a new schema with the same columns, so that writers and
readers that planned with the old partitions retry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from streamhouse_spark.config.alter_table import Alteration, AlteredTable, alter_table_definition
from streamhouse_spark.config.table_properties import VIEW, check_partition_columns, check_variants, parse_properties
from streamhouse_spark.core.option_parsing import parse_names
from streamhouse_spark.core.types import CONSUMER_EPOCHS, IDENTITY_NUMBERS, is_text_list
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.expressions.check_constraints import Check, has_constraints, parse_checks
from streamhouse_spark.log.actions import Action, ForgetTransactions, SetProperties, SetSchema
from streamhouse_spark.log.catalog.branches import require_no_branch
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import hash_name, select_progress_ids
from streamhouse_spark.schema.partitioning import SetPartitioning, join_fields, parse_fields
from streamhouse_spark.schema.table_schema import TableSchema, require_unreserved_partition_name
from streamhouse_spark.table_handle import TableHandle

_BUCKET: Final = re.compile(r"\s*bucket\s*\(\s*([0-9]{1,9})\s*,(.*)\)\s*", re.DOTALL | re.IGNORECASE)
_PRECHECKS_MAX = 3
"""How often all rows are validated outside of a commit attempt, for which other threads must wait."""


def set_partitioning(table: TableHandle, partition_by: Sequence[str]) -> None:
    """Partition new rows by other fields; see `Table.set_partitioning`. An unchanged partitioning is a no-op."""
    if not is_text_list(partition_by):
        raise InvalidOptionError(f"partition_by is {partition_by!r}, expected a list of fields, such as days(ts)")
    table.log.commit(lambda state, _time_ms: _make_set_partitioning(table.require_not_dropped(state), partition_by))


def _make_set_partitioning(state: TableState, partition_by: Sequence[str]) -> Sequence[Action]:
    """Return the action that changes the partitioning; none if it is unchanged."""
    _require_supported(state)
    fields = parse_fields(_remove_bucket_field(state, partition_by), state.schema)
    if fields == state.parsed.partition_fields:
        return ()
    columns = check_partition_columns([f.column for f in fields if f.transform == "identity"], state.schema)
    transformed = join_fields(fields) if any(field.transform != "identity" for field in fields) else ""
    action = SetPartitioning(max(state.schemas) + 1, columns, transformed)
    _validate(state, action)
    return (action,)


def _require_supported(state: TableState) -> None:
    require_no_branch(state, "changing the partitioning")
    if VIEW in state.properties:
        raise InvalidOptionError(
            f"cannot change the partitioning of {state.name}: it is a materialized view; create another view with the "
            "new partitions"
        )
    if state.parsed.datalake_format != "iceberg":
        raise InvalidOptionError(
            f"cannot change the partitioning of table {state.name}: it has a {state.parsed.datalake_format} lake, "
            "expected Iceberg; create a new table, and copy the rows"
        )


def _remove_bucket_field(state: TableState, partition_by: Sequence[str]) -> list[str]:
    """Return the fields without ``bucket(…)``. Raises `InvalidOptionError` if it differs from the bucketing."""
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
                f"PARTITIONED BY {text.strip()}: table {state.name} has {has}, which cannot be changed; leave the "
                "bucket out"
            )
    return fields


def _validate(state: TableState, action: SetPartitioning) -> None:
    """Raise the errors of `Warehouse.create_table` for an unsupported partitioning."""
    for name in action.columns:
        require_unreserved_partition_name(name)
    texts = action.changes(state.schemas, state.schema, state.properties)["properties"]
    parse_properties(texts, state.schema, action.columns)
    _validate_keyed(state, texts, state.schema, action.columns)


def _validate_keyed(
    state: TableState, texts: Mapping[str, str], schema: TableSchema, partition_by: Sequence[str]
) -> None:
    """Raise for properties that a primary-key table does not support."""
    if state.primary_key:
        from streamhouse_spark.kv.primary_key_properties import parse_keyed_properties

        parse_keyed_properties(texts, schema, partition_by)


def alter_table(table: TableHandle, change: Alteration) -> None:
    """Alter a table; see `Table.alter`."""
    if not has_constraints(change.set_properties):
        table.log.commit(lambda state, _time_ms: make_alter_actions(table, state, change))
        return
    from streamhouse_spark.table.constraint_validation import (  # only constraints read rows
        ConstraintValidation,
        RevalidateError,
    )

    for attempt in range(_PRECHECKS_MAX + 1):
        checked = ConstraintValidation(table, may_read_all=attempt == _PRECHECKS_MAX)
        state = table.refresh()
        checked.check_all(state, _new_constraints(state, alter_state(state, change)))

        def plan(state: TableState, _time_ms: int, checked: ConstraintValidation = checked) -> Sequence[Action]:
            actions = make_alter_actions(table, state, change)
            checked.check_appended(state, _new_constraints(state, alter_state(state, change)))
            return actions

        try:
            table.log.commit(plan)
        except RevalidateError:
            continue
        return


def make_alter_actions(table: TableHandle, state: TableState, change: Alteration) -> Sequence[Action]:
    """Return the actions that alter the table in ``state``; none if nothing changes. See `Table.alter` for errors."""
    require_no_branch(state, "ALTER TABLE")
    table.require_not_dropped(state)  # otherwise a dropped table might report an existing column
    after = alter_state(state, change)
    _validate_keyed(state, after.properties, after.schema, state.partition_by)
    if state.recorded_lake is not None:  # even if tiering is disabled
        check_variants(after.schema, state.parsed.datalake_format)
    actions: list[Action] = []
    if _new_constraints(state, after) and after.schema_id == state.schema_id:
        actions.append(SetSchema(max(state.schemas) + 1, after.schema))
    elif after.schema != state.schema:
        actions.append(SetSchema(after.schema_id, after.schema))
    if after.properties != state.properties:
        changed = {name: text for name, text in after.properties.items() if state.properties.get(name) != text}
        actions.append(SetProperties(changed, tuple(name for name in state.properties if name not in after.properties)))
    return actions


def alter_state(state: TableState, change: Alteration) -> AlteredTable:
    """Return the definition of the table after the change. Raises the errors of `alter_table_definition`."""
    former = [
        (partitioning.schema_id, partitioning.parsed(state.schemas)) for partitioning in state.former_partitionings
    ]
    return alter_table_definition(change, state.schema_id, state.schemas, state.partition_by, state.properties, former)


def _new_constraints(state: TableState, after: AlteredTable) -> tuple[Check, ...]:
    """Return the added constraints, with the names of the current columns."""
    added = {
        name: text
        for name, text in after.properties.items()
        if has_constraints([name]) and state.properties.get(name) != text
    }
    return parse_checks(added, state.schema) if added else ()


def forget_transactions(table: TableHandle, app_ids: Sequence[str]) -> None:
    """Remove stored transactions; see `Table.forget_transactions`."""
    if not is_text_list(app_ids):
        raise InvalidOptionError(
            f"application ids of {table.name} are {app_ids!r}, expected strings; pass a list of strings"
        )
    if any(app_id.startswith((IDENTITY_NUMBERS, CONSUMER_EPOCHS)) for app_id in app_ids):
        raise InvalidOptionError(
            f"cannot forget transactions of {table.name}: application ids with the prefix {IDENTITY_NUMBERS} count the "
            f"allocated identity values, and those with {CONSUMER_EPOCHS} fence consumers; leave them out, or values "
            "would be allocated twice"
        )

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        table.require_not_dropped(state)
        stored = tuple(a for a in app_ids if a in state.transactions or hash_name(a) in state.past_transactions)
        forgotten = (*stored, *select_progress_ids(app_ids, state.transactions))
        return (ForgetTransactions(forgotten),) if forgotten else ()

    table.log.commit(plan)
