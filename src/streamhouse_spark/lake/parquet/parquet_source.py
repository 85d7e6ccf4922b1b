"""An open Parquet file. On a remote store, its columns are fetched with few requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamhouse_spark.lake.parquet.parquet_io import RangeFile

EXPECTED_BYTES_MAX: Final = 256 << 20
"""Maximum bytes to prefetch. Above this, Arrow reads one range after the other."""


class ParquetSource(pq.ParquetFile):  # type: ignore[misc]
    """Arrow's reader of a file, together with its source."""

    def __init__(self, source: pa.NativeFile, **options: Any) -> None:
        super().__init__(source, **options)
        self._source = source

    def batches(
        self, batch_rows: int, groups: Sequence[int], names: Sequence[str], *, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of row groups. On a remote store, all their bytes are fetched concurrently."""
        if isinstance(self._source, RangeFile):
            ranges = self._ranges(groups, names)
            if sum(end - start for start, end in ranges) <= EXPECTED_BYTES_MAX:
                self._source.ranges.expect(ranges)
        yield from self.iter_batches(batch_size=batch_rows, row_groups=groups, columns=names, use_threads=threads)

    def _ranges(self, groups: Sequence[int], names: Sequence[str]) -> list[tuple[int, int]]:
        """Return the byte ranges of the column chunks. A nested column has several."""
        nested = tuple(f"{name}." for name in names)
        chunks = []
        for group in map(self.metadata.row_group, groups):
            for chunk in map(group.column, range(group.num_columns)):
                path = chunk.path_in_schema
                if path in names or path.startswith(nested):
                    start = min(at for at in (chunk.dictionary_page_offset, chunk.data_page_offset) if at)
                    chunks.append((start, start + chunk.total_compressed_size))
        return chunks
