"""The rows that a branch added, staged for its table: each stays in its bucket, in the order that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.packed_objects import group_into_objects, stage_group
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.log.segments.writer import StagedSegment, stage_inline
from streamhouse_spark.log.staging import INLINE_BYTES_MAX, StagedRows, inline_total

PIECE_BYTES: Final = 64 << 20
"""Bytes of rows of one bucket that are in memory at once, and become one segment."""


def stage_branch_rows(
    table: TableHandle, branch_state: TableState, added: Mapping[int, OffsetRange], *, rewrites: bool
) -> StagedRows:
    """Stage the rows of these offsets of a branch without those that it deleted itself. Durable when this returns.

    They were checked by the constraints that the branch has, and have all columns. With ``rewrites`` they are rows of
    an operation that read the table.
    """
    storage, options, staged_ms = table.storage, table.segment_options(branch_state), table.storage.now_ms()
    pieces = list_if_small(
        _read_pieces(table, branch_state, added), inline_total(INLINE_BYTES_MAX, branch_state.num_buckets)
    )
    if isinstance(pieces, list):
        segments = [stage_inline(rows, bucket, options) for bucket, rows in pieces]
    else:
        by_number: dict[int, StagedSegment] = {}
        for group in group_into_objects(enumerate(pieces), lambda numbered: numbered[1][1].nbytes):
            uuid = table.world.ids.new_uuid()
            parts = stage_group(storage, table.uuid, uuid, [part for _, part in group], options)
            by_number |= {number: part for (number, _), part in zip(group, parts, strict=True)}
        segments = [by_number[number] for number in sorted(by_number)]
    if rewrites:
        segments = [replace(piece, segment=replace(piece.segment, rewrites=True)) for piece in segments]
    return StagedRows(table.uuid, branch_state.schema_id, tuple(segments), staged_ms, checks=branch_state.parsed.checks)


def list_if_small(
    pieces: Iterator[tuple[int, pa.Table]], bytes_max: int
) -> list[tuple[int, pa.Table]] | Iterator[tuple[int, pa.Table]]:
    """Return all pieces as a list if they have at most so many bytes, else as an iterator that has them all."""
    buffered, num_bytes = [], 0
    for piece in pieces:
        buffered.append(piece)
        num_bytes += piece[1].nbytes
        if num_bytes > bytes_max:
            return _drain(buffered, pieces)
    return buffered


def _drain(
    buffered: list[tuple[int, pa.Table]], rest: Iterator[tuple[int, pa.Table]]
) -> Iterator[tuple[int, pa.Table]]:
    while buffered:
        yield buffered.pop(0)  # so that no piece is kept in memory
    yield from rest


def _read_pieces(
    table: TableHandle, branch_state: TableState, added: Mapping[int, OffsetRange]
) -> Iterator[tuple[int, pa.Table]]:
    records = InlineRecords(table.storage, branch_state.table_uuid)
    for bucket, offsets in added.items():
        waiting: list[pa.RecordBatch] = []
        num_bytes = 0
        for log_batch in read_split(
            table.storage, plan_range(branch_state, bucket, offsets), branch_state.schema, records=records
        ):
            if not log_batch.batch.num_rows:
                continue
            waiting.append(log_batch.batch)
            num_bytes += log_batch.batch.nbytes
            if num_bytes >= PIECE_BYTES:
                yield bucket, pa.Table.from_batches(waiting)
                waiting, num_bytes = [], 0
        if waiting:
            yield bucket, pa.Table.from_batches(waiting)
