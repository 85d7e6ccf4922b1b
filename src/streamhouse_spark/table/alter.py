"""Committing an ALTER TABLE, and forgetting transactions. **Commit point:** one record, with all changes.

A constraint is added only behind a state all of whose rows were checked: each attempt of the commit compares the ends
of the buckets with those of the rows that were read, and checks what was appended since, so no row that another process
committed between is missed. The same record begins a new schema of the same columns. A writer that staged rows before
it plans again behind it: a log table's compares the constraints that its rows kept, and one by key the schema.
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
from streamhouse_spark.log.progress_ids import places_of
from streamhouse_spark.schema.constraints.check_constraint import Check, has_constraints, parse_checks

_LOOKS_MAX = 3
"""How often all rows are checked before the commit's attempt does so, while other threads wait for it."""


def alter_table(table: TableHandle, change: Alteration) -> None:
    """See `Table.alter`."""
    if not has_constraints(change.set_properties):
        table.log.commit(lambda state, _time_ms: make_alter_actions(table, state, change))
        return
    from streamhouse_spark.table.add_constraint import (  # it reads, as other changes do not
        ConstraintValidation,
        RevalidateError,
    )

    for attempt in range(_LOOKS_MAX + 1):
        checked = ConstraintValidation(table, may_look=attempt == _LOOKS_MAX)
        state = table.refresh()
        checked.look(state, _new_constraints(state, alter_state(state, change)))

        def plan(state: TableState, _time_ms: int, checked: ConstraintValidation = checked) -> Sequence[Action]:
            actions = make_alter_actions(table, state, change)
            checked.follow(state, _new_constraints(state, alter_state(state, change)))
            return actions

        try:
            table.log.commit(plan)
        except RevalidateError:
            continue
        return


def make_alter_actions(table: TableHandle, state: TableState, change: Alteration) -> Sequence[Action]:
    """Return the actions that alter a table of this state; none if it is that already. Raises as `Table.alter`."""
    require_no_branch(state, "ALTER TABLE")
    table.require_there(state)  # of a dropped table it is no answer that it has this column already
    after = alter_state(state, change)
    if state.primary_key:
        _check_keyed(after, state.partition_by)
    if state.recorded_lake is not None:  # though no more rows go there
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
    former = [(one.schema_id, one.parsed(state.schemas)) for one in state.former_partitionings]
    return alter_table_definition(change, state.schema_id, state.schemas, state.partition_by, state.properties, former)


def _new_constraints(state: TableState, after: AlteredTable) -> tuple[Check, ...]:
    """Return the constraints that the table has not yet, over the columns of today."""
    added = {
        name: text
        for name, text in after.properties.items()
        if has_constraints([name]) and state.properties.get(name) != text
    }
    return parse_checks(added, state.schema) if added else ()


def forget_transactions(table: TableHandle, app_ids: Sequence[str]) -> None:
    """See `Table.forget_transactions`."""
    if not is_text_list(app_ids):
        raise InvalidOptionError(f"application ids of {table.name} are {app_ids!r}, expected texts")
    if any(app_id.startswith(IDENTITY_NUMBERS) for app_id in app_ids):
        raise InvalidOptionError(
            f"{table.name}: application ids that begin with {IDENTITY_NUMBERS} say how many numbers of an identity "
            "column were handed out; leave them out, or numbers would be handed out twice"
        )

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        table.require_there(state)
        known = tuple(a for a in app_ids if a in state.transactions or name_sum(a) in state.past_transactions)
        forgotten = (*known, *places_of(app_ids, state.transactions))
        return (ForgetTransactions(forgotten),) if forgotten else ()

    table.log.commit(plan)


def _check_keyed(after: AlteredTable, partition_by: Sequence[str]) -> None:
    from streamhouse_spark.kv.table_config import parse_keyed_properties

    parse_keyed_properties(after.properties, after.schema, partition_by)


def _make_set_properties(before: Mapping[str, str], after: Mapping[str, str]) -> SetProperties:
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return SetProperties(changed, tuple(name for name in before if name not in after))
