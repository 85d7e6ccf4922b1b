"""Costs: each request is counted once, and the estimate's constants are what operations really take."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from storage.s3_server import S3Server, settings_for
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.lake.tiering.job import run_tasks_in_threads
from streamhouse_spark.storage.request_metrics import METER, RequestCounts
from streamhouse_spark.storage.s3.client import _KINDS, S3Client
from streamhouse_spark.storage.s3.fast_get import _SignedGet
from streamhouse_spark.table import costs
from streamhouse_spark.table.maintenance.tiering import tier_table

pytestmark = pytest.mark.s3


@pytest.fixture
def wh(s3_server: S3Server) -> Warehouse:
    return Warehouse(f"s3://{s3_server.new_bucket()}/team/wh", settings_for(s3_server.endpoint))


@pytest.fixture
def sent(monkeypatch) -> Counter[str]:
    """Kinds of the requests that the client sends, also those that fail, for the store alone."""
    seen: Counter[str] = Counter()
    send, get = S3Client.send, _SignedGet.get

    async def noted(self, operation, **parameters):
        seen[_KINDS[operation]] += 1
        return await send(self, operation, **parameters)

    async def noted_get(self, key, byte_range):
        seen["gets"] += 1
        return await get(self, key, byte_range)

    monkeypatch.setattr(S3Client, "send", noted)
    monkeypatch.setattr(_SignedGet, "get", noted_get)
    return seen


def tier(table: Table) -> None:
    tier_table(table, run_tasks_in_threads(table.storage, table.settings, table.world))


def test_each_request_is_counted_once(wh, sent):
    table = wh.create_table("db.t", "id BIGINT, v STRING", buckets=2)
    for number in range(20):
        table.append([{"id": number, "v": "x"}])
    large = pa.table({"id": range(1_000_000), "v": [None] * 1_000_000})  # several parts
    table.append(large.cast(table.schema))
    tier(table)
    assert table.to_arrow().num_rows == 1_000_020
    table.maintain()
    wh.drop_table("db.t")
    found = METER.of(wh.url)
    assert {kind: getattr(found, kind) for kind in sent} == sent
    assert found.sent_bytes > large.nbytes / 4
    assert found.received_bytes > 0


def test_requests_of_two_tables_are_apart(wh):
    one, other = (wh.create_table(name, "id BIGINT") for name in ("db.one", "db.other"))
    before = other.costs().requests
    for _ in range(5):
        one.append([{"id": 1}])
    tier(one)
    assert other.costs().requests.puts == before.puts
    assert one.costs().requests.puts > before.puts + 5


def test_refusals_and_failures_are_counted_apart(wh, monkeypatch):
    table = wh.create_table("db.t", "id BIGINT")
    second = wh.table("db.t")
    table.append([{"id": 1}])
    second.append([{"id": 2}])
    table.append([{"id": 3}])
    assert table.costs().requests.failures == 0
    send, failing = S3Client.send, [True]

    async def slow_down(self, operation, **parameters):
        if failing.pop():
            raise ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, operation)
        failing.append(False)
        return await send(self, operation, **parameters)

    monkeypatch.setattr(S3Client, "send", slow_down)
    failing[:] = [False, True]
    table.append([{"id": 4}])
    assert table.costs().requests.failures == 1


def per(table: Table, count: int, work) -> RequestCounts:
    before = table.costs().requests
    asking = table.costs().requests - before
    before = before + asking
    for number in range(count):
        work(number)
    return table.costs().requests - before - asking


def test_the_estimate_takes_the_means_of_real_operations(wh):
    """Within a third: an estimate, but not of another operation. Put the new means into `costs` where this fails."""
    buckets, rows = 4, pa.table({"id": range(1000)})
    table = wh.create_table("db.t", "id BIGINT", buckets=buckets, properties={"bucket.key": "id"})

    def is_near(found: float, expected: float) -> None:
        assert found == pytest.approx(expected, rel=1 / 3, abs=1)

    appends = per(table, 150, lambda _: table.append(rows))
    is_near(appends.puts, 150 * costs.COMMIT_PUTS)
    is_near(appends.gets, 150 * costs.COMMIT_GETS)
    tier(table)
    rounds = per(table, 6, lambda _: (table.append(rows), tier(table)))
    assert rounds.heads > 0 or rounds.gets > 0
    is_near(rounds.puts, 6 * (1 + costs.ROUND_PUTS + costs.ROUND_PUTS_PER_BUCKET * buckets))
    is_near(rounds.lists, 6 * costs.ROUND_LISTS)
    is_near(rounds.gets + rounds.heads, 6 * (2 + costs.ROUND_GETS + costs.ROUND_GETS_PER_BUCKET * buckets))
    table.maintain()
    upkeep = per(table, 3, lambda _: table.maintain())
    is_near(upkeep.puts, 3 * costs.MAINTENANCE_PUTS)
    is_near(upkeep.lists, 3 * costs.MAINTENANCE_LISTS)
    is_near(upkeep.gets + upkeep.heads, 3 * costs.MAINTENANCE_GETS)
