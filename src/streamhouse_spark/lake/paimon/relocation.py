"""Relocation of a Paimon table to the location where it was opened.

Its metadata references files without paths, except those of partitions whose values exceed a folder name. Manifests
with such a path are rewritten under new names, as are the lists that reference them. Then each changed snapshot, tag
and schema file is replaced. **Commit point** of each file: its replacement. It depends only on the file's content, so
relocation can be interrupted and repeated, and readers accept both replaced and old snapshots.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from streamhouse_spark.core.warehouse_layout import canonical_location, find_recorded_root, is_same_place
from streamhouse_spark.errors import CorruptDataError, ObjectNotFoundError, SnapshotExpiredError
from streamhouse_spark.lake.avro import encode_avro, read_avro
from streamhouse_spark.lake.paimon.expiry import ReachableFiles, list_history, list_tag_and_branch_snapshots
from streamhouse_spark.lake.paimon.file_io import MANIFEST_FOLDER
from streamhouse_spark.lake.paimon.manifests import external_location
from streamhouse_spark.lake.paimon.table_binding import PaimonTableBinding

_LISTS: Final = ("baseManifestList", "deltaManifestList", "changelogManifestList")
_FOLDERS: Final = ("snapshot/snapshot-", "tag/tag-", "schema/schema-")


class PaimonRelocation:
    """The `LakeRelocation` of Paimon."""

    def __init__(self, binding: PaimonTableBinding) -> None:
        self._binding = binding
        self.num_written = 0
        self._manifests: dict[str, tuple[str, int] | None] = {}

    def recorded_root(self) -> str | None:
        """Return the warehouse root in the external path of a data file, if it differs from the opened root; else None.

        Only external paths are absolute: without them, the metadata contains no location.
        """
        for name in self._binding.storage.list_names(f"{self._binding.spec.location}/{MANIFEST_FOLDER}/"):
            if "list" in name or not name.startswith("manifest-"):
                continue
            for record in self._read(name).records:
                root = self._root_of(record)
                if root is not None:
                    return root
        return None

    def needed_files(self) -> set[str]:
        table = self._binding.find()
        if table is None or table.snapshot is None:
            return set()
        locations = ReachableFiles(self._binding, table).needed_files(
            [*list_history(self._binding, table.snapshot), *list_tag_and_branch_snapshots(self._binding)]
        )
        return {self._binding.files.key_of(location) for location in locations if self._binding.files.holds(location)}

    def relocate(self, new_uuid: str | None) -> None:
        table = self._binding.find()
        if table is None or table.owner not in (self._binding.spec.table_uuid, new_uuid):
            return
        # The latest schema has the owner, so it is replaced last: a repeated run continues after a crash.
        for key in self._files():
            data = self._binding.storage.read(key)
            text = self._relocate_snapshot(key, data.decode())
            if new_uuid is not None:
                text = text.replace(self._binding.spec.table_uuid, new_uuid)
            if text.encode() != data:
                self._binding.storage.put(key, text.encode())
                self.num_written += 1

    def _files(self) -> Iterator[str]:
        base = f"{self._binding.spec.location}/"
        roots = [base, *(f"{base}branch/{name}/" for name in self._binding.storage.list_names(f"{base}branch/"))]
        for root in reversed(roots):
            for folder in _FOLDERS:
                parent, _, prefix = folder.rpartition("/")
                names = self._binding.storage.list_names(f"{root}{parent}/")
                yield from (f"{root}{parent}/{name}" for name in sorted(names, key=_number) if name.startswith(prefix))

    def _relocate_snapshot(self, key: str, text: str) -> str:
        """Return a snapshot or tag whose manifest lists contain the current location of every file."""
        if "/schema/" in key:
            return text
        try:
            document = json.loads(text)
        except ValueError as error:
            raise CorruptDataError(f"cannot read lake file {key} ({error}); restore it") from error
        changed = dict(document)
        for name in _LISTS:
            if document.get(name) and (new := self._list(document[name])) is not None:
                changed[name] = new[0]
                if f"{name}Size" in document:
                    changed[f"{name}Size"] = new[1]
        return text if changed == document else json.dumps(changed, indent=2)

    def _list(self, name: str) -> tuple[str, int] | None:
        """Return the new manifest list and its size, or None if the old one contains no path."""
        file = self._read(name)
        records = []
        for record in file.records:
            new = self._manifest(record["_FILE_NAME"])
            records.append(record if new is None else {**record, "_FILE_NAME": new[0], "_FILE_SIZE": new[1]})
        if records == file.records:
            return None
        return self._write("manifest-list", encode_avro(replace(file, records=records)))

    def _manifest(self, name: str) -> tuple[str, int] | None:
        if name not in self._manifests:
            file = self._read(name)
            records = [self._entry(record) for record in file.records]
            is_same = records == file.records
            self._manifests[name] = (
                None if is_same else self._write("manifest", encode_avro(replace(file, records=records)))
            )
        return self._manifests[name]

    def _entry(self, record: dict[str, Any]) -> dict[str, Any]:
        if self._root_of(record) is None:
            return record
        branch, path = record["_FILE"]["_EXTERNAL_PATH"]
        moved = external_location(self._binding.files, self._binding.location, path)
        return {**record, "_FILE": {**record["_FILE"], "_EXTERNAL_PATH": (branch, moved)}}

    def _root_of(self, record: dict[str, Any]) -> str | None:
        """Return the warehouse root in the file's external path, or None if it is the opened root."""
        _, path = record["_FILE"].get("_EXTERNAL_PATH") or (0, None)
        if not path:
            return None
        location = self._binding.spec.location
        table, below, _ = canonical_location(path).partition(f"/{location}/")
        root = find_recorded_root(f"{table}/{location}", location) if below else None
        return None if root is None or is_same_place(root, self._binding.storage.url) else root

    def _read(self, name: str) -> Any:
        key = f"{self._binding.spec.location}/{MANIFEST_FOLDER}/{name}"
        try:
            return read_avro(self._binding.storage.read(key), key)
        except ObjectNotFoundError as error:
            raise SnapshotExpiredError(f"lake file {key} is missing, because it expired concurrently; retry") from error

    def _write(self, kind: str, data: bytes) -> tuple[str, int]:
        name = f"{kind}-{self._binding.world.ids.new_uuid()}"
        with self._binding.storage.create(f"{self._binding.spec.location}/{MANIFEST_FOLDER}/{name}") as sink:
            sink.write(data)
        self.num_written += 1
        return name, len(data)


def _number(name: str) -> tuple[int, str]:
    number = name.rpartition("-")[2]
    return (int(number) if number.isdigit() else 0, name)
