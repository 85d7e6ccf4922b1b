"""pypaimon alone, on a copy of a warehouse's Paimon tables: whatever the storage is, it writes files of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamhouse_spark.storage.base import Storage

LAKE = "lake/"


class Stock:
    """``folder`` holds what pypaimon sees; its snapshots get the storage's time."""

    def __init__(self, storage: Storage, folder: Path) -> None:
        from pypaimon import CatalogFactory

        self._storage = storage
        self._folder = folder
        self._catalog = CatalogFactory.create({"warehouse": str(folder / LAKE)})
        self._pulled: dict[Path, bytes] = {}
        """What is in the folder, as far as it is known."""

    def on(self, storage: Storage) -> Stock:
        """The same folder for another storage: most files of two attempts are the same."""
        self._storage = storage
        return self

    def make(
        self,
        name: str,
        schema: pa.Schema,
        *rounds: Sequence[Mapping[str, Any]],
        partition_by: Sequence[str] = (),
        primary_key: Sequence[str] = (),
        **options: str,
    ) -> None:
        """A table that nobody of us has written, a snapshot a round. Of names of options ``_`` stands for ``-``."""
        from pypaimon import Schema

        said = {name.replace("_", "-"): value for name, value in options.items()}
        self._catalog.create_database(name.partition(".")[0], ignore_if_exists=True)
        made = Schema.from_pyarrow_schema(
            schema, partition_keys=[*partition_by], primary_keys=[*primary_key], options=said
        )
        self._catalog.create_table(name, made, ignore_if_exists=False)
        self._push()
        for rows in rounds:
            self.append(name, rows)

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self._write(name, rows)

    def overwrite(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rows of a table in one snapshot."""
        self._write(name, rows, overwrites=True)

    def _write(self, name: str, rows: Iterable[Mapping[str, Any]], *, overwrites: bool = False) -> None:
        self.pull()
        table = self._catalog.get_table(name)
        if overwrites:
            table = table.copy({"dynamic-partition-overwrite": "false"})
        builder = table.new_batch_write_builder()
        builder = builder.overwrite() if overwrites else builder
        write, commit = builder.new_write(), builder.new_commit()
        schema = pa.schema([field.remove_metadata() for field in _arrow_schema(table)])
        write.write_arrow(pa.Table.from_pylist(list(rows), schema=schema))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()
        self._push()

    def alter(self, name: str, *changes: Any) -> None:
        self.pull()
        self._catalog.alter_table(name, [*changes])
        self._push()

    def read(self, name: str, **options: str) -> list[dict[str, Any]]:
        """The rows of the newest snapshot, or as the options say; their order says nothing."""
        self.pull()
        table = self._catalog.get_table(name)
        said = {name.replace("_", "-").replace("--", "."): value for name, value in options.items()}
        builder = (table.copy(said) if said else table).new_read_builder()
        found: list[dict[str, Any]] = builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist()
        return found

    def options(self, name: str) -> dict[str, str]:
        self.pull()
        found: dict[str, str] = self._catalog.get_table(name).table_schema.options
        return found

    def pull(self) -> None:
        kept = {self._folder / info.key: info.key for info in self._storage.list(LAKE)}
        for path in [path for path in (self._folder / LAKE).rglob("*") if path.is_file() and path not in kept]:
            path.unlink()
            self._pulled.pop(path, None)
        for path, key in kept.items():
            data = self._storage.read(key)
            if self._pulled.get(path) != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                self._pulled[path] = data

    def _push(self) -> None:
        there = {info.key for info in self._storage.list(LAKE)}
        for path in sorted(path for path in (self._folder / LAKE).rglob("*") if path.is_file()):
            key = str(path.relative_to(self._folder))
            data = path.read_bytes()
            self._pulled.pop(path, None)
            if key in there and self._storage.read(key) == data:
                continue
            if path.name.startswith("snapshot-"):
                data = json.dumps({**json.loads(data), "timeMillis": self._storage.now_ms()}).encode()
            self._storage.put(key, data)


def _arrow_schema(table: Any) -> pa.Schema:
    from pypaimon.schema.data_types import PyarrowFieldParser

    return PyarrowFieldParser.from_paimon_schema(table.fields)
