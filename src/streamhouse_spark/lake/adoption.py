"""Adoption of a lake table in any format: examine it, read its rows by bucket, claim it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.lake.model.values import LakeSnapshot
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.schema.table_schema import TableSchema

UNKNOWN_COLUMNS = TableSchema.of("unknown int")
"""A spec to examine a location before the columns of its table are known: only the location counts."""


@dataclass(frozen=True, slots=True)
class AdoptionCandidate:
    """A lake table that can be adopted, as examined."""

    location: str
    schema: TableSchema
    """The lake table's columns with ids of the new table."""
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    """Empty if the columns of a row do not determine its bucket."""
    num_buckets: int
    layout: tuple[str, ...]
    """The file layout in the format's own terms: a partition spec, or the number of a schema."""
    snapshot_id: int | None
    """None for a table without snapshots."""
    version: str | None
    """A mark unique to this snapshot, also among later ones with the same number."""
    num_rows: int
    num_files: int
    owner: str | None
    """Uuid of the streamhouse table that has claimed it."""
    key: tuple[str, ...]
    """The columns that identify its rows for other engines, if it declares any."""
    is_keyed: bool = False
    """Whether it keeps one row per ``key``, so that the new table has this primary key."""


class LakeAdoption(Protocol):
    """Adoption of lake tables of one format, in one warehouse, for new tables."""

    @property
    def kind(self) -> str:
        """The name of such a lake table in messages."""

    def examine(self, path: TablePath, place: str) -> AdoptionCandidate:
        """Examine whether the lake table at ``place`` can be adopted as ``path``; see
        `streamhouse_spark.core.paths.lake_location`. Changes nothing.

        Raises `LakeMismatchError` with all obstacles, `StorageError`, `CorruptDataError`.
        """

    def require_key(self, examined: AdoptionCandidate, key: tuple[str, ...]) -> None:
        """Require that the lake table fits a table with this primary key, or with none. Raises `LakeMismatchError`."""

    def rows_by_bucket(self, spec: LakeTableSpec, examined: AdoptionCandidate) -> Iterator[tuple[int, pa.Table]]:
        """Read the rows of the examined snapshot as one table per bucket, one in memory at a time.

        Raises `LakeMismatchError` if the bucket of a row, or the latest row of a key, cannot be determined.
        """

    def claim(self, spec: LakeTableSpec, examined: AdoptionCandidate, offsets: Mapping[int, int]) -> LakeSnapshot:
        """Give the lake and its rows, below these offsets, to the table.

        Raises `CommitConflictError` if it changed since it was examined, `CommitStateUnknownError`.
        """

    def release(self, spec: LakeTableSpec) -> None:
        """Release the lake if this table owns it: rows, files and snapshots stay.

        Raises `CommitConflictError`; retry.
        """
