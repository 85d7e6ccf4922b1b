"""The values of a view's groups by Spark: those that changed, and the first and last ones of all rows of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.slicing import one_array
from streamhouse_spark.datasource.views.relations import Relations

if TYPE_CHECKING:
    from streamhouse_spark.datasource.views.kept_extremes import Asked
    from streamhouse_spark.zset.added import Added
    from streamhouse_spark.zset.aggregates import Aggregate
    from streamhouse_spark.zset.extremes import ChangesOf, ValueChanges
    from streamhouse_spark.zset.writer import Writer


class SparkValues:
    """The values in one step of a view. Its relations have to be there."""

    def __init__(self, relations: Relations, added: Added, writer: Writer) -> None:
        self._relations, self._added, self._writer = relations, added, writer
        self._first: dict[str, str] = {}
        self.left: str | None = None
        """The relation of all rows of the groups that were computed from them."""

    def changes(self, keys: pa.Table) -> ChangesOf:
        """Return how the changes of groups with these keys are found."""
        from streamhouse_spark.zset.extremes import ValueChanges, group_numbers
        from streamhouse_spark.zset.listing import CHANGES_MAX, NUMBER, VALUE, changed_values

        known: dict[str, pa.Table] = {}

        def changes_of(column: str) -> ValueChanges | None:
            part = next(found for found in self._added.extremes if found.column == column)
            if part.of not in known:
                text = changed_values(self._added, part, self._writer)
                assert text is not None
                is_local = self._relations.are_local(text)
                text = changed_values(self._added, part, self._writer, one_task=is_local)
                known[part.of] = self._relations.sql(text or "").toArrow()
            rows = known[part.of]
            if rows.num_rows > CHANGES_MAX:
                return None
            groups = group_numbers(keys, rows.select(keys.column_names))
            return ValueChanges(groups, one_array(rows.column(VALUE)), rows.column(NUMBER).to_numpy().astype(np.int64))

        return changes_of

    def listed(self, part: Aggregate, asked: Asked) -> pa.Table:
        """Return the columns of `listing.listed_values`."""
        from streamhouse_spark.zset.listing import first_values, listed_values

        name = f"first_{part.column}_{asked.room}_{asked.are_all}"
        if name not in self._first:
            rows = f"SELECT * FROM {self.left}"
            if asked.are_all:
                rows = self._writer.rows(self._added.root.child, "new")
            text = first_values(self._added, part, rows, asked.room)
            if asked.num_parts > 1:
                text = f"SELECT * FROM {self._relations.persisted_as(name, text)}"
            self._first[name] = text
        return self._relations.sql(listed_values(self._added, self._first[name], asked.part, asked.num_parts)).toArrow()
