"""Metadata tables of a Paimon table, under pypaimon's names, with types that Spark supports.

Damaged and missing metadata of a Paimon table that reads of its latest snapshot do not notice.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.system import system_table_loader

from streamhouse_spark.errors import InvalidNameError, StreamhouseError
from streamhouse_spark.lake.paimon.expiry import next_consumer_snapshots
from streamhouse_spark.lake.paimon.file_io import PaimonFiles, paimon_metadata
from streamhouse_spark.lake.paimon.manifests import MetadataReader
from streamhouse_spark.lake.paimon.snapshots import commit_of
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.types import COMMIT_USER
from streamhouse_spark.schema.table_schema import canonical_type

METADATA_TABLES: Final = (
    "buckets",
    "consumers",
    "files",
    "manifests",
    "options",
    "partitions",
    "schemas",
    "snapshots",
    "tags",
)


def metadata_table(place: PaimonTableBinding, table: PaimonTable, name: str) -> pa.Table:
    """Return a metadata table. Raises `InvalidNameError` with the existing names."""
    if name not in METADATA_TABLES:
        near = difflib.get_close_matches(name, METADATA_TABLES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidNameError(
            f"no metadata table '{name}' on a Paimon table; {hint}There are {', '.join(METADATA_TABLES)}"
        )
    with paimon_metadata(table.location):
        builder = system_table_loader.load(name, table.store(PaimonFiles(place.files))).new_read_builder()
        return _convert_for_spark(builder.new_read().to_arrow(builder.new_scan().plan().splits()))


def _convert_for_spark(table: pa.Table) -> pa.Table:
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        spark_type = canonical_type(field.type, column=field.name)
        if pa.types.is_timestamp(spark_type):
            spark_type = pa.timestamp("us", tz="UTC")  # Paimon returns UTC without a time zone
        columns.append(column if field.type.equals(spark_type) else column.cast(spark_type))
        fields.append(pa.field(field.name, spark_type, nullable=field.nullable))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


REWRITTEN = "reads go on without it, and the next round writes it again"


def find_metadata_problems(place: PaimonTableBinding) -> Iterator[str]:
    """Describe problems as `LakeTable.metadata_problems` does. Ignores snapshots that another engine expires
    concurrently.
    """
    table = place.find()
    if table is None or table.snapshot is None:
        return
    yield from _find_hint_problems(place)
    ids = place.snapshots.ids()
    tag = place.snapshots.tagged_newest()
    last = max([*ids, table.snapshot.id, *([] if tag is None else [tag.id])])
    absent = sorted(set(range(min(ids, default=last), last + 1)).difference(ids))
    yield from (f"lake file {place.snapshots.key_of(number)} is missing; restore it" for number in absent)
    for number in ids:
        yield from _find_snapshot_problems(place, table, number)
    tags = place.snapshots.tags()
    if commit_of(table.snapshot) is not None and COMMIT_USER not in tags:
        yield f"lake file {place.snapshots.tag_key(COMMIT_USER)} is missing; {REWRITTEN}"
    for name in tags:
        try:
            yield from _find_file_problems(place, table, place.snapshots.snapshot_of_tag(name))
        except StreamhouseError as error:
            yield str(error)


def _find_hint_problems(place: PaimonTableBinding) -> Iterator[str]:
    try:
        if not place.storage.read(place.snapshots.hint_key).strip().isdigit():
            yield f"lake file {place.snapshots.hint_key} names no snapshot; {REWRITTEN}"
        place.storage.size_bytes(place.snapshots.consumer_key)
        next_consumer_snapshots(place)
    except StreamhouseError as error:
        yield f"{error}; {REWRITTEN}"


def _find_snapshot_problems(place: PaimonTableBinding, table: PaimonTable, number: int) -> Iterator[str]:
    try:
        yield from _find_file_problems(place, table, place.snapshots.find(number))
    except StreamhouseError as error:
        if number in place.snapshots.ids():
            yield str(error)


def _find_file_problems(place: PaimonTableBinding, table: PaimonTable, snapshot: Snapshot | None) -> Iterator[str]:
    """Read all manifests of a snapshot. Raises the errors of a read."""
    if snapshot is not None:
        MetadataReader(table, PaimonFiles(place.files)).live_entries(snapshot)
    yield from ()
