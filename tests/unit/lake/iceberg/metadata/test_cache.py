"""Metadata that is kept is equal to metadata that is parsed again, and shared parts are never changed."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadataUtil

from interop.lake_cases import PLAIN, lake_of, tier
from streamhouse_spark.lake.iceberg import catalog as kept


def _rows(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + 3), "name": ["x"] * 3}, schema=PLAIN.arrow)


def test_what_is_remembered_is_what_its_text_says(store, world):
    lake = lake_of(store, world=world)
    for i in range(12):
        tier(lake, _rows(3 * i))
    lake.compact()
    lake.expire(keep_last=3, keep_ms=-60_000)
    tier(lake, _rows(36))
    keys = [info.key for info in store.list("lake/") if info.key.endswith(".metadata.json")]
    found = [store.read(key) for key in keys]
    remembered = [data for data in found if kept._parsed_metadata.get(data) is not None]
    assert len(remembered) == 8
    for data in remembered:
        assert kept._parsed_metadata.get(data) == TableMetadataUtil.parse_raw(data.decode())
        assert type(kept.parse_metadata(data).snapshots) is list


def test_older_metadata_stays_as_it_was(store, world):
    lake = lake_of(store, world=world)
    tier(lake, _rows(0))
    before = lake.binding.load().metadata
    text = before.model_dump_json()
    for i in range(1, 4):
        tier(lake, _rows(3 * i))
    lake.expire(keep_last=1, keep_ms=-60_000)
    assert before.model_dump_json() == text
    assert len(lake.binding.load().metadata.snapshots) == 1


def test_documents_are_told_apart_by_every_byte(store, world):
    lake = lake_of(store, world=world)
    tier(lake, _rows(0))
    (key,) = (info.key for info in store.list("lake/") if info.key.endswith("v2.metadata.json"))
    data = store.read(key)
    other = data.replace(b'"streamhouse.table-uuid":"0', b'"streamhouse.table-uuid":"9')
    assert other != data
    assert kept.parse_metadata(other).properties != kept.parse_metadata(data).properties
