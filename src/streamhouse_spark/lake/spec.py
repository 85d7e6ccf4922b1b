"""What the lake table of a streamhouse table has to be, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse_spark.model import TablePath
from streamhouse_spark.schema import TableSchema

TARGET_FILE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class LakeTableSpec:
    """What the lake table of a streamhouse table has to be."""

    table_uuid: str
    path: TablePath
    location: str
    """Key of the lake table's place in the warehouse, see `streamhouse_spark.paths.lake_location`."""
    schema: TableSchema
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    num_buckets: int
    target_file_bytes: int = TARGET_FILE_BYTES
    primary_key: tuple[str, ...] = ()
    """Names of columns of the schema."""
