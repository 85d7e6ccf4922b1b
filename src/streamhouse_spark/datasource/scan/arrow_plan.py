"""The serialised plan of the splits that Python reads: groups of scan tasks, and settings that all groups share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.json_codec import JsonSerializable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE, COMMIT_VERSION, METADATA_FIELDS, ROW_ID
from streamhouse_spark.read.scan_tasks import ScanPlan, ScanTask

_METADATA = {field.name: field for field in (CHANGE_TYPE, *METADATA_FIELDS, COMMIT_VERSION, ROW_ID)}


@dataclass(frozen=True, slots=True)
class ArrowReadPlan(JsonSerializable):
    """The groups of scan tasks that Python reads, one per Spark partition."""

    name: str
    columns: tuple[str, ...]
    """Columns in Spark's order; empty if Spark only counts rows."""
    schema: dict[str, Any]
    """Spark's schema of these columns, as JSON."""
    metadata: tuple[str, ...]
    """Requested metadata columns. They precede the table's columns in the rows that are read."""
    fail_on_data_loss: bool
    filters: tuple[dict[str, Any], ...]
    """Spark's filters as JSON. Rows that do not match may be dropped early; Spark applies the filters again."""
    common: ScanPlan
    """The plan without scan tasks."""
    groups: tuple[tuple[ScanTask, ...], ...]
    skipped: int = 0
    """Number of segments that a stream batch pruned. Only one task of the batch reports it."""

    @property
    def metadata_fields(self) -> Sequence[pa.Field]:
        return tuple(_METADATA[name] for name in self.metadata)

    def without_groups(self) -> ArrowReadPlan:
        """Return the settings that all groups share."""
        return replace(self, common=self.common.with_tasks(()), groups=())

    def to_text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> ArrowReadPlan:
        return cls.from_json(json.loads(text))
