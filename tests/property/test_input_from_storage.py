"""Files of a warehouse as damage, or another program, leaves them: the table's rows, or an error of ours."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.hostile_input import FEW, MANY, changed_json, damaged, profile, refuses_or_answers
from streamhouse_spark import Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log import checkpoint, record
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.storage.memory import MemoryStorage

EXAMPLES = [FEW, pytest.param(MANY, marks=pytest.mark.long)]
PARTS = [
    "/commits/",
    "/checkpoints/",
    "/segments/",
    "/names/",
    "streamhouse.json",
    ".metadata.json",
    ".avro",
    ".parquet",
]


@pytest.fixture(scope="module")
def files():
    storage = MemoryStorage(World())
    warehouse = Warehouse("memory://wh", storage=storage)
    table = warehouse.create_table("s.t", "id BIGINT, s STRING", buckets=2)
    for number in range(4):
        count = 8_000 if number == 3 else 60  # the last ones get an object of their own
        table.append([{"id": n, "s": sha256(str(n).encode()).hexdigest()} for n in range(count)])
        if number == 1:
            TieringJob(table.log, table.open_lake(), world=table.world).run(
                run_tasks_locally(storage, table.settings, table.world)
            )
    table.log.checkpoint(table.state)
    rows = sorted(table.to_arrow().to_pylist(), key=str)
    return {info.key: storage.read(info.key) for info in storage.list("")}, rows


def read(files):
    storage = MemoryStorage(World())
    for key, data in files.items():
        storage.put(key, data)
    table = Warehouse("memory://wh", storage=storage).table("s.t")
    found = table.to_arrow()
    for view in ("segments", "commits"):
        table.inspect.read(view)
    return found


@pytest.mark.parametrize("examples", [5, pytest.param(MANY // 10, marks=pytest.mark.long)])
@pytest.mark.parametrize("part", PARTS)
def test_damaged_files_of_a_log_are_detected(files, part, examples):
    whole, rows = files
    keys = sorted(key for key in whole if part in key)
    assert keys

    @profile(examples)
    @given(st.sampled_from(keys).flatmap(lambda key: st.tuples(st.just(key), damaged(whole[key]))))
    def holds(broken):
        key, data = broken
        found = refuses_or_answers(read, {**whole, key: data})
        # The lake's own files in JSON have no checksum: another engine's are read as well.
        if found is not None and not key.endswith((".metadata.json", ".avro")):
            assert sorted(found.to_pylist(), key=str) == rows

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("kind", ["commit", "checkpoint"])
def test_forged_files_with_a_right_checksum_are_corrupt_data(files, kind, examples):
    """Such a file was made by another program: it is told as damaged, and nothing of it counts."""
    whole, _ = files
    part = f"/{kind}s/0"
    key = max(key for key in whole if part in key)
    uuid, number = key.split("/")[1], int(key.rpartition("/")[2].partition(".")[0])
    frame = decode_frame(kind, whole[key], "here", newest=99)
    read_back = record.read_record if kind == "commit" else checkpoint.read_checkpoint

    @profile(examples)
    @given(changed_json(json.loads(json.dumps(frame.header))))
    def holds(header):
        storage = MemoryStorage(World())
        forged = encode_frame(kind, json.dumps(header), [bytes(frame.payload)], version=frame.version)
        storage.put(key, forged)
        refuses_or_answers(read_back, storage, uuid, number)

    holds()
