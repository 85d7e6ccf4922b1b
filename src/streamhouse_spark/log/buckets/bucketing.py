"""The bucket of a row: the same as in the table's lake, so that tiering needs no shuffle.

``table.datalake.format`` selects the hash function when a table is created, even if its lake is enabled later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.config.properties import LakeFormat
from streamhouse_spark.log.buckets.iceberg_hash import iceberg_buckets
from streamhouse_spark.log.buckets.paimon_hash import paimon_buckets
from streamhouse_spark.log.buckets.paimon_row_hash import paimon_row_buckets


def buckets_of(column: pa.Array | pa.ChunkedArray, num_buckets: int, lake_format: LakeFormat) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, in ``[0, num_buckets)``.

    Raises `TypeError` for a type that cannot be a bucket key, `ValueError` if ``num_buckets`` is below 1.
    """
    if lake_format == "paimon":
        return paimon_buckets(column, num_buckets)
    return iceberg_buckets(column, num_buckets)


def row_buckets(
    columns: Sequence[pa.Array | pa.ChunkedArray], num_buckets: int, lake_format: LakeFormat
) -> npt.NDArray[np.int32]:
    """Return `buckets_of` for a bucket key of one or, with Paimon, several columns, in key order."""
    if len(columns) == 1:
        return buckets_of(columns[0], num_buckets, lake_format)
    if lake_format != "paimon":
        raise TypeError(f"an Iceberg bucket is taken of one column, not of {len(columns)}")
    return paimon_row_buckets(columns, num_buckets)
