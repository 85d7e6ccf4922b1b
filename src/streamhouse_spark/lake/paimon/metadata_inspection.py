"""Metadata tables of a Paimon table, and damage of its metadata that reads of the latest snapshot do not detect."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.system import system_table_loader

from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.lake.metadata_tables import convert_for_spark
from streamhouse_spark.lake.paimon.expiry import next_consumer_snapshots
from streamhouse_spark.lake.paimon.file_io import StorageFileIO, translate_metadata_errors
from streamhouse_spark.lake.paimon.manifests import MetadataReader
from streamhouse_spark.lake.paimon.snapshots import commit_of
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.types import COMMIT_USER

REWRITTEN = "reads continue without it, and the next round rewrites it"


def metadata_table(binding: PaimonTableBinding, table: PaimonTable, name: str) -> pa.Table:
    """Return the metadata table with this name, with types that Spark supports."""
    with translate_metadata_errors(table.location):
        builder = system_table_loader.load(name, table.store(StorageFileIO(binding.files))).new_read_builder()
        return convert_for_spark(builder.new_read().to_arrow(builder.new_scan().plan().splits()))


def find_metadata_problems(binding: PaimonTableBinding) -> Iterator[str]:
    """Describe the problems of `LakeTable.metadata_problems`, except those of snapshots that expire concurrently."""
    table = binding.find()
    if table is None or table.snapshot is None:
        return
    yield from _find_hint_problems(binding)
    ids = binding.snapshots.ids()
    tag = binding.snapshots.tagged_newest()
    last = max([*ids, table.snapshot.id, *([] if tag is None else [tag.id])])
    absent = sorted(set(range(min(ids, default=last), last + 1)).difference(ids))
    yield from (f"lake file {binding.snapshots.key_of(number)} is missing; restore it" for number in absent)
    for number in ids:
        yield from _find_snapshot_problems(binding, table, number)
    tags = binding.snapshots.tags()
    if commit_of(table.snapshot) is not None and COMMIT_USER not in tags:
        yield f"lake file {binding.snapshots.tag_key(COMMIT_USER)} is missing; {REWRITTEN}"
    for name in tags:
        try:
            yield from _find_file_problems(binding, table, binding.snapshots.snapshot_of_tag(name))
        except StreamhouseError as error:
            yield str(error)


def _find_hint_problems(binding: PaimonTableBinding) -> Iterator[str]:
    try:
        if not binding.storage.read(binding.snapshots.hint_key).strip().isdigit():
            yield f"lake file {binding.snapshots.hint_key} contains no snapshot; {REWRITTEN}"
        binding.storage.size_bytes(binding.snapshots.consumer_key)
        next_consumer_snapshots(binding)
    except StreamhouseError as error:
        yield f"{error}; {REWRITTEN}"


def _find_snapshot_problems(binding: PaimonTableBinding, table: PaimonTable, number: int) -> Iterator[str]:
    try:
        yield from _find_file_problems(binding, table, binding.snapshots.find(number))
    except StreamhouseError as error:
        if number in binding.snapshots.ids():
            yield str(error)


def _find_file_problems(binding: PaimonTableBinding, table: PaimonTable, snapshot: Snapshot | None) -> Iterator[str]:
    """Read all manifests of a snapshot. Raises the errors of a read."""
    if snapshot is not None:
        MetadataReader(table, StorageFileIO(binding.files)).live_entries(snapshot)
    yield from ()
