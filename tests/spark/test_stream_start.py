"""Streams of changes from the beginning of tables whose logs were trimmed, on Spark: a copy is always the table."""

from __future__ import annotations

import re

import pytest

from spark.session import drain, forget_commit, load_stream
from streamhouse_spark import delta_join
from streamhouse_spark.kv import kv_snapshots
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _small_snapshots(monkeypatch):
    monkeypatch.setattr(kv_snapshots, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 1)


@pytest.fixture
def tables(wh, request):
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")[:50]
    properties = {"table.log.ttl": "1ms", "table.datalake.enabled": str("lake" in name).lower()}
    columns = "id BIGINT, name STRING, n INT"
    source = wh.create_table(f"begun.{name}", columns, primary_key=["id"], buckets=3, properties=properties)
    return source, wh.create_table(f"begun.{name}_copy", columns, primary_key=["id"], buckets=2)


def write(table, ids, n):
    table.upsert([{"id": i, "name": f"n{i}", "n": n} for i in ids])


def trim(table):
    if table.properties.datalake_enabled:
        job = TieringJob(table.log, table.open_lake(), world=table.world)
        job.run(run_tasks_locally(table.storage, table.settings, table.world))
    assert table.maintain().trimmed_to


def copy(spark, wh, tables, checkpoint, **options):
    changes = load_stream(spark, wh, f"{tables[0].name}$changelog", **options).drop("_log_offset", "_commit_timestamp")
    return drain(changes, wh, tables[1].name, checkpoint, rowKindColumn="_change_type")


def found(table):
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


@pytest.mark.spark41
@pytest.mark.parametrize("tier", ["lake", "keys"])
@pytest.mark.long
def test_a_copy_is_the_table(spark, wh, tables, checkpoint, tier):
    """The first batch is repeated when newer snapshots have taken the place of those that it began with."""
    source, target = tables
    write(source, range(60), 0)
    source.delete([3, 4])
    trim(source)
    write(source, range(10), 1)
    source.delete([59])
    copy(spark, wh, tables, checkpoint, consumerId="copy")
    assert found(target) == found(source)
    assert len(found(source)) == 59
    forget_commit(checkpoint)
    write(source, range(100), 2)
    source.delete([0, 1])
    assert source.maintain().snapshots == 3
    for _ in range(2):  # on PySpark 4.1 a repeated batch is all that AvailableNow runs
        copy(spark, wh, tables, checkpoint, consumerId="copy")
    assert found(target) == found(source)


@pytest.mark.long
def test_a_trimmed_table_is_copied_batch_by_batch(spark, wh, tables, checkpoint):
    source, target = tables
    write(source, range(200), 0)
    trim(source)
    write(source, range(20), 1)
    query = copy(spark, wh, tables, checkpoint, maxOffsetsPerTrigger=40)
    assert found(target) == found(source)
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    # Three files, one for each bucket, and behind them the changes.
    assert sum(sizes) == 200 + 2 * 20
    assert len(sizes) > 3


@pytest.mark.long
def test_a_delta_join_starts_from_a_trimmed_table(spark, wh, tables, checkpoint):
    orders, _ = tables
    write(orders, range(20), 7)
    trim(orders)
    write(orders, [30], 8)
    orders.delete([2])
    suffix = orders.name.rpartition(".")[2]
    names = wh.create_table(f"begun.names_{suffix}", "id BIGINT, label STRING", primary_key=["id"])
    names.upsert([{"id": i, "label": f"l{i}"} for i in range(0, 40, 2)])

    def run():
        query = delta_join(
            spark, orders.name, names.name, on="id", into=into.name, checkpoint=checkpoint, warehouse=wh.url,
            trigger={"availableNow": True},
        )  # fmt: skip
        query.awaitTermination()

    into = wh.create_table(f"begun.joined_{suffix}", "id BIGINT, n INT, label STRING", primary_key=["id"])
    run()
    assert found(into) == [(i, 8 if i == 30 else 7, f"l{i}") for i in (0, *range(4, 20, 2), 30)]
    write(orders, [4], 9)
    (held,) = orders.refresh().consumers.values()
    orders.maintain()
    assert all(log.start <= held.offsets[bucket] for bucket, log in orders.state.buckets.items())
    orders.delete([6])
    run()
    assert found(into) == [(i, {4: 9, 30: 8}.get(i, 7), f"l{i}") for i in (0, 4, *range(8, 20, 2), 30)]
    assert [name.split(".")[:3] for name in orders.refresh().consumers] == [["delta_join", "left", into.uuid]]
    assert [name.split(".")[:3] for name in names.refresh().consumers] == [["delta_join", "right", into.uuid]]
