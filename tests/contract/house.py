"""The means of the contract for one warehouse with one lake format: tables, rounds, time, and readers that know nothing
of us.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable

from faults.sim import SimClock
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.lake.iceberg.file_io import StorageFileIO
from streamhouse_spark.lake.tiering.job import RunTasks, TieringJob, TieringReport, run_tasks_locally

SHORT_TTL = "1s"


@dataclass(frozen=True)
class House:
    wh: Warehouse
    lake_format: str
    other_process: Callable[[], Warehouse]
    clock: SimClock | None = None
    """None where the store's own time passes."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Those of the store, if it is not the disk."""
    readers: Mapping[str, str] = field(default_factory=dict)
    """The same for pyiceberg's own readers, where they need others."""

    def table(self, name: str, columns: str, *, properties: Mapping[str, str] | None = None, **options: Any) -> Table:
        chosen = {"table.datalake.format": self.lake_format, **(properties or {})}
        return self.wh.create_table(name, columns, properties=chosen, **options)

    def job(self, table: Table, **options: Any) -> TieringJob:
        return TieringJob(table.log, table.open_lake(), world=table.world, **options)

    def tasks(self, table: Table) -> RunTasks:
        return run_tasks_locally(table.storage, table.settings, table.world)

    def tier(self, table: Table, **options: Any) -> TieringReport:
        table.refresh()
        return self.job(table, **options).run(self.tasks(table))

    def age(self) -> None:
        """All that is there becomes older than `SHORT_TTL`."""
        if self.clock is not None:
            self.clock.advance(5000)
        else:
            time.sleep(2.5)

    def foreign(self, table: Table) -> pa.Table:
        """The newest lake snapshot, as another library reads it, in the table's types."""
        found = self._by_pyiceberg(table) if self.lake_format == "iceberg" else self._by_pypaimon(table)
        return found.select(table.schema.names).cast(_nullable(table.schema))

    def _by_pyiceberg(self, table: Table) -> pa.Table:
        location = f"{self.wh.url}/{table.state.lake_location}"
        if location.startswith("hdfs://"):  # its own client of HDFS needs a JVM in the process
            hint = self.wh.storage.read(f"{table.state.lake_location}/metadata/version-hint.text").decode()
            newest = f"{location}/metadata/v{hint}.metadata.json"
            return _through(StorageFileIO(self.wh.storage), newest).scan().to_arrow()
        return StaticTable.from_metadata(location, {**self.settings, **self.readers}).scan().to_arrow()

    def _by_pypaimon(self, table: Table) -> pa.Table:
        from pypaimon import CatalogFactory

        if self.settings and not self.wh.url.startswith("s3://"):
            with TemporaryDirectory() as folder:
                return self._read_paimon(table, {"warehouse": self._copied_lake(table, folder)}, CatalogFactory)
        options = {"warehouse": f"{self.wh.url}/lake"}
        if self.settings:
            options |= {
                "fs.s3.endpoint": self.settings["s3.endpoint"],
                "fs.s3.accessKeyId": self.settings["s3.access-key-id"],
                "fs.s3.accessKeySecret": self.settings["s3.secret-access-key"],
                "fs.s3.region": self.settings["s3.region"],
            }
        return self._read_paimon(table, options, CatalogFactory)

    def _copied_lake(self, table: Table, folder: str) -> str:
        """Copy the lake table to a folder of this disk: pypaimon has no client of its own for this store."""
        for info in self.wh.storage.list(f"{table.state.lake_location}/"):
            target = Path(folder, info.key)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.wh.storage.read(info.key))
        return f"{folder}/lake"

    def _read_paimon(self, table: Table, options: Mapping[str, str], factory: Any) -> pa.Table:
        *_, database, name = table.state.lake_location.split("/")
        found = factory.create(dict(options)).get_table(f"{database.removesuffix('.db')}.{name}")
        builder = found.new_read_builder()
        return builder.new_read().to_arrow(builder.new_scan().plan().splits())

    def agree(self, table: Table, expected: Iterable[Mapping[str, Any]]) -> None:
        """The table, its lake view and another library all have exactly these rows."""
        wanted = in_order(expected)
        assert rows(table.to_arrow()) == wanted
        assert rows(table.lake.to_arrow()) == wanted
        assert rows(self.foreign(table)) == wanted


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return in_order(table.to_pylist())


def in_order(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return sorted(map(dict, found), key=repr)


def _through(files: StorageFileIO, location: str) -> StaticTable:
    metadata = FromInputFile.table_metadata(files.new_input(location))
    return StaticTable(("outside", "table"), metadata, location, files, NoopCatalog("outside"))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])
