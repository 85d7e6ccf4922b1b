"""Decisions of the data source itself: shares, positions, partitions."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.session import COLUMNS, rows
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.datasource.read import partitions as pieces
from streamhouse_spark.datasource.stream.batch_limits import fair_shares, limit_ends
from streamhouse_spark.datasource.stream.stream_offset import StreamOffset
from streamhouse_spark.datasource.write.sink_transactions import query_transaction
from streamhouse_spark.errors import CorruptDataError, TableNotFoundError
from streamhouse_spark.read.scan_tasks import OffsetsScanTask, ScanPlan
from streamhouse_spark.warehouse.process_cache import Connection

AMOUNTS = st.dictionaries(st.integers(0, 40), st.integers(0, 1000), min_size=1)


@given(AMOUNTS, st.integers(0, 20_000), st.integers(0, 10**12))
def test_rate_limits_are_shared_fairly_by_buckets(wanted, limit, rotation):
    shares = fair_shares(wanted, limit, rotation=rotation)
    assert sum(shares.values()) == min(limit, sum(wanted.values()))
    assert all(0 <= shares[b] <= wanted[b] for b in wanted)
    hungry = [shares[b] for b in wanted if shares[b] < wanted[b]]
    assert not hungry or max(shares.values()) <= min(hungry) + 1  # nobody has more than one who would take more


def test_every_bucket_has_its_turn():
    """With fewer rows a batch than buckets, no bucket waits for ever."""
    starts, ends = dict.fromkeys(range(5), 0), dict.fromkeys(range(5), 10)
    for _ in range(5):
        wanted = {b: ends[b] - starts[b] for b in starts}
        for bucket, count in fair_shares(wanted, 2, rotation=sum(starts.values())).items():
            starts[bucket] += count
    assert set(starts.values()) == {2}


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 20_000))
def test_limited_batches_advance_to_the_end(max_rows, max_bytes):
    state = _state()
    position, batches = dict.fromkeys(state.ends, 0), 0
    while position != state.ends:
        following = limit_ends(state, position, state.ends, max_rows=max_rows, max_bytes=max_bytes)
        assert all(position[b] <= following[b] <= state.ends[b] for b in position)
        assert 0 < sum(following.values()) - sum(position.values()) <= max_rows
        position, batches = following, batches + 1
    assert batches <= sum(state.ends.values())


def _state():
    if not _STATES:
        from streamhouse_spark import Warehouse
        from streamhouse_spark.storage.memory import MemoryStorage

        table = Warehouse("memory", storage=MemoryStorage()).create_table(
            "a.b", COLUMNS, buckets=3, properties={"bucket.key": "id"}
        )
        for i in range(3):
            table.append(rows(40, 40 * i))
        _STATES.append(table.refresh())
    return _STATES[0]


_STATES: list = []


def test_offset_survives_its_json():
    first = StreamOffset("u", {1: 5, 0: 7}, {1: 5, 0: 7})
    assert list(first.to_json()["offsets"]) == ["0", "1"]  # Spark compares texts
    assert StreamOffset.from_json(first.to_json(), "a.b", "u") == first
    with pytest.raises(TableNotFoundError, match="new checkpointLocation"):
        StreamOffset.from_json(first.to_json(), "a.b", "v")
    with pytest.raises(CorruptDataError):
        StreamOffset.from_json({"version": 1, "table": "u", "offsets": 3}, "a.b", "u")


def test_unfinished_first_batch_keeps_its_beginning():
    began = StreamOffset("u", {0: 10}, {0: 10})
    first_end = StreamOffset("u", {0: 15}, {0: 10})
    asked_again = StreamOffset("u", {0: 20}, {0: 20})  # after a restart `latest` is later
    assert began.begin_of_batch(first_end).offsets == {0: 10}
    assert asked_again.begin_of_batch(first_end).offsets == {0: 10}
    assert first_end.begin_of_batch(StreamOffset("u", {0: 30})).offsets == {0: 15}


def test_offset_knows_the_truncation_that_it_was_taken_behind():
    first_end = StreamOffset("u", {0: 15}, {0: 10})
    of_then = StreamOffset("u", {0: 15}, {0: 10}, truncation=4)
    asked_behind_a_truncation = StreamOffset("u", {0: 20}, {0: 20}, truncation=9)
    assert asked_behind_a_truncation.begin_of_batch(of_then).truncation == 4
    for offset in (of_then, first_end):
        assert StreamOffset.from_json(offset.to_json(), "t", "u") == offset
    assert "truncation" not in first_end.to_json(), "checkpoints of streams that know of none keep their text"


def test_scan_partitions_have_about_equal_sizes():
    plan = ScanPlan("a.b", "u", _state().schema, tuple(_offsets_piece(i, 1 << 20) for i in range(300)))
    groups = pieces.make_partitions(plan, parallelism=2)
    sizes = [sum(p.size_bytes for p in g.plan().tasks) for g in groups]
    assert 3 <= len(groups) <= 6
    assert max(sizes) < 2 * min(sizes)
    tiny = plan.with_tasks([_offsets_piece(i, 10) for i in range(20)])
    assert len(pieces.make_partitions(tiny, parallelism=64)) == 1
    assert len(pieces.make_partitions(plan.with_tasks([]))) == 1  # Spark would make one of its own


def _offsets_piece(i, size_bytes):
    return OffsetsScanTask(0, OffsetRange(i, i + 1), size_bytes)


def test_query_id_is_found_in_the_checkpoint(tmp_path):
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for location in (str(tmp_path), f"file://{tmp_path}", f"file:{tmp_path}"):
        assert query_transaction(None, 3, {None}, location, "a.b").app_id == "q"
    assert query_transaction("app", 3, {"z"}, None, "a.b").owner == "z"


def test_a_batch_is_known_by_what_the_checkpoint_planned_for_its_number(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text("v1 {at: 1}")

    def fingerprint(number, location):
        return query_transaction("app", number, {"z"}, location, "a.b").batch.fingerprint

    known = fingerprint(3, f"file:{tmp_path}")
    assert known == fingerprint(3, str(tmp_path))
    assert fingerprint(4, str(tmp_path)) is None
    assert fingerprint(3, "s3a://bucket/checkpoint") is fingerprint(3, None) is None
    (tmp_path / "offsets" / "3").write_text("v1 {at: 2}")
    assert fingerprint(3, str(tmp_path)) not in (known, None)


def test_connection_travels_without_showing_settings():
    connection = Connection.of("/w", {"s3.secret-access-key": "HIDDEN"})
    assert pickle.loads(pickle.dumps(connection)) == connection
    assert "HIDDEN" not in f"{connection!r} {connection}"


def test_importing_the_shim_is_light():
    """Spark imports it in every session of the machine; one that fails would disable all Python sources."""
    code = (
        "import sys, pyspark_streamhouse as p; "
        "assert p.DefaultSource.name() == 'streamhouse'; "
        "assert not any(m.startswith('streamhouse_spark') for m in sys.modules); "
        "import streamhouse_spark.spark; "
        "s = p.DefaultSource({'path': 'a'}); print(type(s).__name__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert result.stdout.strip() == "StreamhouseDataSource"
