"""The data files of a snapshot, in an order by which their rows can be named, and whether a later one has them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent

from streamhouse_spark.lake.iceberg.file_io import expect, lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.scan import require_snapshot
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding

if TYPE_CHECKING:
    from collections.abc import Sequence


def list_data_files(place: IcebergTableBinding, snapshot_id: int) -> Sequence[str]:
    """Return the locations of all data files of a snapshot, the same each time. Raises `SnapshotExpiredError`."""
    table = place.require()
    snapshot = require_snapshot(table.metadata, snapshot_id)
    with lake_metadata(table.location()):
        expect(table.io, [(snapshot.manifest_list, 0)])
        manifests = [m for m in manifests_of(table.io, snapshot) if m.content == ManifestContent.DATA]
        expect(table.io, ((m.manifest_path, m.manifest_length) for m in manifests))
        return sorted(e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(table.io))
