"""Removing files of the lake table that nobody names: what lost rounds, crashed tasks and lost attempts left behind.

Only files with names that we give are looked at, only in the warehouse, and only those older than a day: a round that
takes longer than half a day refuses to commit (`iceberg_round.ROUND_MS_MAX`).
"""

from __future__ import annotations

import re

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from streamhouse_spark.lake.files import StorageFiles
from streamhouse_spark.lake.iceberg_maintain import files_of
from streamhouse_spark.lake.iceberg_place import IcebergPlace

CLEAN_GRACE_MS = 24 * 60 * 60 * 1000

_OUR_DATA = re.compile(r"\d{5}-\d{20}-\d{20}-[0-9a-f]{32}\.parquet\Z")
_OUR_MANIFEST = re.compile(r"(snap-\d+-)?[0-9a-f]{32}-\d+(-m\d+)?\.avro\Z")


def clean_files(place: IcebergPlace, *, grace_ms: int, dry_run: bool) -> list[str]:
    """Delete our files that no snapshot of the newest metadata reaches; returns their locations.

    The listing comes first: what it shows and the metadata read afterwards does not name was never committed, or was
    expired.
    """
    try:
        table = place.load()
    except NoSuchTableError:
        return []
    place.require_owner(table.metadata)
    left_over = _old_files(place, table, place.storage.now_ms() - grace_ms)
    if not left_over:
        return []
    newest = place.load()
    place.require_owner(newest.metadata)
    named = files_of(newest, newest.metadata.snapshots)
    doomed = sorted(location for location in left_over if location not in named)
    if not dry_run:
        for location in doomed:
            place.storage.delete(left_over[location])
    return doomed


def _old_files(place: IcebergPlace, table: Table, before_ms: int) -> dict[str, str]:
    """Location → key of files with names of ours that were stored before a time."""
    inside = StorageFiles(place.storage)
    data = table.properties.get("write.data.path", f"{table.location().rstrip('/')}/data")
    metadata = table.properties.get("write.metadata.path", f"{table.location().rstrip('/')}/metadata")
    found = {}
    for folder, ours in ((data, _OUR_DATA), (metadata, _OUR_MANIFEST)):
        if not inside.holds(f"{folder}/"):
            continue
        for info in place.storage.list(f"{inside.key_of(folder)}/"):
            if info.modified_ms <= before_ms and ours.match(info.key.rpartition("/")[2]):
                found[inside.location_of(info.key)] = info.key
    return found
