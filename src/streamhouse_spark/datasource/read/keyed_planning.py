"""Planning reads of tables with a primary key: the rows that need the newest changes to be read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.datasource.read.pieces import TARGET_BYTES_MAX, KeyedColumns, KeyedPiece, LakePiece, Piece
from streamhouse_spark.lake.model.scan_files import ScanFile
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import LogSplit, cut_split, plan_range
from streamhouse_spark.read.union_read import with_key


def keyed_columns(state: TableState, columns: Sequence[str], hot: Mapping[int, OffsetRange]) -> KeyedColumns:
    """Return the columns of a read and of its merging, beyond exactly the offsets of a lake snapshot.

    No statistics leave out changes: a newer row that nobody asked for still replaces an older one.
    """
    tails = tuple(plan_range(state, bucket, offsets) for bucket, offsets in hot.items())
    return KeyedColumns(with_key(state, columns), state.primary_key, tails, state.attempt)


def keyed_pieces(
    files: Iterable[ScanFile], tails: Sequence[LogSplit], bases: Iterable[LogSplit] = ()
) -> Iterator[Piece]:
    """Return pieces of all rows, each once. Pieces of a bucket follow each other, because they need the same changes:
    its files, its snapshot by key, then the rows that the changes leave.

    Files of buckets without changes are read directly, and come first.
    """
    changed = {tail.bucket for tail in tails}
    plain: list[Piece] = []
    by_bucket: dict[int | None, list[Piece]] = {}
    for file in files:
        is_changed = bool(changed) if file.bucket is None else file.bucket in changed
        for split in file.splits():
            if is_changed:
                by_bucket.setdefault(file.bucket, []).append(KeyedPiece(file.bucket, split, split.size_bytes))
            else:
                plain.append(LakePiece(split, file.bucket))
    for base in bases:
        parts = cut_split(base, TARGET_BYTES_MAX)
        by_bucket.setdefault(base.bucket, []).extend(KeyedPiece(p.bucket, None, p.size_bytes, p) for p in parts)
    for tail in tails:
        by_bucket.setdefault(tail.bucket, []).append(KeyedPiece(tail.bucket, None, tail.size_bytes))
    yield from plain
    yield from by_bucket.pop(None, ())
    for _, pieces in sorted(by_bucket.items(), key=lambda item: item[0] or 0):
        yield from pieces
