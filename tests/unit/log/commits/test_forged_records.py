"""Records with a right checksum that no version of this package wrote."""

from __future__ import annotations

import pytest

from streamhouse_spark import CorruptDataError, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.storage.memory import MemoryStorage


@pytest.fixture
def storage():
    return MemoryStorage(World())


@pytest.fixture
def first(storage):
    table = Warehouse("memory://wh", storage=storage).create_table("s.t", "id BIGINT")
    return f"tables/{table.uuid}/commits/{1:020d}.json"


def forge(storage, key, change):
    frame = decode_frame("commit", storage.read(key), "here", newest=99)
    header = dict(frame.header)
    change(header)
    storage.put(key, encode_frame("commit", header, [bytes(frame.payload)], version=frame.version))


def opened(storage):
    return Warehouse("memory://wh", storage=storage).table("s.t")


@pytest.mark.parametrize("buckets", [10**30, 16_385, 0, -1, "2", 1.5, True, None])
def test_a_table_of_impossibly_many_buckets(storage, first, buckets):
    """The state has an entry for each bucket, so this would go on for ever."""
    forge(storage, first, lambda header: header["actions"][0].update(buckets=buckets))
    with pytest.raises(CorruptDataError, match=r"creates a table with .* buckets"):
        opened(storage)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("attempt"),
        lambda header: header.pop("actions"),
        lambda header: header.update(actions=5),
        lambda header: header["actions"][0].pop("columns"),
        lambda header: header["actions"][0].update(columns=[[]]),
        lambda header: header.update(manifest=7),
        lambda header: header.update(transaction=[1]),
        lambda header: header.update(by=[1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_wrong_fields(storage, first, change):
    forge(storage, first, change)
    with pytest.raises(CorruptDataError, match="another program wrote it; restore this file"):
        opened(storage)
