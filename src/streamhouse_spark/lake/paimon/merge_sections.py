"""Sections of a primary-key Paimon table: files that a read must merge, and files that it can read directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pypaimon.manifest.schema.manifest_entry import ManifestEntry

from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.lake.model.scan_files import ColumnStatistics, ScanFile
from streamhouse_spark.lake.model.values import LakeProjection, MergedFile, MergedFiles
from streamhouse_spark.lake.parquet.file_writer import is_keyed_file

OWN_PREFIX = "data-"


def is_own_keyed_name(name: str) -> bool:
    """Return whether a file of a primary-key table is the package's, by its name."""
    return is_keyed_file(name.removeprefix(OWN_PREFIX))


def is_raw(entry: ManifestEntry) -> bool:
    """Return whether the file has unique keys and no deletes, so that it can be read directly.

    Files that another engine wrote at level 0 may not have their number of deletes.
    """
    file = entry.file
    return file.delete_row_count == 0 and (file.level > 0 or is_own_keyed_name(file.file_name))


def group_files(entries: Sequence[ManifestEntry]) -> dict[tuple[Any, ...], list[ManifestEntry]]:
    """Return the files of each partition and bucket. Raises `LakeMismatchError` for a file without keys."""
    groups: dict[tuple[Any, ...], list[ManifestEntry]] = {}
    for entry in entries:
        if not entry.file.min_key.values:
            raise LakeMismatchError(
                f"lake file {entry.file.file_name} has no key range, which files of a primary-key table need; "
                "rewrite it with the engine that wrote it"
            )
        place = (tuple(entry.partition.values), entry.bucket, entry.total_buckets)
        groups.setdefault(place, []).append(entry)
    return groups


def group_sections(entries: Sequence[ManifestEntry]) -> list[list[ManifestEntry]]:
    """Group files of one partition and bucket into sections: files of different sections share no keys."""
    ordered = sorted(entries, key=lambda e: (tuple(e.file.min_key.values), tuple(e.file.max_key.values)))
    overlapping: list[list[ManifestEntry]] = []
    highest: tuple[Any, ...] = ()
    for entry in ordered:
        if not overlapping or tuple(entry.file.min_key.values) > highest:
            overlapping.append([])
            highest = ()
        overlapping[-1].append(entry)
        highest = max(highest, tuple(entry.file.max_key.values))
    return overlapping


def merge_scan_files(files: Sequence[ScanFile], by: LakeProjection) -> ScanFile:
    """Return files of one section as one that is merged on read."""
    first = files[0]
    return ScanFile(
        location=first.location,
        size_bytes=sum(file.size_bytes for file in files),
        num_rows=sum(file.num_rows for file in files),
        bucket=first.bucket,
        partition=first.partition,
        statistics=_common_statistics([file.statistics for file in files]),
        merge=MergedFiles(tuple(MergedFile(f.location, f.size_bytes, f.num_rows, f.field_names) for f in files), by),
        num_deleted=None,
    )


def _common_statistics(statistics: Sequence[Mapping[str, ColumnStatistics]]) -> Mapping[str, ColumnStatistics]:
    """Return the statistics of all files together: a file is skipped only with its whole section."""
    names = set.intersection(*(set(of_file) for of_file in statistics))
    return {name: _merge_statistics([of_file[name] for of_file in statistics]) for name in sorted(names)}


def _merge_statistics(parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
    counts = [part.null_count for part in parts if part.null_count is not None]
    values = [part.value_count for part in parts if part.value_count is not None]
    have_values = [part for part in parts if part.null_count is None or part.null_count != part.value_count]
    lows = [part.low for part in have_values]
    highs = [part.high for part in have_values]
    return ColumnStatistics(
        low=min(lows) if lows and None not in lows else None,
        high=max(highs) if highs and None not in highs else None,
        null_count=sum(counts) if len(counts) == len(parts) else None,
        value_count=sum(values) if len(values) == len(parts) else None,
    )
