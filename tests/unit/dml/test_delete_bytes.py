"""What a DELETE of one row reads of a large table: nothing that grows with the table."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.expressions.filters import Filter
from streamhouse_spark.expressions.predicates import Compare
from streamhouse_spark.lake.parquet import file_writer, footer_checksum
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.storage.memory import MemoryStorage

STEP_ROWS = 2_000
"""Rows of an append, and so of a row group."""


class Metered(MemoryStorage):
    """Counts the requests that read an object, and their bytes."""

    requests = read_bytes = 0
    keys: list[str] = []  # noqa: RUF012 - each test makes its own

    def read(self, key: str) -> bytes:
        self.keys = [*self.keys, key]
        return self._sent(super().read(key))

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        whole = super().read(key)
        return [self._sent(whole[start:end]) for start, end in ranges]

    def size_bytes(self, key: str) -> int:
        return len(super().read(key))

    def _sent(self, data: bytes) -> bytes:
        self.requests += 1
        self.read_bytes += len(data)
        return data


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(file_writer, "ROW_GROUP_ROWS_MAX", STEP_ROWS)
    monkeypatch.setattr(footer_checksum, "TAIL_BYTES", 16_000)


def filled(world, lake: str, num_rows: int, note_chars: int = 8):
    """A table whose rows are all in the lake, in one file."""
    store = Metered(world, f"{lake}{num_rows}")
    properties = {"table.datalake.format": lake, "table.statistics.columns": "id"}
    warehouse = Warehouse("wh", storage=store, world=world)
    table = warehouse.create_table("t", "id BIGINT, note STRING", properties=properties)
    random = Random(num_rows)
    for start in range(0, num_rows, STEP_ROWS):
        notes = [random.randbytes(note_chars // 2).hex() for _ in range(STEP_ROWS)]
        table.append(pa.table({"id": range(start, start + STEP_ROWS), "note": notes}))
    TieringJob(table.log, table.open_lake(), world=world).run(run_tasks_locally(store, table.settings, world))
    [data] = [info for info in store.list("lake/") if info.key.endswith(".parquet")]
    return table, store, data.size_bytes


def cost(table, store: Metered, where, deleted: int) -> tuple[int, int]:
    """Requests and bytes that a deletion reads."""
    before = store.requests, store.read_bytes
    assert table.delete(where=where) == deleted
    return store.requests - before[0], store.read_bytes - before[1]


@pytest.mark.parametrize("lake", ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)])
def test_a_row_of_the_lake_costs_the_same_in_ten_times_as_many(world, lake):
    sizes, costs = [], []
    for num_rows in (4 * STEP_ROWS, 40 * STEP_ROWS):
        table, store, size = filled(world, lake, num_rows)
        cost(table, store, [("id", "=", 1)], 1)  # what is opened once
        found = cost(table, store, [("id", "=", num_rows // 2)], 1)
        number = num_rows // 2 + 2
        known = Filter(pc.field("id") == number, node=Compare("=", "id", number))  # as SQL gives it
        assert cost(table, store, known, 1) == found
        by_expression = cost(table, store, pc.field("id") == num_rows // 2 + 1, 1)
        assert by_expression[1] < found[1] + size / (num_rows / STEP_ROWS), "it reads all columns of its row group"
        sizes.append(size)
        costs.append(found)
    (few, some), (many, more) = costs
    assert many == few
    assert sizes[1] > 8 * sizes[0]
    assert more < 2 * some
    assert more < sizes[1] / 10


@pytest.mark.parametrize("lake", ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)])
def test_a_deletion_asks_no_more_of_the_lake_than_a_read_where_all_rows_have_offsets(world, lake):
    """A mark of the snapshot, which only files of other engines need, would be one request more in a Paimon lake."""
    table, store, _ = filled(world, lake, 4 * STEP_ROWS)
    asked = []
    for work in (lambda: table.to_arrow(filter=[("id", "=", 8)]), lambda: table.delete(where=[("id", "=", 8)])):
        store.keys = []
        work()
        asked.append(sorted(key for key in store.keys if key.startswith("lake/")))
    assert asked[1] == asked[0]


def test_only_the_columns_of_the_filter_are_read(world):
    """Of columns that lie so far from each other that a request for one does not take the others along."""
    num_rows = 4 * STEP_ROWS
    table, store, size = filled(world, "iceberg", num_rows, note_chars=120)
    _, of_ids = cost(table, store, [("id", ">=", 0), ("id", "<", num_rows - 1)], num_rows - 1)
    assert of_ids < size / 4


@pytest.mark.parametrize("lake", ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)])
def test_other_reads_with_a_filter_skip_row_groups_too(world, lake):
    table, store, size = filled(world, lake, 40 * STEP_ROWS)
    where, expected = [("id", "in", [17, 70_000])], [17, 70_000]
    reads = {
        "union": lambda: table.to_arrow(filter=where),
        "lake": lambda: table.lake.to_arrow(filter=where),
    }
    for name, read in reads.items():
        read()
        before = store.read_bytes
        assert sorted(read()["id"].to_pylist()) == expected, name
        assert store.read_bytes - before < size / 5, name
    table.delete(where=[("id", "=", 17)])  # whose file is read row by row from now on
    assert table.to_arrow(filter=where)["id"].to_pylist() == [70_000]
