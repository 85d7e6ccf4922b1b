"""What a user would take instead, each through its own plain interface."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa


class AppendPeer(Protocol):
    """A table that grows by appends."""

    def append(self, rows: pa.Table) -> None: ...

    def read_all(self) -> pa.Table:
        """All rows, read by an object that knows nothing of the appends."""


class BareFiles:
    """The floor of a durable atomic append: write a file, fsync it, link it to its name, fsync the directory."""

    name = "bare write+fsync+link+fsync dir"

    def __init__(self, directory: Path, schema: pa.Schema, *, fsync: bool = True) -> None:
        self._directory = directory
        self._schema = schema
        self._fsync = fsync
        self._count = 0
        self._directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def append(self, rows: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self._schema) as writer:
            writer.write_table(rows)
        temporary = self._directory / ".temporary"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, sink.getvalue())
        if self._fsync:
            os.fsync(fd)
        os.close(fd)
        os.link(temporary, self.path(self._count))
        temporary.unlink()
        if self._fsync:
            os.fsync(self._directory_fd)
        self._count += 1

    def path(self, number: int) -> str:
        return f"{self._directory}/{number:08d}.arrow"

    def read_all(self) -> pa.Table:
        tables = [pa.ipc.open_file(pa.memory_map(self.path(i))).read_all() for i in range(self._count)]
        return pa.concat_tables(tables)


def write_bare_file(path: str, rows: pa.Table, codec: str | None = None) -> None:
    """Arrow's own IPC writer in record batches of 64k rows, then fsync."""
    with pa.OSFile(path, "wb") as file:
        with pa.ipc.new_file(file, rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(rows, max_chunksize=1 << 16)
        file.flush()
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


class Deltalake:
    name = "deltalake"

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        self._path = str(directory)
        self._table = DeltaTable.create(self._path, schema)

    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self._table, rows, mode="append")

    def read_all(self) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(self._path).to_pyarrow_dataset().to_table()


class Pyiceberg:
    """With a SQLite catalog, and without manifest merging, which is its faster setting for appends."""

    name = "pyiceberg"

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self._directory = directory
        catalog = self._catalog()
        catalog.create_namespace("bench")
        self._table = catalog.create_table("bench.rows", schema)

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("bench", uri=f"sqlite:///{self._directory}/catalog.db", warehouse=f"file://{self._directory}")

    def append(self, rows: pa.Table) -> None:
        self._table.append(rows)

    def read_all(self) -> pa.Table:
        return self._catalog().load_table("bench.rows").scan().to_arrow()


class Pypaimon:
    name = "pypaimon"

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        from pypaimon import CatalogFactory, Schema

        self._directory = directory
        catalog = CatalogFactory.create({"warehouse": str(directory)})
        catalog.create_database("bench", ignore_if_exists=True)
        catalog.create_table("bench.rows", Schema.from_pyarrow_schema(schema), ignore_if_exists=False)
        self._table = catalog.get_table("bench.rows")

    def append(self, rows: pa.Table) -> None:
        builder = self._table.new_batch_write_builder()
        write = builder.new_write()
        write.write_arrow(rows)
        commit = builder.new_commit()
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def read_all(self) -> pa.Table:
        from pypaimon import CatalogFactory

        builder = CatalogFactory.create({"warehouse": str(self._directory)}).get_table("bench.rows").new_read_builder()
        return builder.new_read().to_arrow(builder.new_scan().plan().splits())
