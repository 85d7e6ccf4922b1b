"""Changes of a view's groups between older source versions and those of a step, across any refreshes in between.

They bring the values in this host's cache up to date with the step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException

from streamhouse_spark.log.commits.source_versions import Lineage
from streamhouse_spark.table.refresh_commit import RefreshStep, full_refresh_reason
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.local_changes import LOCAL_ROWS_MAX
from streamhouse_spark.views.spark_executor import SparkValues
from streamhouse_spark.views.step_inputs import StepInputs
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamhouse_spark.views.ivm.incremental_aggregate import IncrementalAggregate
    from streamhouse_spark.views.ivm.min_max import ChangesOf

COMMITS_MAX: Final = 1_000
"""Largest number of source commits to read; beyond it, groups are listed again on demand."""

logger = logging.getLogger(__name__)


class DeltaRange:
    """Changes up to one step, if they are few enough for the driver to read."""

    def __init__(
        self,
        relations: Callable[[], TempViews],
        inputs: StepInputs,
        sources: Mapping[str, Table],
        incremental: IncrementalAggregate,
    ) -> None:
        """``relations`` creates temporary views, which are dropped after the changes are read; ``inputs`` are the
        step's.
        """
        self._relations, self._inputs, self._sources, self._incremental = relations, inputs, sources, incremental
        self._step = inputs.step

    def __call__(self, versions: Lineage) -> tuple[pa.Table, ChangesOf] | None:
        """Return the distinct keys of changed groups and their changes; None if there are too many or some are
        unknown.
        """
        old_sources = {source.name: source for source in versions.sources}
        if old_sources.keys() != self._sources.keys() or self._has_too_many_changes(versions):
            return None
        states = self._inputs.states
        if any(states[new.name].version != new.version for new in self._step.new.sources):
            return None
        if full_refresh_reason(versions, self._sources, states) is not None:
            return None
        relations = self._relations()
        try:
            return self._compute_changes(relations, RefreshStep(self._step.number, versions, self._step.new))
        except PySparkException as error:  # a version that can no longer be read
            logger.info("changes since older versions are not read: %s", error)
            return None
        finally:
            relations.drop()

    def _has_too_many_changes(self, versions: Lineage) -> bool:
        old_sources = {source.name: source for source in versions.sources}
        commits = [new.version - old_sources[new.name].version for new in self._step.new.sources]
        rows = sum(
            end - old_sources[new.name].ends.get(bucket, 0)
            for new in self._step.new.sources
            for bucket, end in new.ends.items()
        )
        return max(commits) > COMMITS_MAX or min(commits) < 0 or rows > LOCAL_ROWS_MAX

    def _compute_changes(self, relations: TempViews, step: RefreshStep) -> tuple[pa.Table, ChangesOf]:
        from streamhouse_spark.views.local_executor import compute_changes

        relations.begin(step)
        inputs = StepInputs(relations, self._sources, step)
        writer = inputs.writer(self._incremental.root)
        if writer.delta(self._incremental.root.child) is None:
            return self._empty_changes()
        if inputs.local is not None:
            try:
                local_changes = compute_changes(self._incremental, inputs.local)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                local_changes = None
            if local_changes is not None:
                return local_changes
        values = SparkValues(relations, self._incremental, writer)
        keys = values.find_changed_keys()
        changes = {part.column: values.changes_of(keys)(part.column) for part in self._incremental.multiset_aggregates}
        return keys, changes.__getitem__

    def _empty_changes(self) -> tuple[pa.Table, ChangesOf]:
        from streamhouse_spark.views.ivm.min_max import ValueChanges

        none = np.zeros(0, np.int64)
        keys = pa.table({name: pa.nulls(0) for name in self._incremental.key_columns})
        return keys, lambda _: ValueChanges(none, pa.nulls(0), none)
