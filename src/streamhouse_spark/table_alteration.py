"""Committing an ALTER TABLE, and what a table forgets. **Commit point:** one record, with all that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from streamhouse_spark.alteration import Alteration, AlteredTable, altered
from streamhouse_spark.arguments import checks_arguments
from streamhouse_spark.column_changes import ColumnChanges
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.actions import Action, ForgetTransactions, SetProperties, SetSchema
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import name_sum
from streamhouse_spark.model import is_text_list

if TYPE_CHECKING:
    import pyarrow as pa

    from streamhouse_spark.schema import SparkSchema
    from streamhouse_spark.table import Table


@checks_arguments()
class AlterableTable:
    """What changes a table's columns and properties: methods of `Table`."""

    def alter(
        self,
        *,
        add_columns: pa.Schema | str | SparkSchema | None = None,
        comments: Mapping[str, str | None] | None = None,
        set_properties: Mapping[str, str] | None = None,
        unset_properties: Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] = (),
        widen_columns: Mapping[str, pa.DataType | str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Change columns and properties, all of it or nothing. **Commit point:** one record.

        New columns stand behind the others and are null in the rows that are there. ``rename_columns`` maps old names
        to new ones, ``widen_columns`` names to wider types; these and ``drop_columns`` mean the columns as they are
        before. The lake table follows in the next tiering round. Tails and streams go on after an addition; a column
        of theirs that is renamed, dropped or widened ends them with `SchemaMismatchError`, and started again they go
        on. ``comments`` maps columns to their comment, None takes it away; the table's is the property ``comment``.
        ``defaults`` maps columns, new ones too, to a constant that takes the place of a column that a new row's writer
        does not name, None takes it away; rows written before stay as they are, and a null that is given stays null.
        These two mean the columns as they are afterwards.

        Raises `SchemaMismatchError` for a column that is not there, a name that is taken, a new column that is NOT
        NULL, a type that does not hold every older value, a default that does not fit its column; `InvalidOptionError`
        for unknown or impossible properties, and for columns whose role does not let them be changed so.
        """
        columns = ColumnChanges.of(rename_columns, drop_columns, widen_columns)
        change = Alteration.of(add_columns, comments, set_properties, unset_properties, columns, defaults)
        alter_table(cast("Table", self), change)

    def add_columns(self, columns: pa.Schema | str | SparkSchema, *, defaults: Mapping[str, Any] | None = None) -> None:
        """Add columns, as `alter` does: an Arrow schema, Spark DDL (``note STRING COMMENT 'why'``) or a StructType.

        With ``defaults``, or a ``DEFAULT`` clause, for rows that are written from now on: in older ones they are null.
        """
        self.alter(add_columns=columns, defaults=defaults)

    def set_default(self, column: str, value: Any) -> None:
        """Give a column a default, as `alter` does: ``set_default("country", "CH")``."""
        self.alter(defaults={column: value})

    def drop_default(self, *columns: str) -> None:
        """Take the defaults of columns away, as `alter` does: what new rows lack is null."""
        self.alter(defaults=dict.fromkeys(columns))

    def rename_column(self, name: str, new_name: str) -> None:
        """Give a column another name, as `alter` does; what properties say of it follows."""
        self.alter(rename_columns={name: new_name})

    def drop_column(self, *names: str) -> None:
        """Drop columns, as `alter` does. A column of that name that is added later is another one."""
        self.alter(drop_columns=names)

    def widen_column(self, name: str, new_type: pa.DataType | str) -> None:
        """Give a column a type that holds all its values, as `alter` does: ``widen_column("n", "bigint")``."""
        self.alter(widen_columns={name: new_type})

    def alter_properties(self, changed: Mapping[str, str] | None = None, removed: Sequence[str] = ()) -> None:
        """Set and unset properties, as `alter` does."""
        self.alter(set_properties=changed, unset_properties=removed)


def alter_table(table: Table, change: Alteration) -> None:
    """See `AlterableTable.alter`."""
    table.log.commit(lambda state, _time_ms: altering(table, state, change))


def altering(table: Table, state: TableState, change: Alteration) -> Sequence[Action]:
    """What makes of a state the altered one; nothing where it is that already. Raises as `Table.alter`."""
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


def forget_transactions(table: Table, app_ids: Sequence[str]) -> None:
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
