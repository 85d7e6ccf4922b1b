"""A writer takes its own record to be the one that everybody else reads."""

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark import Transaction
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import commit_key, manifest_key
from streamhouse_spark.log.actions import Append, TieredSnapshot, Trim
from streamhouse_spark.log.record import RECORD_BYTES_MAX, Record, encode_record, read_record
from streamhouse_spark.log.segments.writer import SegmentOptions
from streamhouse_spark.log.staging import BucketRouter, RowStager
from streamhouse_spark.storage.memory import MemoryStorage

UUID = "0" * 32
MANIFEST_UUID = "f" * 32


@pytest.mark.parametrize("repeated", [1, 2000], ids=["in the record", "in a manifest"])
def test_the_stored_form_is_what_reading_gives(repeated):
    storage = MemoryStorage()
    days = pa.array(np.arange(100, dtype=np.int32)).cast(pa.date32())
    rows = pa.table({"id": np.arange(100), "day": days, "name": ["x"] * 100})
    shape = SegmentOptions(1, ("name",), ("id", "day", "name"))
    inline = RowStager(storage, UUID, shape, BucketRouter(4, ("id",)), World()).stage(rows)
    objects = RowStager(storage, UUID, shape, BucketRouter(4, ("id",)), World(), inline_bytes_max=0).stage(rows)
    staged = (*inline.segments, *objects.segments) * repeated
    placed = tuple(s.segment.placed(10 * i, 7, 1234) for i, s in enumerate(staged))
    record = Record(
        number=7,
        table_uuid=UUID,
        attempt="a",
        time_ms=1234,
        actions=(Append(placed, tuple(s.inline_rows for s in staged)), Trim({1: 5}), TieredSnapshot(3, {0: 9}, 8)),
        transaction=Transaction("app", 3, "owner"),
    )

    encoded = encode_record(record, MANIFEST_UUID)
    assert (encoded.manifest is not None) == (len(encoded.data) + len(encoded.manifest or b"") > RECORD_BYTES_MAX)
    storage.put_if_absent(commit_key(UUID, 7), encoded.data)
    if encoded.manifest is not None:
        storage.put_if_absent(manifest_key(UUID, MANIFEST_UUID), encoded.manifest)

    stored, payload = read_record(storage, UUID, 7)
    assert stored == encoded.stored
    for segment, piece in zip(stored.actions[0].segments, staged, strict=True):
        if piece.inline_rows is not None:
            assert payload[slice(*segment.inline)] == piece.inline_rows
