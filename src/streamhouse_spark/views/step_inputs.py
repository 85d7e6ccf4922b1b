"""Inputs of a refresh step: few changes and index lookups by the driver, everything else by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.table.refresh_commit import RefreshStep
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.index_lookup import lookup_joined_rows
from streamhouse_spark.views.local_changes import LocalChanges, columns_to_read, may_be_local, read_changes
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from streamhouse_spark.views.ivm.delta_sql import Writer
    from streamhouse_spark.views.ivm.indexed_join import IndexedSide
    from streamhouse_spark.views.ivm.logical_plan import Node
    from streamhouse_spark.views.local_executor import LocalRows


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes of a source that the driver has read."""

    all: LocalChanges
    """With the primary key, in log order."""
    net: pa.Table
    """The plan's columns of the changes that do not cancel out, with their weights."""


class StepInputs:
    """Inputs of one step. `writer` and the statements that it writes read everything."""

    def __init__(self, relations: TempViews, sources: Mapping[str, Table], step: RefreshStep) -> None:
        self._relations = relations
        self._sources, self.step = sources, step
        self._states = {name: source.state for name, source in sources.items()}
        self._ids = relations.ids
        self._looked_up_rows: dict[str, pa.Table] = {}
        self.local: LocalRows | None = None
        """Rows that the driver has read; set by `writer`."""

    @property
    def states(self) -> Mapping[str, TableState]:
        """States of the sources, at the step's versions or newer."""
        return self._states

    def writer(self, root: Node) -> Writer:
        """Return the writer of the step's statements, and register the driver's rows as relations."""
        from streamhouse_spark.views.ivm.delta_sql import Writer
        from streamhouse_spark.views.ivm.indexed_join import find_indexed_sides
        from streamhouse_spark.views.local_executor import LocalRows

        changes = self._read_changes(root)
        for name, change in changes.items():
            self._relations.register_local(f"{self._ids[name]}_delta", change.net)
        unchanged = {name for name, change in changes.items() if not change.net.num_rows}
        changed = {self._ids[name] for name in self.step.changed - unchanged}
        uses = {
            use: side
            for use, side in find_indexed_sides(root, changed, self._lookup_keys()).items()
            if self._look_up(use, side, changes)
        }
        of_sources = {self._ids[name]: change.net for name, change in changes.items()}
        self.local = LocalRows(changed, of_sources, {use: self._looked_up_rows[use] for use in uses})
        return Writer(self._relations.prefix, frozenset(changed), frozenset(uses))

    def _read_changes(self, root: Node) -> dict[str, _Changes]:
        """Read the changes of the sources that have few."""
        from streamhouse_spark.views.ivm.indexed_join import iter_scans

        before = {source.name: source.ends for source in self.step.old.sources} if self.step.old is not None else {}
        new = {source.name: source.ends for source in self.step.new.sources}
        changes_by_source = {}
        for name in sorted(self.step.changed):
            state = self._states[name]
            scans = (scan for scan in iter_scans(root) if scan.table == self._ids[name])
            columns = {column for scan in scans for column in scan.of.values()}
            if (
                not columns or not self._is_at_step_version(name) or not may_be_local(state, columns)
            ):  # a WITH clause may be unused
                continue
            changes = read_changes(self._sources[name], state, before[name], new[name], columns_to_read(state, columns))
            if changes is not None:
                net = changes.net([column for column in state.schema.names if column in columns])
                changes_by_source[name] = _Changes(changes, net)
        return changes_by_source

    def _lookup_keys(self) -> dict[str, tuple[str, ...]]:
        """Return the primary keys of the sources in which the driver may look up rows."""
        return {
            self._ids[name]: state.primary_key
            for name, state in self._states.items()
            if state.primary_key and self._is_at_step_version(name) and may_be_local(state, state.primary_key)
        }

    def _look_up(self, use: str, side: IndexedSide, changes: Mapping[str, _Changes]) -> bool:
        """Look up the rows that match changes and register them. Returns False if Spark must read them."""
        of_id = {of: name for name, of in self._ids.items()}
        name, naming_changes = of_id[side.table], changes.get(of_id[side.changed])
        own_changes, state = changes.get(name), self._states[name]
        if (
            naming_changes is None
            or (name in self.step.changed and own_changes is None)
            or not may_be_local(state, side.columns)
        ):
            return False
        rows = lookup_joined_rows(
            side, self._sources[name], state, naming_changes.net, own_changes.all if own_changes is not None else None
        )
        if rows is None:
            return False
        self._looked_up_rows[use] = rows.new
        self._relations.register_local(f"{side.table}_old_by_{use}", rows.old)
        self._relations.register_local(f"{side.table}_new_by_{use}", rows.new)
        return True

    def _is_at_step_version(self, name: str) -> bool:
        """Return whether a source's state is the version that the step reads; other threads may refresh the table."""
        versions = {source.name: source.version for source in self.step.new.sources}
        return versions[name] == self._states[name].version
