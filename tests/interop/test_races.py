"""Processes that commit to one lake at once: each row once, in every reader's eyes."""

from __future__ import annotations

import multiprocessing
import signal

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from interop.lake_cases import lake_of, tier_numbers
from kit.lake_rows import lake_rows
from kit.waiting import wait_for
from streamhouse_spark import OffsetRange
from streamhouse_spark.storage.local import LocalStorage

PROCESSES = 3
ROUNDS = 4
ROWS = 5


def _started(root: str, num_rounds: int) -> list[multiprocessing.process.BaseProcess]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=tier_numbers, args=(root, num_rounds, ROWS)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    return processes


def _require_each_once(root: str) -> int:
    lake = lake_of(LocalStorage(root))
    end = lake.newest().offsets[0]
    assert sorted(lake_rows(lake, lake.plan_read(columns=["id"]))["id"].to_pylist()) == list(range(end))
    read = pa.Table.from_batches([b for _, b in lake.read_offsets(0, OffsetRange(0, end))])
    assert read["id"].to_pylist() == list(range(end))
    return end


def _rows_by_the_hint(root: str) -> int:
    """How many rows, whole rounds, an engine sees that opens the table by its path: the version hint leads it."""
    alone = StaticTable.from_metadata(f"{root}/lake/sales/orders").scan().to_arrow()
    assert sorted(alone["id"].to_pylist()) == list(range(alone.num_rows))
    assert alone.num_rows % ROWS == 0
    return alone.num_rows


def _require_next_round(root: str, end: int) -> None:
    """A round on its own goes on from ``end``, and brings a hint up to date that a dead or slow writer left behind."""
    assert 0 < _rows_by_the_hint(root) <= end
    tier_numbers(root, 1, ROWS)
    assert _require_each_once(root) == _rows_by_the_hint(root) == end + ROWS


@pytest.mark.long
def test_three_processes_tier_each_row_once(warehouse_path):
    processes = _started(warehouse_path, ROUNDS)
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    end = _require_each_once(warehouse_path)
    assert end == PROCESSES * ROUNDS * ROWS
    _require_next_round(warehouse_path, end)


@pytest.mark.long
def test_killed_processes_leave_whole_rounds(warehouse_path):
    processes = _started(warehouse_path, 10**6)
    lake = lake_of(LocalStorage(warehouse_path))

    def end() -> int:
        return lake.newest().offsets.get(0, 0) if lake.exists() and lake.newest() else 0

    for process in processes:
        wanted = end() + 3 * ROWS
        wait_for(lambda wanted=wanted: end() >= wanted, f"a lake of {wanted} rows")
        process.kill()
        process.join(240)
        assert process.exitcode == -signal.SIGKILL
    _require_next_round(warehouse_path, _require_each_once(warehouse_path))
