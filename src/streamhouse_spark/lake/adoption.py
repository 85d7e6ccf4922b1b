"""What an adoption asks of a lake format: look at a lake table that is there, read its rows by bucket, claim it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from streamhouse_spark.core.model import TablePath
from streamhouse_spark.lake.model.values import LakeSnapshot
from streamhouse_spark.lake.spec import LakeTableSpec
from streamhouse_spark.schema.table_schema import TableSchema

UNKNOWN_COLUMNS = TableSchema.of("unknown int")
"""Where a place is looked at before the columns of its table are known: only its location counts."""


@dataclass(frozen=True, slots=True)
class Adoptable:
    """A lake table that can be adopted, as it was when it was examined."""

    location: str
    schema: TableSchema
    """Its columns under ids of the new table."""
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    """Empty where a row's bucket is not told by its columns."""
    num_buckets: int
    layout: tuple[str, ...]
    """What its files are laid out by, in the format's own words: a partition spec, or the number of a schema."""
    snapshot_id: int | None
    """None for a table without snapshots."""
    version: str | None
    """What tells the snapshot from any other one, also from one that was given its number later."""
    num_rows: int
    num_files: int
    owner: str | None
    """Uuid of the streamhouse table that has claimed it."""
    key: tuple[str, ...]
    """The columns that tell its rows apart for other engines, if there are some."""
    is_keyed: bool = False
    """Whether it keeps one row of each ``key`` by itself, so that the new table has this primary key."""


class LakeAdoption(Protocol):
    """How lake tables of one format, in one warehouse, become the lakes of new tables."""

    @property
    def kind(self) -> str:
        """What such a lake table is called."""

    def examine(self, path: TablePath, place: str) -> Adoptable:
        """Look whether the lake table at a place, see `streamhouse_spark.core.paths.lake_location`, can be adopted as
        ``path``. Changes nothing.

        Raises `LakeMismatchError` with all that keeps it from it, `StorageError`, `CorruptDataError`.
        """

    def require_key(self, examined: Adoptable, key: tuple[str, ...]) -> None:
        """The lake table can be that of a table with this primary key, or with none. Raises `LakeMismatchError`."""

    def rows_by_bucket(self, spec: LakeTableSpec, examined: Adoptable) -> Iterator[tuple[int, pa.Table]]:
        """The rows of the snapshot that was examined, a table a bucket, in memory one after the other.

        Raises `LakeMismatchError` where the bucket of rows, or which row of a key counts, cannot be told.
        """

    def claim(self, spec: LakeTableSpec, examined: Adoptable, offsets: Mapping[int, int]) -> LakeSnapshot:
        """Let the lake be the table's, with all that it holds below these offsets.

        Raises `CommitConflictError` where it changed since it was examined, `CommitStateUnknownError`.
        """

    def release(self, spec: LakeTableSpec) -> None:
        """The lake is nobody's again, if it was this table's: rows, files and snapshots stay.

        Raises `CommitConflictError`: try again.
        """
