"""Tables on an object store that loses answers, refuses, breaks off and asks to slow down."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pyarrow as pa
import pytest

from faults.sim import SimIds
from storage.s3_proxy import Fault, nothing, nth
from storage.s3_server import settings_for
from streamhouse_spark import ErrorKind, StreamhouseError, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.write.auto_compaction import compact_inline_rows

pytestmark = pytest.mark.s3
FAULTS = [Fault.LOST_ACK, Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.DROP_BEFORE, Fault.SLOW_DOWN, Fault.CONFLICT]
PLAIN = {"table.datalake.enabled": "false"}


@pytest.fixture
def location(s3_server) -> str:
    return f"s3://{s3_server.new_bucket()}/wh"


@pytest.fixture
def faulty(proxy, clock, location) -> Warehouse:
    return Warehouse(location, settings_for(proxy.endpoint), world=World(clock, SimIds(1)))


@pytest.fixture
def direct(s3_server, clock, location) -> Warehouse:
    """The same warehouse, without the proxy."""
    return Warehouse(location, settings_for(s3_server.endpoint), world=World(clock, SimIds(2)))


def check(table, acknowledged: set[int], unclear: set[int]) -> None:
    """Acknowledged rows once, unclear ones at most once, offsets dense, nothing else."""
    found = {bucket: [] for bucket in table.refresh().buckets}
    for batch in table.tail("earliest", include_metadata=True, until_ms=0):
        pairs = zip(batch["_log_offset"].to_pylist(), batch["id"].to_pylist(), strict=True)
        found[batch["_bucket"][0].as_py()].extend(pairs)
    for bucket, rows in found.items():
        assert [offset for offset, _ in rows] == list(range(table.state.buckets[bucket].end))
    stored = Counter(i for rows in found.values() for _, i in rows)
    assert set(stored.values()) <= {1}
    assert acknowledged <= set(stored) <= acknowledged | unclear
    assert sorted(table.to_arrow()["id"].to_pylist()) == sorted(stored)


def stored(ask) -> bool:
    """Whether the call went through; the only error that a store's faults may cause is the one that says to wait."""
    try:
        ask()
    except StreamhouseError as error:
        if error.kind is not ErrorKind.UNAVAILABLE:
            raise
        return False
    return True


@pytest.mark.parametrize(
    "fault",
    [Fault.LOST_ACK, *(pytest.param(f, marks=pytest.mark.long) for f in (Fault.ERROR_BEFORE, Fault.CONFLICT))],
    ids=lambda f: f.name,
)
def test_a_fault_at_every_write_of_a_life(proxy, faulty, direct, fault):
    """Creating, appending inline and as objects, merging and maintaining, each with a fault at each of its PUTs."""
    asked = {"buckets": 2, "properties": {**PLAIN, "bucket.key": "id"}, "if_not_exists": True}
    for number in range(3):
        name = f"t{number}"
        proxy.plan = nth("PUT", 1 + number, fault)
        stored(lambda: faulty.create_table(name, "id BIGINT", **asked))  # noqa: B023
        proxy.plan = nothing
        table = faulty.create_table(name, "id BIGINT", **asked)
        assert direct.table(name).uuid == table.uuid
    rows = 0
    acknowledged: set[int] = set()
    unclear: set[int] = set()
    for number in range(3):
        for size in (3, 26_000):
            batch = pa.table({"id": range(rows, rows + size)})
            proxy.plan = nth("PUT", number, fault)
            done = stored(lambda: table.append(batch))  # noqa: B023
            (acknowledged if done else unclear).update(batch["id"].to_pylist())
            rows += size
        proxy.plan = nth("PUT", number, fault)
        stored(table.maintain)
    proxy.plan = nothing
    check(direct.table(name), acknowledged, unclear)
    assert len(acknowledged) >= rows // 4


@pytest.mark.parametrize(
    "fault",
    [Fault.TRUNCATED, *(pytest.param(f, marks=pytest.mark.long) for f in (Fault.SLOW_DOWN, Fault.DROP_BEFORE))],
    ids=lambda f: f.name,
)
def test_a_fault_at_every_read(proxy, faulty, direct, fault):
    """The rows, all of them, or an error that says to try again; never fewer, never damaged."""
    writer = direct.create_table("t", "id BIGINT, s STRING", properties=PLAIN)
    writer.append([{"id": 0, "s": "x"}])
    writer.append(pa.table({"id": range(1, 20_000), "s": [f"row {i}" for i in range(1, 20_000)]}))
    writer.append([{"id": 20_000, "s": "y"}])
    table = faulty.table("t")
    found = []
    for number in range(6):
        for columns in (None, ["id"]):
            proxy.plan = nth("GET", number, fault)
            stored(lambda: found.append(table.to_arrow(columns=columns)["id"]))  # noqa: B023
        proxy.plan = nothing
    assert len(found) >= 6, "most faults pass when the request is sent again"
    assert all(ids.to_pylist() == list(range(20_001)) for ids in found)


@pytest.mark.long
def test_two_writers_store_each_row_once_through_random_faults(proxy, faulty, direct):
    direct.create_table("t", "id BIGINT", buckets=2, properties={**PLAIN, "bucket.key": "id"})
    second = Warehouse(faulty.url, faulty.settings, world=World(faulty.world.clock, SimIds(9)))
    writers = [faulty.table("t"), second.table("t")]
    rng = random.Random(3)
    acknowledged: set[int] = set()
    unclear: set[int] = set()
    proxy.plan = lambda _: rng.choice(FAULTS) if rng.random() < 0.2 else None
    for i in range(30):
        writer = rng.choice(writers)
        if rng.random() < 0.1:
            stored(partial(compact_inline_rows, writer))
        batch = pa.table({"id": range(i * 100_000, i * 100_000 + (2 if rng.random() < 0.9 else 26_000))})
        done = stored(lambda: writer.append(batch))  # noqa: B023
        (acknowledged if done else unclear).update(batch["id"].to_pylist())
    assert proxy.faults_fired > 15
    proxy.plan = nothing
    check(direct.table("t"), acknowledged, unclear)
    assert len(acknowledged) > len(unclear)


def test_a_transaction_is_retried_until_it_is_stored_once(proxy, faulty, direct):
    table = direct.create_table("t", "id BIGINT", properties=PLAIN)
    writer = faulty.table("t")
    rng = random.Random(5)
    proxy.plan = lambda _: rng.choice(FAULTS) if rng.random() < 0.5 else None
    for version in range(8):
        while not stored(lambda: writer.append([{"id": version}], transaction=Transaction("job", version))):  # noqa: B023
            pass
    proxy.plan = nothing
    assert table.to_arrow()["id"].to_pylist() == list(range(8))
