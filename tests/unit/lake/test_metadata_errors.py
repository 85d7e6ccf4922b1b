"""Metadata of a lake in the right form, with values that cannot be: whoever asks is told that it is damaged."""

from __future__ import annotations

import json

import pytest

from kit.tables import tier
from streamhouse_spark import CorruptDataError, InvalidNameError

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
COLUMNS = "id BIGINT NOT NULL, day STRING NOT NULL, n INT"


def made(wh, lake):
    """A table with a primary key that was tiered, with newer rows of the same keys in the log."""
    properties = {"table.datalake.format": lake}
    table = wh.create_table("t", COLUMNS, primary_key=["id", "day"], partition_by=["day"], properties=properties)
    rows = [{"id": n, "day": "a", "n": n} for n in range(4)]
    table.upsert(rows)
    tier(table)
    table.upsert(rows)
    return table


def forge(table, ending, change) -> None:
    """Change the newest JSON file with this in its name."""
    key = max(info.key for info in table.storage.list("lake/") if ending in info.key)
    value = json.loads(table.storage.read(key))
    change(value)
    table.storage.put(key, json.dumps(value).encode())


def another_type(metadata) -> None:
    for schema in metadata["schemas"]:
        next(field for field in schema["fields"] if field["name"] == "day")["type"] = "int"


def no_such_schema(metadata) -> None:
    metadata["current-schema-id"] = 77


def no_such_spec(metadata) -> None:
    metadata["default-spec-id"] = 77


def test_files_that_are_looked_up_by_key(wh):
    table = made(wh, "iceberg")
    lake = table.open_lake()
    context = lake.write_context()
    forge(table, ".metadata.json", another_type)
    with pytest.raises(CorruptDataError, match=r"has invalid values.*restore the metadata, or rebuild the lake"):
        lake.live_files(context, [0])


@pytest.mark.parametrize("change", [no_such_schema, no_such_spec])
def test_bad_values_in_iceberg_metadata_are_corrupt_data(wh, change):
    table = made(wh, "iceberg")
    forge(table, ".metadata.json", change)
    with pytest.raises(CorruptDataError, match=r"restore (it|the metadata), or rebuild the lake"):
        tier(table)


@pytest.mark.paimon
def test_bad_values_in_a_paimon_snapshot_are_corrupt_data(wh):
    table = made(wh, "paimon")
    forge(table, "/snapshot/snapshot-", lambda snapshot: snapshot.update({"properties": "none"}))
    with pytest.raises(CorruptDataError, match=r"restore (it|the metadata), or rebuild the lake"):
        tier(table)


@pytest.mark.paimon
def test_a_paimon_schema_whose_options_only_a_task_would_read(wh):
    table = wh.create_table("t", COLUMNS, partition_by=["day"], properties={"table.datalake.format": "paimon"})
    table.append([{"id": 1, "day": "a"}])
    tier(table)
    table.append([{"id": 2, "day": "a"}])
    forge(table, "/schema/schema-", lambda schema: schema["options"].update({"partition.legacy-name": "perhaps"}))
    with pytest.raises(CorruptDataError, match=r"perhaps.*restore the metadata"):
        tier(table)


def test_what_the_caller_got_wrong_is_no_damage(wh):
    table = made(wh, "iceberg")
    with pytest.raises(InvalidNameError):
        table.lake.metadata("nothing")
