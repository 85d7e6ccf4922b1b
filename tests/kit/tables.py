"""Steps that tests take with a table: tier it, trim its log, verify it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kit.rows import rows
from streamhouse_spark.lake.tiering.job import TieringReport, run_tasks_locally
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse


class TableCase:
    """A table that tests create: the arguments of `Warehouse.create_table`, and its first rows.

    A test module names the table of its fixture ``table`` by a constant ``TABLE``.
    """

    def __init__(self, name: str, columns: Any, *, rows: Sequence[Mapping[str, Any]] = (), **options: Any) -> None:
        self.name, self.columns, self.rows, self.options = name, columns, rows, options

    def create(self, warehouse: Warehouse) -> Table:
        table = warehouse.create_table(self.name, self.columns, **self.options)
        if self.rows:
            add_rows(table, self.rows)
        return table


def add_rows(table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Upsert the rows into a primary-key table, or append them to a log table."""
    (table.upsert if table.state.primary_key else table.append)(rows)


def new_table(warehouse: Warehouse, *, keyed: bool = False, lake: str | None = None, name: str = "d.t") -> Table:
    """Create a table for `kit.rows.rows`, without a lake unless ``lake`` names its format."""
    properties = {"table.datalake.format": lake} if lake else {"table.datalake.enabled": "false"}
    columns, key = "id BIGINT NOT NULL, day INT", ["id"] if keyed else []
    return warehouse.create_table(name, columns, primary_key=key, buckets=2, properties=properties)


def add(table: Table, *numbers: int) -> None:
    """Write `kit.rows.rows` of these ids."""
    add_rows(table, rows(*numbers))


def tier(table: Table) -> TieringReport:
    """Tier every row of ``table`` that was committed before the call, with tasks in this process."""
    return tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))


def trim_tiered(table: Table) -> None:
    """Trim the log of all that the recorded lake snapshot holds."""
    state = table.refresh()
    starts = {b: state.lake_offset(b) for b, log in state.buckets.items() if state.lake_offset(b) > log.start}
    if starts:
        table.log.commit(lambda _state, _time_ms: (Trim(starts),))


def require_verified(table: Table) -> None:
    """Raise `AssertionError` if ``streamhouse verify`` finds a problem in the log or the lake."""
    from streamhouse_spark.cli.fsck import Verification, open_lake_plan, verify_lake, verify_log

    state, result = table.refresh(), Verification(table.name)
    verify_log(table, state, result, lambda _: None)
    if (plan := open_lake_plan(table, state, result)) is not None:
        verify_lake(table, state, plan, result, lambda _: None)
    assert result.problems == []
