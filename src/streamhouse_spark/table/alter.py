"""Committing an ALTER TABLE, and forgetting transactions. **Commit point:** one record, with all changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamhouse_spark.config.alteration import Alteration, AlteredTable, altered
from streamhouse_spark.core.model import is_text_list
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.actions import Action, ForgetTransactions, SetProperties, SetSchema
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.transactions import name_sum


def alter_table(table: TableHandle, change: Alteration) -> None:
    """See `Table.alter`."""
    table.log.commit(lambda state, _time_ms: altering(table, state, change))


def altering(table: TableHandle, state: TableState, change: Alteration) -> Sequence[Action]:
    """Return the actions that alter a table of this state; none if it is that already. Raises as `Table.alter`."""
    table.require_there(state)  # of a dropped table it is no answer that it has this column already
    after = altered(change, state.schema_id, state.schemas, state.partition_by, state.properties)
    if state.primary_key:
        _check_keyed(after, state.partition_by)
    actions: list[Action] = []
    if after.schema != state.schema:
        actions.append(SetSchema(after.schema_id, after.schema))
    if after.properties != state.properties:
        actions.append(_changed_properties(state.properties, after.properties))
    return actions


def forget_transactions(table: TableHandle, app_ids: Sequence[str]) -> None:
    """See `Table.forget_transactions`."""
    if not is_text_list(app_ids):
        raise InvalidOptionError(f"application ids of {table.name} are {app_ids!r}, expected texts")

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        table.require_there(state)
        known = tuple(a for a in app_ids if a in state.transactions or name_sum(a) in state.past_transactions)
        return (ForgetTransactions(known),) if known else ()

    table.log.commit(plan)


def _check_keyed(after: AlteredTable, partition_by: Sequence[str]) -> None:
    from streamhouse_spark.kv.keyed_properties import parse_keyed_properties

    parse_keyed_properties(after.properties, after.schema, partition_by)


def _changed_properties(before: Mapping[str, str], after: Mapping[str, str]) -> SetProperties:
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return SetProperties(changed, tuple(name for name in before if name not in after))
