"""Position delete files, one per data file: every reader of Iceberg v2 applies them."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streamhouse_spark.core.clock import Ids
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.schema import PATH_ID
from streamhouse_spark.lake.model.data_files import DeletedRows, LiveFile
from streamhouse_spark.lake.model.values import LakeFile
from streamhouse_spark.lake.parquet.file_columns import FIELD_ID
from streamhouse_spark.lake.parquet.footer_checksum import close_with_checksum
from streamhouse_spark.lake.parquet.parquet_io import FileAccess, parquet_sink
from streamhouse_spark.lake.parquet.reader import DELETED_KEY

_NAME: Final = re.compile(r"/\d{5}-deletes-[0-9a-f]{32}\.parquet$")
POSITION_ID: Final = 2147483545
"""Field id of the positions, from the same specification."""
_SCHEMA: Final = pa.schema(
    [
        pa.field(
            "file_path", pa.dictionary(pa.int32(), pa.string()), nullable=False, metadata={FIELD_ID: str(PATH_ID)}
        ),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POSITION_ID)}),
    ]
)


def write_deletes(
    spec: IcebergFileSpec,
    files: FileAccess,
    ids: Ids,
    bucket: int,
    offsets: OffsetRange,
    file: LiveFile,
    positions: npt.NDArray[np.int64],
    *,
    num_duplicates: int = 0,
    num_dropped: int = 0,
) -> LakeFile:
    """Write a file that names these positions of the data file, ascending and at least one, and replaces its earlier
    ones.

    Its bounds name the data file, so that readers of other files need not open it. It is durable on return.
    """
    directory = spec.directory(file.partition, bucket) if file.spec_id == spec.spec.spec_id else spec.data_location
    location = f"{directory}/{bucket:05d}-deletes-{ids.new_uuid()}.parquet"
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), pa.array([file.location]))
    table = pa.Table.from_arrays([paths, pa.array(positions)], schema=_SCHEMA)
    with parquet_sink(files, location) as sink:
        with pq.ParquetWriter(sink, _SCHEMA, **DELETES_WRITER_OPTIONS) as writer:
            writer.write_table(table, row_group_size=table.num_rows)
            close_with_checksum(writer, sink, {DELETED_KEY: str(len(positions))})
        size_bytes = sink.size_bytes
    return LakeFile(
        location=location,
        bucket=bucket,
        offsets=offsets,
        num_rows=len(positions),
        size_bytes=size_bytes,
        schema_id=spec.schema.schema_id,
        spec_id=file.spec_id,
        partition=file.partition,
        columns=_statistics(file.location, positions),
        deletes=DeletedRows(file.location, file.own_deletes, num_duplicates, num_dropped),
    )


def has_own_name(location: str) -> bool:
    """Return whether a position delete file has a name that `write_deletes` gives."""
    return _NAME.search(location) is not None


DELETES_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": ["file_path"],
    "column_encoding": {"pos": "DELTA_BINARY_PACKED"},
    "store_schema": False,
    "write_page_checksum": True,
}


def _statistics(location: str, positions: npt.NDArray[np.int64]) -> dict[str, dict[int, Any]]:
    path = location.encode()
    first, last = (int(position).to_bytes(8, "little") for position in (positions[0], positions[-1]))
    return {
        "value_counts": {PATH_ID: len(positions), POSITION_ID: len(positions)},
        "null_value_counts": {PATH_ID: 0, POSITION_ID: 0},
        "lower_bounds": {PATH_ID: path, POSITION_ID: first},
        "upper_bounds": {PATH_ID: path, POSITION_ID: last},
    }
