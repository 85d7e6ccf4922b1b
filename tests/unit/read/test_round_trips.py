"""Budgets of reads on an object store: how many requests, and how many one after the other."""

from __future__ import annotations

import pytest

from kit.tables import tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.lake import file_access
from streamhouse_spark.lake.file_access import SMALL_BYTES_MAX, PrefetchedFiles
from streamhouse_spark.lake.types import LakeSplit
from streamhouse_spark.storage.memory import MemoryStorage

FORMATS = ["iceberg", "paimon"]
BUCKETS = 4
ROWS = 40


@pytest.fixture
def memory(world, request) -> MemoryStorage:
    """A store that no other test knows: a process remembers versions of lakes by their place."""
    return MemoryStorage(world, request.node.name)


@pytest.fixture
def wh(memory, world) -> Warehouse:
    return Warehouse("wh", storage=memory, world=world)


def new_process(remote, world) -> Warehouse:
    return Warehouse("wh", storage=remote, world=world)


def write(table: Table, first: int, rows: int = ROWS) -> None:
    found = [{"id": first + number, "name": "x"} for number in range(rows)]
    if table.state.primary_key:
        table.upsert(found)
    else:
        table.append(found)


def grown(wh: Warehouse, lake: str, *, keyed: bool, rounds: int) -> Table:
    """Make a table with a number of tiering rounds, and rows that are only in the log: inline, and in objects."""
    properties = {"table.datalake.format": lake}
    key = {"primary_key": ["id"]} if keyed else {}
    table = wh.create_table("t", "id INT, name STRING", buckets=BUCKETS, properties=properties, **key)
    for number in range(rounds):
        write(table, number * ROWS)
        tier(table)
    for number in range(30):
        write(table, rounds * ROWS + number, 1)
    return table


@pytest.mark.parametrize("lake", FORMATS)
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
@pytest.mark.parametrize("rounds", [1, 8])
def test_a_union_read_is_five_deep_behind_its_look_for_news(wh, remote, world, lake, keyed, rounds):
    """The hint; the newest version and the floors; manifest lists; manifests; files of the lake and of the log."""
    mine = grown(wh, lake, keyed=keyed, rounds=rounds)
    table = new_process(remote, world).table("t")
    with remote.measured() as first:
        found = table.to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(rounds * ROWS + 30))
    assert first.depth <= 1 + 5, first
    with remote.measured() as second:
        table.to_arrow()
    known = {"iceberg": 2, "paimon": 3}[lake]  # the hint of Paimon's newest snapshot is read again
    assert second.depth <= 1 + known, "manifests are kept, and the version is known"
    assert second.requests < first.requests
    for number in range(1, 9):
        write(mine, (rounds + number) * ROWS)
        tier(mine)
    with remote.measured() as third:
        assert table.to_arrow().num_rows == mine.to_arrow().num_rows
    assert third.depth <= 11, "news in the log come in growing windows, and the lake has more than five newer versions"


@pytest.mark.parametrize("lake", FORMATS)
def test_a_read_of_the_lake_alone(wh, remote, world, lake):
    grown(wh, lake, keyed=False, rounds=8)
    view = new_process(remote, world).view("t$lake")
    with remote.measured() as cost:
        assert view.to_arrow().num_rows == 8 * ROWS
    assert cost.depth <= 1 + 5, cost


def test_small_files_come_whole_and_large_ones_in_two_steps(wh, remote, world):
    table = wh.create_table("t", "id INT, name STRING", buckets=1)
    write(table, 0)
    tier(table)
    (key,) = [info.key for info in table.storage.list("lake/") if info.key.endswith(".parquet")]
    size = table.storage.size_bytes(key)
    for shown, depth, requests in [(size, 1, 1), (SMALL_BYTES_MAX + 1, 3, 3)]:
        files = PrefetchedFiles(remote, {}, [LakeSplit(f"{remote.url}/{key}", shown, ROWS)])
        with remote.measured() as cost, files.open_input(f"{remote.url}/{key}") as source:
            assert source.read(4) == b"PAR1"
            source.seek(0)
            assert len(source.read(size)) == size
            source.read_at(4, 4)
        assert (cost.depth, cost.requests) == (depth, requests), cost


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_large_files_take_one_round_trip_more(wh, remote, world, monkeypatch, keyed):
    """The end of each file comes first, then all bytes of the wanted columns."""
    monkeypatch.setattr(file_access, "SMALL_BYTES_MAX", 0)
    properties = {"table.datalake.format": "iceberg"}
    ddl = "id INT, name STRING, tags ARRAY<STRING>, place STRUCT<x: INT, y: STRING>"
    key = {"primary_key": ["id"]} if keyed else {}
    mine = wh.create_table("t", ddl, buckets=2, properties=properties, **key)
    rows = [{"id": n, "name": f"n{n}", "tags": ["a", str(n)], "place": {"x": n, "y": "z"}} for n in range(ROWS)]
    for begin in range(0, ROWS, ROWS // 4):
        (mine.upsert if keyed else mine.append)(rows[begin : begin + ROWS // 4])
        tier(mine)
    table = new_process(remote, world).table("t")
    for columns in (None, ["place"], ["id", "tags"]):
        with remote.measured() as cost:
            found = table.to_arrow(columns=columns)
        assert sorted(found.to_pylist(), key=str) == sorted(mine.to_arrow(columns=columns).to_pylist(), key=str)
        assert cost.depth <= 1 + 6, cost
    mine.delete([{"id": n} for n in range(0, ROWS, 3)]) if keyed else mine.append(rows)
    tier(mine)
    assert sorted(table.to_arrow().to_pylist(), key=str) == sorted(mine.to_arrow().to_pylist(), key=str)


def test_rows_in_a_record_that_a_look_read_are_not_read_again(wh, remote, world):
    """A tail has news in one round trip, as it does not wait for their end; a read of the whole table does."""
    mine = wh.create_table("t", "id INT, name STRING", properties={"table.datalake.enabled": "false"})
    write(mine, 0)
    table = new_process(remote, world).table("t")
    tail = table.tail("latest")
    for number in range(1, 4):
        write(mine, number * ROWS)
        with remote.measured() as cost:
            assert next(tail).num_rows == ROWS
        assert cost.depth <= (2 if number == 1 else 1), cost
        assert len(set(cost.keys)) == len(cost.keys), "nothing is asked for twice"
    write(mine, 4 * ROWS)
    with remote.measured() as cost:
        assert table.to_arrow().num_rows == 5 * ROWS
    assert cost.depth <= 2, cost
