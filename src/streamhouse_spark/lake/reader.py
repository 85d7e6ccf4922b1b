"""Read a planned lake, whatever its format: the rows with the offsets of a log range."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.parallel import in_parallel
from streamhouse_spark.lake.model.values import LakePlan, LakeProjection
from streamhouse_spark.lake.parquet.file_writer import may_hold
from streamhouse_spark.lake.parquet.reader import FilesAt, OffsetFile, offset_file, read_offsets
from streamhouse_spark.schema.table_schema import TableSchema


def read_log_range(
    files_at: FilesAt, plan: LakePlan, writers: Collection[str], bucket: int, wanted: OffsetRange
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read a log range as `LakeTable.read_offsets` does; ``plan`` is of the whole newest snapshot."""
    splits = [s for s in plan.splits if not s.position_deletes and may_hold(s.location, bucket, wanted)]
    locations = list(dict.fromkeys(split.location for split in splits))

    def footer(location: str) -> OffsetFile | None:
        return offset_file(files_at(location), location, writers)

    found = [file for file in in_parallel(footer, locations) if file is not None]
    return read_offsets(files_at, found, bucket, wanted, plan.projection)


def identity_projection(schema: TableSchema, columns: Sequence[str] | None) -> LakeProjection:
    """Return the projection of the table's columns before there is a lake table."""
    wanted = schema if columns is None else schema.select(columns)
    return LakeProjection(wanted, tuple(column.id for column in wanted.columns), wanted.names)
