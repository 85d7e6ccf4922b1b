"""A filter by equality on the bucket key reads the buckets that can hold its rows, and finds the same rows."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.tables import tier
from streamhouse_spark.expressions.filters import Projection, parse_filter
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan

DAY = dt.date(2026, 1, 1)
TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
VALUES = {
    "BIGINT": [*range(40)],
    "INT": [*range(40)],
    "STRING": [f"k{i}" for i in range(40)],
    "BINARY": [b"k%d" % i for i in range(40)],
    "DATE": [DAY + dt.timedelta(days=i) for i in range(40)],
    "TIMESTAMP": [TIME + dt.timedelta(hours=i) for i in range(40)],
    "TIMESTAMP_NTZ": [TIME.replace(tzinfo=None) + dt.timedelta(hours=i) for i in range(40)],
    "DECIMAL(12,2)": [decimal.Decimal(i) / 4 for i in range(40)],
}
BUCKETS = 16


@pytest.mark.parametrize("lake_format", ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)])
@pytest.mark.parametrize("data_type", VALUES)
@pytest.mark.parametrize("tiered", [False, True])
def test_a_row_is_found_in_its_bucket(wh, data_type, lake_format, tiered):
    properties = {"bucket.key": "k", "table.datalake.format": lake_format}
    table = wh.create_table("t", f"k {data_type}, n INT", buckets=BUCKETS, properties=properties)
    values = VALUES[data_type]
    table.append([{"k": value, "n": n} for n, value in enumerate(values)] + [{"k": None, "n": -1}])
    if tiered:
        tier(table)
    field = table.schema.field("k")
    for n in (0, 7, 39):
        literal = pa.scalar(values[n], field.type)
        for given in ([("k", "=", values[n])], [("k", "==", values[n])], pc.field("k") == literal):
            assert table.to_arrow(filter=given)["n"].to_pylist() == [n], given
        assert sorted(table.to_arrow(filter=[("k", "in", [values[n], values[3]])])["n"].to_pylist()) == sorted({n, 3})
    below = sum(value < values[2] for value in values)
    assert table.to_arrow(filter=[("k", "<", values[2])]).num_rows == below


@pytest.mark.parametrize(
    ("given", "buckets_max"),
    [
        ([("k", "=", 5)], 1),
        ([("k", "in", [5, 6, 7])], 3),
        ([("k", "=", 5), ("n", ">", 0)], 1),
        ([("k", ">", 5)], BUCKETS),
    ],
)
def test_other_buckets_are_not_planned(wh, given, buckets_max):
    table = wh.create_table("t", "k BIGINT, n INT", buckets=BUCKETS, properties={"bucket.key": "k"})
    table.append([{"k": n, "n": n} for n in range(400)])
    projection = Projection.of(table.state.schema, None, parse_filter(given))
    sources = plan_scan(table, take_latest_snapshot(table.state), ScanRequest.of(projection))
    assert 1 <= len(sources.tasks) <= buckets_max
    tier(table)
    sources = plan_scan(table, take_latest_snapshot(table.refresh()), ScanRequest.of(projection))
    assert sources.lake is not None
    assert 1 <= len({file.bucket for file in sources.lake.files}) <= buckets_max


def test_a_table_whose_batches_go_anywhere_is_read_whole(wh):
    table = wh.create_table("t", "k BIGINT", buckets=4)
    for n in range(8):
        table.append([{"k": 5}, {"k": n}])
    assert table.to_arrow(filter=[("k", "=", 5)]).num_rows == 9
