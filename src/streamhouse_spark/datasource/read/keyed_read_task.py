"""Reading of a keyed table's rows in a task: older ones, with the newer changes laid over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from streamhouse_spark.datasource.read.kept_tails import kept_tails
from streamhouse_spark.datasource.read.pieces import KeyedColumns, KeyedPiece, LakePiece, ReadPlan
from streamhouse_spark.keys.collapsed_changes import Tail
from streamhouse_spark.lake.file_access import lake_files
from streamhouse_spark.lake.model.values import LakeSplit
from streamhouse_spark.lake.parquet.merge_on_read import read_split as read_lake_split
from streamhouse_spark.log.segments.scan import LogSplit, read_split
from streamhouse_spark.read.union_read import read_tail, without
from streamhouse_spark.table.table import Table


def read_keyed_pieces(table: Table, plan: ReadPlan, keyed: KeyedColumns) -> Iterator[pa.RecordBatch]:
    """Read the rows of all pieces, with the plan's columns."""
    places = tuple(keyed.schema.names.index(name) for name in keyed.key)
    tails = _Tails(table, keyed, places)
    names = list(plan.schema.names)
    for piece in plan.pieces:
        match piece:
            case LakePiece(split, _):
                for batch in _lake_batches(table, plan, split):
                    yield batch.select(names)
            case KeyedPiece(bucket, None, _, None):
                yield from tails.of(bucket).rows.select(names).to_batches()
            case KeyedPiece(bucket, None, _, base):
                assert base is not None
                changed = tails.of(bucket).keys
                for found in read_split(table.storage, base, keyed.schema):
                    yield without(found.batch, places, changed).select(names)
            case KeyedPiece(bucket, split, _, _):
                assert split is not None
                changed = tails.of(bucket).keys
                for batch in _lake_batches(table, plan, split):
                    yield without(batch, places, changed).select(names)
            case _:
                raise ValueError(f"a plan by key has a {type(piece).__name__}")


def _lake_batches(table: Table, plan: ReadPlan, split: LakeSplit) -> Iterator[pa.RecordBatch]:
    assert plan.projection is not None
    return read_lake_split(lake_files(table.storage, table.settings, split.location), split, plan.projection)


class _Tails:
    """The changes of buckets, each read once while its pieces follow each other, and once for several tasks."""

    def __init__(self, table: Table, keyed: KeyedColumns, places: Sequence[int]) -> None:
        self._table = table
        self._keyed = keyed
        self._places = places
        self._last: tuple[int | None, Tail] | None = None

    def of(self, bucket: int | None) -> Tail:
        if self._last is None or self._last[0] != bucket:
            splits: list[LogSplit] = [t for t in self._keyed.tails if bucket is None or t.bucket == bucket]
            self._last = (bucket, self._collapsed(splits))
        return self._last[1]

    def _collapsed(self, splits: Sequence[LogSplit]) -> Tail:
        table, schema, history = self._table, self._keyed.schema, self._keyed.history
        if history is None:
            return read_tail(table, splits, schema, self._places)
        ranges = tuple((split.table_uuid, split.bucket, split.offsets) for split in splits)
        columns = tuple((column.id, column.name, str(column.type)) for column in schema.columns)
        return kept_tails.get(
            (table.storage.url, history, ranges, columns, tuple(self._places)),
            lambda: read_tail(table, splits, schema, self._places),
        )
