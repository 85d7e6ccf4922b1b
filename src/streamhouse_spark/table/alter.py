"""ALTER TABLE and removal of stored transactions. **Commit point:** one record with all changes.

A constraint is added only after a state whose rows were all validated. Each commit attempt compares the bucket ends
with those that were read and validates rows appended since, so no concurrently committed row is missed. The same record
starts a new schema of the same columns. A writer that staged rows before it must plan again: log tables compare the
constraints, primary-key tables the schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamhouse_spark.config.alter_table import Alteration, AlteredTable, alter_table_definition
from streamhouse_spark.config.properties import check_variants
from streamhouse_spark.core.types import IDENTITY_NUMBERS, is_text_list
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.actions import Action, ForgetTransactions, SetProperties, SetSchema
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.transactions import name_sum
from streamhouse_spark.log.lifecycle.branches import require_no_branch
from streamhouse_spark.log.progress_ids import select_progress_ids
from streamhouse_spark.schema.constraints.check_constraint import Check, has_constraints, parse_checks

_PRECHECKS_MAX = 3
"""Times that all rows are validated before the commit attempt does so, while other threads wait for it."""


def alter_table(table: TableHandle, change: Alteration) -> None:
    """Alter a table; see `Table.alter`."""
    if not has_constraints(change.set_properties):
        table.log.commit(lambda state, _time_ms: make_alter_actions(table, state, change))
        return
    from streamhouse_spark.table.add_constraint import (  # only constraints read rows
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
    """Return the actions that alter a table of this state; none if nothing changes. Raises as `Table.alter`."""
    require_no_branch(state, "ALTER TABLE")
    table.require_not_dropped(state)  # before a dropped table reports an existing column
    after = alter_state(state, change)
    if state.primary_key:
        _validate_keyed(after, state.partition_by)
    if state.recorded_lake is not None:  # even if tiering is disabled
        check_variants(after.schema, state.parsed.datalake_format)
    actions: list[Action] = []
    if _new_constraints(state, after) and after.schema_id == state.schema_id:
        actions.append(SetSchema(max(state.schemas) + 1, after.schema))
    elif after.schema != state.schema:
        actions.append(SetSchema(after.schema_id, after.schema))
    if after.properties != state.properties:
        actions.append(_make_set_properties(state.properties, after.properties))
    return actions


def alter_state(state: TableState, change: Alteration) -> AlteredTable:
    """Return the table of this state after the change. Raises as `alter_table_definition`."""
    former = [
        (partitioning.schema_id, partitioning.parsed(state.schemas)) for partitioning in state.former_partitionings
    ]
    return alter_table_definition(change, state.schema_id, state.schemas, state.partition_by, state.properties, former)


def _new_constraints(state: TableState, after: AlteredTable) -> tuple[Check, ...]:
    """Return the added constraints, over the current columns."""
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
    if any(app_id.startswith(IDENTITY_NUMBERS) for app_id in app_ids):
        raise InvalidOptionError(
            f"{table.name}: application ids that begin with {IDENTITY_NUMBERS} say how many numbers of an identity "
            "column were handed out; leave them out, or numbers would be handed out twice"
        )

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        table.require_not_dropped(state)
        stored = tuple(a for a in app_ids if a in state.transactions or name_sum(a) in state.past_transactions)
        forgotten = (*stored, *select_progress_ids(app_ids, state.transactions))
        return (ForgetTransactions(forgotten),) if forgotten else ()

    table.log.commit(plan)


def _validate_keyed(after: AlteredTable, partition_by: Sequence[str]) -> None:
    from streamhouse_spark.kv.table_config import parse_keyed_properties

    parse_keyed_properties(after.properties, after.schema, partition_by)


def _make_set_properties(before: Mapping[str, str], after: Mapping[str, str]) -> SetProperties:
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return SetProperties(changed, tuple(name for name in before if name not in after))
