"""Sorting of unordered rows into sequences in the order of their keys. Memory is bounded by one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

RUN_BYTES_MAX = 128 << 20
"""Bytes in memory that are sorted at once."""


def split_into_sorted_runs(
    batches: Iterable[pa.RecordBatch],
    sort: Callable[[Sequence[pa.RecordBatch]], pa.RecordBatch],
    folder: Path,
    batch_rows: int,
) -> list[Iterator[pa.RecordBatch]]:
    """Return the rows as runs, in the order of the rows, each of them sorted by ``sort`` and given in batches of
    ``batch_rows``.

    One run stays in memory. More lie in files of ``folder``, which are mapped while they are read; they are only for
    this process, and go with the folder.
    """
    runs: list[Iterator[pa.RecordBatch]] = []
    waiting: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        if waiting and num_bytes + batch.nbytes > RUN_BYTES_MAX:
            runs.append(_spill(sort(waiting), folder, batch_rows))
            waiting, num_bytes = [], 0
        waiting.append(batch)
        num_bytes += batch.nbytes
    if not waiting:
        return runs
    last = sort(waiting)
    runs.append(_spill(last, folder, batch_rows) if runs else _slice_rows(last, batch_rows))
    return runs


def _slice_rows(rows: pa.RecordBatch, batch_rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows.num_rows, batch_rows):
        yield rows.slice(start, batch_rows)


def _spill(rows: pa.RecordBatch, folder: Path, batch_rows: int) -> Iterator[pa.RecordBatch]:
    path = folder / f"{len(list(folder.iterdir())):06}.arrow"
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        for batch in _slice_rows(rows, batch_rows):
            writer.write_batch(batch)
    return _map_file(path)


def _map_file(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for position in range(reader.num_record_batches):
            yield reader.get_batch(position)
