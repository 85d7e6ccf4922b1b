"""The smallest parts that a scan is cut into, and what of a table's bytes the asked columns weigh."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from streamhouse_spark.datasource.pieces import Piece
from streamhouse_spark.lake.scan_files import ScanFile
from streamhouse_spark.schema import TableSchema

_TEXT_BYTES = 24
_NESTED_BYTES = 64


@dataclass(frozen=True, slots=True)
class NativeUnit:
    """A byte range of a Parquet file, for Spark's own reader, which reads the row groups whose middle lies in it."""

    path: str
    """A URI, percent-encoded."""
    start: int
    length: int
    file_bytes: int
    bucket: int | None
    num_rows: int
    size_bytes: int
    """About what the asked columns weigh."""

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "start": self.start, "length": self.length, "size": self.file_bytes}


@dataclass(frozen=True, slots=True)
class HotUnit:
    """A piece that Python reads."""

    piece: Piece
    bucket: int | None
    num_rows: int
    size_bytes: int
    rows_are_exact: bool = True


def native_units(file: ScanFile, path: str, fraction: float, target_bytes: int) -> Iterator[NativeUnit]:
    """The whole file, or where it is large, parts of about the target, cut between row groups as far as known."""
    cuts = [0, *_cuts(file, int(target_bytes / fraction)), file.size_bytes]
    for start, end in itertools.pairwise(cuts):
        share = (end - start) / max(1, file.size_bytes)
        size_bytes = max(1, int((end - start) * fraction))
        num_rows = file.num_rows if len(cuts) == 2 else round(file.num_rows * share)
        yield NativeUnit(path, start, end - start, file.size_bytes, file.bucket, num_rows, size_bytes)


def _cuts(file: ScanFile, target_bytes: int) -> list[int]:
    if file.size_bytes <= target_bytes * 3 // 2:
        return []
    if not file.row_group_starts:
        return list(range(target_bytes, file.size_bytes - target_bytes // 2, target_bytes))
    cuts: list[int] = []
    begin = 0
    for start in sorted(file.row_group_starts)[1:]:
        if start - begin >= target_bytes:
            cuts.append(start)
            begin = start
    return cuts


def native_path(location: str, schemes: Sequence[str]) -> str | None:
    """The location as a URI that Spark's own reader takes; None where it is of no such scheme."""
    parts = urlsplit(location.replace("?", "%3F").replace("#", "%23")) if "://" in location else None
    if parts is None:
        path = location.removeprefix("file:") if location.startswith("file:/") else location
        return f"file://{quote(path)}" if path.startswith("/") and "file" in schemes else None
    if parts.scheme == "file":
        path = location.removeprefix("file://")
        return f"file://{quote(path)}" if path.startswith("/") and "file" in schemes else None
    if parts.scheme not in schemes:
        return None
    rest = location.removeprefix(f"{parts.scheme}://")
    return f"{parts.scheme}://{quote(rest)}"


def log_fraction(schema: TableSchema, columns: Iterable[str]) -> float:
    """About which part of the rows' bytes these columns are, by the widths of their types."""
    asked = sum(_width_bytes(schema.column(name).type) for name in columns)
    return max(asked / sum(_width_bytes(column.type) for column in schema.columns), 0.001)


def lake_fraction(files: Sequence[ScanFile], schema: TableSchema, columns: Sequence[str]) -> float:
    """As `log_fraction`, by what the files say that their columns weigh."""
    asked = sum(file.column_bytes.get(name, 0) for file in files for name in columns)
    known = sum(size_bytes for file in files for size_bytes in file.column_bytes.values())
    return max(asked / known, 0.001) if known else log_fraction(schema, columns)


def narrowest(schema: TableSchema) -> str:
    """The column that is read where only rows are counted."""
    return min(schema.columns, key=lambda column: _width_bytes(column.type)).name


def _width_bytes(data_type: pa.DataType) -> int:
    if pa.types.is_nested(data_type):
        return _NESTED_BYTES
    try:
        return max(1, int(data_type.bit_width) // 8)
    except ValueError:
        return _TEXT_BYTES
