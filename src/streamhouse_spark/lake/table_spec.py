"""The lake table that a streamhouse table needs, in any format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Self

from streamhouse_spark.config.table_properties import BranchMetadata
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.log.commit_validation import unsupported_on_branch_error
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.partitioning import PartitionField
from streamhouse_spark.schema.table_schema import TableSchema

TARGET_FILE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class LakeTableSpec:
    """The lake table that a streamhouse table needs."""

    table_uuid: str
    path: TablePath
    location: str
    """Key of the lake table in the warehouse; see `core.warehouse_layout.lake_location`."""
    schema: TableSchema
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    num_buckets: int
    target_file_bytes: int = TARGET_FILE_BYTES
    primary_key: tuple[str, ...] = ()
    """Names of columns of the schema."""
    schema_id: int = 1
    """Id of ``schema`` in ``schemas``."""
    schemas: Mapping[int, TableSchema] = field(default_factory=dict)
    """All former and current schemas that the table's state retains, by id."""
    history: HistoryPoint | None = field(default=None, compare=False)
    """The latest record of the state with rows. Rounds store it in the lake as the history of their rows."""
    partition_fields: tuple[PartitionField, ...] = ()
    """All partition fields, if one transforms a column. Otherwise empty, and ``partition_by`` has all."""
    former_layouts: tuple[tuple[int, tuple[PartitionField, ...]], ...] = ()
    """Former partitionings, oldest first: the id of the last schema, and the fields with the names of that schema."""
    former_uuids: tuple[str, ...] = ()
    """Uuids of the tables that this table was copied from, which wrote some of the lake's files."""
    branch: str | None = None
    """The branch of the table, which cannot write to the lake."""

    def require_own(self, action: str) -> None:
        """Raise `InvalidOptionError` for a branch, which never changes the lake. ``action`` names the change."""
        if self.branch is not None:
            raise unsupported_on_branch_error(self.path.of_branch(self.branch), action)

    @property
    def layout(self) -> tuple[PartitionField, ...]:
        """All partition fields in order."""
        return self.partition_fields or tuple(PartitionField(name) for name in self.partition_by)

    @property
    def writers(self) -> tuple[str, ...]:
        """The uuids in the footers of the table's own files."""
        return (self.table_uuid, *self.former_uuids)

    @classmethod
    def of(cls, state: TableState) -> Self:
        """Return the spec for a state of the table."""
        properties, branch = state.parsed, BranchMetadata.of_properties(state.properties)
        return cls(
            table_uuid=state.table_uuid if branch is None else branch.of,
            path=parse_table_name(state.name).path.base,
            branch=None if branch is None else branch.name,
            location=state.lake_location,
            schema=state.schema,
            partition_by=state.partition_by,
            partition_fields=properties.partition_fields,
            bucket_key=properties.bucket_key,
            num_buckets=state.num_buckets,
            primary_key=tuple(state.schema.column(name).name for name in state.primary_key),
            schema_id=state.schema_id,
            schemas=state.schemas,
            history=state.anchors.rows,
            former_layouts=tuple(
                (partitioning.schema_id, partitioning.parsed(state.schemas))
                for partitioning in state.former_partitionings
            ),
            former_uuids=state.former_uuids,
        )
