"""Several jobs at once on one table with a primary key, each with columns of its own."""

from __future__ import annotations

import os
import threading
import time

import pytest

pytestmark = pytest.mark.spark
SECONDS = float(os.environ.get("STREAMHOUSE_TEST_WRITERS_S", "6"))
COMMITS_MIN = 10


@pytest.mark.long
def test_two_streams_and_a_python_process_write_one_wide_table(spark, wh, tmp_path):
    wide = wh.create_table("wide.profile", "id INT, a INT, b INT, c INT", primary_key=["id"], buckets=2)
    sources = {name: wh.create_table(f"wide.{name}", f"id INT, {name} INT") for name in "ab"}
    queries = []
    for name, source in sources.items():
        stream = spark.readStream.format("streamhouse").option("warehouse", wh.url).load(source.name)
        writer = stream.writeStream.format("streamhouse").option("warehouse", wh.url).option("partialUpdate", "true")
        writer = writer.option("checkpointLocation", str(tmp_path / name)).trigger(processingTime="200 milliseconds")
        queries.append(writer.start(wide.name))
    expected, versions = {}, 0
    until = time.monotonic() + SECONDS
    failures, done = [], threading.Event()

    def python_process():
        mine = 0
        try:
            while not done.is_set():
                mine += 1
                wide_of_its_own = wh.table(wide.name)
                wide_of_its_own.upsert([{"id": key, "c": mine} for key in range(mine % 7, 50, 7)], columns=["c"])
                expected.update({(key, "c"): mine for key in range(mine % 7, 50, 7)})
                time.sleep(0.02)
        except Exception as error:  # noqa: BLE001 - the test shows it
            failures.append(error)

    thread = threading.Thread(target=python_process)
    thread.start()
    try:
        while time.monotonic() < until or wide.inspect.commits().num_rows <= COMMITS_MIN:
            versions += 1
            for name, source in sources.items():
                keys = range(versions % 5, 50, 5)
                source.append([{"id": key, name: versions} for key in keys])
                expected.update({(key, name): versions for key in keys})
            time.sleep(0.1)
    finally:
        done.set()
        thread.join()
    for query in queries:
        query.processAllAvailable()
        assert query.exception() is None
        query.stop()
    assert failures == []
    found = {(row["id"], name): row[name] for row in wide.to_arrow().to_pylist() for name in "abc"}
    assert {key: value for key, value in found.items() if value is not None} == expected
    assert wide.lookup(list(range(50)))["_found"].to_pylist() == [True] * 50
