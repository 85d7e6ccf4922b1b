"""Tables on object storage: the same rows, offsets and errors, from as few bytes and requests as they need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from kit.tables import tier
from storage.s3_server import S3Server, settings_for
from streamhouse_spark import InvalidOptionError, TableNotFoundError, Transaction, Warehouse, WarehouseNotFoundError
from streamhouse_spark.log.segment import BLOCK_BYTES_MIN
from streamhouse_spark.read.tail import REMOTE_POLL_MS
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.sample_rows import ALL_TYPES_DDL, sample

pytestmark = pytest.mark.s3
PLAIN = {"table.datalake.enabled": "false"}


@pytest.fixture
def location(s3_server: S3Server) -> str:
    return f"s3://{s3_server.new_bucket()}/team/wh"


@pytest.fixture
def settings(s3_server: S3Server) -> dict[str, str]:
    return settings_for(s3_server.endpoint)


@pytest.fixture
def wh(location, settings) -> Warehouse:
    return Warehouse(location, settings)


def test_a_table_lives_on_s3_from_creation_to_drop(wh, location, settings):
    with pytest.raises(WarehouseNotFoundError, match=r"no streamhouse\.json"):
        wh.tables()
    table = wh.create_table("sales.orders", ALL_TYPES_DDL, partition_by=["c12"], buckets=2)
    small, large = sample(40, 1), sample(1500, 2, first_id=40)
    assert table.append(small).num_rows == 40
    assert table.append(large, transaction=Transaction("job", 1)).num_rows == 1500
    assert table.append(large, transaction=Transaction("job", 1)).num_rows == 1500
    other = Warehouse(location, settings)
    assert other.tables() == ["sales.orders"]
    for each in (table, other.table("sales.orders")):
        assert each.to_arrow().sort_by("id").equals(pa.concat_tables([small, large]).combine_chunks())
        assert each.to_arrow(columns=["id"], filter=[("id", "<", 3)]).sort_by("id")["id"].to_pylist() == [0, 1, 2]
    assert compact_inline_rows(table) == 1
    report = table.maintain()
    assert report.cleaned.deleted == []
    assert other.table("sales.orders").to_arrow().num_rows == 1540
    table.alter_properties({"table.log.ttl": "1d"})
    assert other.table("sales.orders").properties.log_ttl_ms == 86_400_000
    assert wh.view("sales.orders$changelog").to_arrow().num_rows == 1540
    assert other.drop_table("sales.orders")
    with pytest.raises(TableNotFoundError):
        table.append(small)
    assert wh.create_table("sales.orders", "a INT").to_arrow().num_rows == 0


@pytest.mark.always
def test_rows_survive_a_lost_put_race_and_are_tiered(wh, location, settings):
    table, late = wh.create_table("sales.orders", "id BIGINT"), Warehouse(location, settings).table("sales.orders")
    table.append([{"id": 1}])
    late.append([{"id": 2}])  # puts the record number that the first append took, and retries with the next one
    assert table.refresh().version == 3
    tier(table)
    late.append([{"id": 3}])
    assert sorted(late.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert sorted(late.lake.to_arrow()["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_read_of_few_columns_fetches_few_bytes(wh, codec):
    """About the bytes of those columns, in whole blocks, and the footer."""
    names = [f"c{i}" for i in range(20)]
    table = wh.create_table("t", ", ".join(f"{n} BIGINT" for n in names), properties=PLAIN)
    table.alter_properties({"table.log.arrow.compression.type": codec})
    rows = pa.table({name: pa.array(range(i, 100_000 + i)) for i, name in enumerate(names)})
    table.append(rows)
    (segment,) = table.state.live_segments()
    fetched = Fetched(wh.storage)
    read = Warehouse("s3", storage=fetched).table("t")
    fetched.bytes = 0
    found = read.to_arrow(columns=["c7"])
    assert found["c7"].to_pylist() == list(range(7, 100_007))
    column_bytes = segment.size_bytes // 20
    batches = len(segment.index.batch_starts)
    assert fetched.bytes < column_bytes + (2 * batches + 3) * 2 * BLOCK_BYTES_MIN < segment.size_bytes // 2
    fetched.bytes = 0
    assert read.to_arrow().equals(rows.cast(table.schema))
    assert fetched.bytes < segment.size_bytes * 1.1 + BLOCK_BYTES_MIN


class Fetched:
    """Counts the bytes that are read."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.bytes = 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def read(self, key):
        data = self._inner.read(key)
        self.bytes += len(data)
        return data

    def read_ranges(self, key, ranges):
        parts = self._inner.read_ranges(key, ranges)
        self.bytes += sum(map(len, parts))
        return parts


