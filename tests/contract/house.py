"""The means of the contract for one warehouse with one lake format: tables, rounds, time, and readers that know nothing
of us.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from faults.sim import SimClock
from streamhouse_spark.lake.tiering.job import RunTasks, TieringJob, TieringReport, run_tasks_locally
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

SHORT_TTL = "1s"


@dataclass(frozen=True)
class House:
    wh: Warehouse
    lake_format: str
    other_process: Callable[[], Warehouse]
    clock: SimClock | None = None
    """None where the store's own time passes."""
    s3: Mapping[str, str] = field(default_factory=dict)

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
        return StaticTable.from_metadata(location, dict(self.s3)).scan().to_arrow()

    def _by_pypaimon(self, table: Table) -> pa.Table:
        from pypaimon import CatalogFactory

        options = {"warehouse": f"{self.wh.url}/lake"}
        if self.s3:
            options |= {
                "fs.s3.endpoint": self.s3["s3.endpoint"],
                "fs.s3.accessKeyId": self.s3["s3.access-key-id"],
                "fs.s3.accessKeySecret": self.s3["s3.secret-access-key"],
                "fs.s3.region": self.s3["s3.region"],
            }
        *_, database, name = table.state.lake_location.split("/")
        found = CatalogFactory.create(options).get_table(f"{database.removesuffix('.db')}.{name}")
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


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])
