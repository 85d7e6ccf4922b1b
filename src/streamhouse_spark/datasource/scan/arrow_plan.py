"""Serialised plan of the splits that Python reads: groups of scan tasks and their common settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE, COMMIT_VERSION, METADATA_FIELDS, ROW_ID
from streamhouse_spark.read.scan_tasks import ScanPlan, ScanTask, task_from_json

_METADATA = {field.name: field for field in (CHANGE_TYPE, *METADATA_FIELDS, COMMIT_VERSION, ROW_ID)}


@dataclass(frozen=True, slots=True)
class PythonPlan:
    """The groups that Python reads, one per Spark partition."""

    name: str
    columns: tuple[str, ...]
    """Columns in Spark's order; empty if Spark only counts rows."""
    schema: dict[str, Any]
    """Spark's schema of these columns, as JSON."""
    metadata: tuple[str, ...]
    """Metadata columns, which are read before the table's columns."""
    fail_on_data_loss: bool
    filters: tuple[dict[str, Any], ...]
    """Spark's filters as JSON. Rows that do not match may be dropped early; Spark applies the filters again."""
    common: ScanPlan
    """The plan without scan tasks."""
    groups: tuple[tuple[ScanTask, ...], ...]
    skipped: int = 0
    """Segments that a stream batch pruned, reported by one of its tasks."""

    @property
    def metadata_fields(self) -> Sequence[pa.Field]:
        return tuple(_METADATA[name] for name in self.metadata)

    def without_groups(self) -> PythonPlan:
        """Return the common settings of all groups."""
        return replace(self, common=self.common.with_tasks(()), groups=())

    def to_text(self) -> str:
        value = {
            "name": self.name,
            "columns": self.columns,
            "schema": self.schema,
            "metadata": self.metadata,
            "fail_on_data_loss": self.fail_on_data_loss,
            "filters": self.filters,
            "common": self.common.to_json(),
            "groups": [[piece.to_json() for piece in group] for group in self.groups],
            "skipped": self.skipped,
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> PythonPlan:
        value = json.loads(text)
        return cls(
            value["name"],
            tuple(value["columns"]),
            value["schema"],
            tuple(value["metadata"]),
            value["fail_on_data_loss"],
            tuple(value["filters"]),
            ScanPlan.from_json(value["common"]),
            tuple(tuple(task_from_json(piece) for piece in group) for group in value["groups"]),
            value["skipped"],
        )