def test_how_many_requests_things_cost(wh):
    counting = FaultyStorage(wh.storage)
    mine = Warehouse("s3", storage=counting)
    table = mine.create_table("t", "id BIGINT", properties=PLAIN)
    table.append([{"id": 1}])

    def asked(ask) -> list[str]:
        counting.trace.clear()
        ask()
        return [method for _, method, _ in counting.trace]

    assert asked(lambda: table.append([{"id": 2}])) == ["put_if_absent"]
    assert asked(table.refresh) == ["read"]
    assert asked(lambda: table.append(pa.table({"id": range(60_000)}))) == [
        "create.open",
        *["create.write"] * (len(counting.trace) - 3),
        "create.close",
        "put_if_absent",
    ]
    assert not any(m.startswith("list") for m in asked(table.to_arrow))


def test_a_tail_follows_a_table_on_s3(wh, location, settings):
    table = wh.create_table("t", "id BIGINT", buckets=2, properties=PLAIN)
    following = Warehouse(location, settings).table("t").tail("earliest", include_metadata=True, until_ms=0)
    for i in range(5):
        table.append([{"id": i}])
    rows = [row for batch in following for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(5))
    assert {type(row["_commit_timestamp"]).__name__ for row in rows} == {"datetime"}
    assert REMOTE_POLL_MS >= 50, "a poll is a request that somebody pays for"


_WRITE = """
import json, sys
import streamhouse_spark as sh
location, settings, writer = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
table = sh.Warehouse(location, settings).table("t")
print("ready", flush=True)
sys.stdin.readline()
for i in range(8):
    first = (writer * 8 + i) * 2
    rows = [{"id": first}, {"id": first + 1}]
    print(first, {b: (r.start, r.end) for b, r in table.append(rows).items()}, flush=True)
"""


def test_two_racing_processes_on_s3_store_each_row_once(wh, location, settings):
    table = wh.create_table("t", "id BIGINT", buckets=2, properties={**PLAIN, "bucket.key": "id"})
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITE, location, json.dumps(settings), str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    assert [w.stdout.readline() for w in writers] == ["ready\n"] * 2
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    acknowledged = [line.split(" ", 1) for w in writers for line in w.communicate(timeout=600)[0].splitlines()]
    assert [w.returncode for w in writers] == [0, 0]
    assert len(acknowledged) == 16
    changes = wh.view("t$changelog").to_arrow().to_pylist()
    assert Counter(row["id"] for row in changes) == Counter(range(32))
    buckets = {b: [] for b in table.refresh().buckets}
    for batch in table.tail("earliest", include_metadata=True, until_ms=0):
        for row in batch.to_pylist():
            buckets[row["_bucket"]].append((row["_log_offset"], row["id"]))
    for bucket, found in buckets.items():
        assert [offset for offset, _ in found] == list(range(table.state.buckets[bucket].end))
    for first, offsets in acknowledged:
        got = [buckets[b][o][1] for b, span in eval(offsets).items() for o in range(*span)]
        assert sorted(got) == [int(first), int(first) + 1]


@pytest.mark.parametrize("name", ["s3.endpont", "s3.acces-key-id"])
def test_unknown_settings_name_the_nearest(location, settings, name):
    with pytest.raises(InvalidOptionError, match=r"s3\."):
        Warehouse(location, {**settings, name: "x"}).create_table("t", "id BIGINT")


def test_secrets_stay_out_of_what_is_stored_and_shown(wh, settings):
    table = wh.create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    secret = settings["s3.secret-access-key"]
    assert secret not in repr(wh) + repr(table) + wh.url
    for info in wh.storage.list(""):
        assert secret.encode() not in wh.storage.read(info.key)


def test_offsets_are_those_of_any_store(wh):
    asked = {"buckets": 4, "properties": {**PLAIN, "bucket.key": "id"}}
    offsets = [
        each.create_table("t", "id BIGINT", **asked).append(pa.table({"id": range(8)}))
        for each in (wh, Warehouse("memory", storage=MemoryStorage()))
    ]
    assert offsets[0] == offsets[1]
    assert offsets[0].num_rows == 8
