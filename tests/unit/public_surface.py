"""The functions that users can call, found by looking at the package, and one call of each that is right."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from faults.sim import SimClock, sim_world
from kit.tables import tier
from streamhouse_spark import BucketOffsets, OffsetRange, Table, Transaction, Warehouse, export_metrics, relocate
from streamhouse_spark.errors import LakeMismatchError, MissingExtraError, StreamhouseError
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.aio import AsyncTable
from streamhouse_spark.table.lake import LakeView
from streamhouse_spark.table.system_views import Inspect

INJECTED = {"self", "world", "storage"}
"""Parameters that take parts of the package, which tests put in place of the real ones."""
INTERNAL = {
    "Table.require_not_dropped": "takes a state",
    "Table.refresh_at_most": "takes a number of records",
    "Table.segment_options": "takes a state",
}
"""Public by their name alone: other modules of the package call them, and the type checker knows what they give."""
HERE = object()
"""Stands for the warehouse of the world."""
ROWS = [{"id": 1, "name": "a", "day": 1}, {"id": 2, "name": None, "day": 2}]
DDL = "id BIGINT NOT NULL, name STRING, day INT"


class World:
    """A warehouse in memory with a tiered table of each kind, which can be brought back as it was."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.storage = MemoryStorage(sim_world(0, self.clock))
        self._seeds = iter(range(1, 1_000_000))
        wh = self.opened()
        wh.create_table("log", DDL, partition_by=["day"], buckets=2)
        wh.create_table("keyed", DDL, primary_key=["id"], buckets=2)
        wh.create_table("hot", DDL, properties={"table.datalake.enabled": "false"})
        wh.create_table("dropped", "id BIGINT")
        wh.create_database("empty")
        wh.table("log").append(ROWS)
        wh.table("log").create_tag("kept")
        wh.table("log").create_branch("audit")
        wh.table("hot").append(ROWS)
        wh.table("keyed").upsert(ROWS)
        for name in ("log", "keyed"):
            tier(wh.table(name))
        wh.table("log").append(ROWS)
        wh.table("keyed").upsert(ROWS[:1])
        wh.table("keyed").delete([2])
        wh.drop_table("dropped")
        self._kept = dict(self.storage._objects)
        self.restore()

    def opened(self) -> Warehouse:
        return Warehouse("wh", storage=self.storage, world=sim_world(next(self._seeds), self.clock))

    def is_changed(self) -> bool:
        return {key: data for key, (data, _) in self.storage._objects.items()} != self._bytes

    def restore(self) -> None:
        self.storage._objects = dict(self._kept)
        self._bytes = {key: data for key, (data, _) in self._kept.items()}
        self.wh = self.opened()
        self.log = self.wh.table("log")
        self.keyed = self.wh.table("keyed")
        self.hot = self.wh.table("hot")


@dataclass(frozen=True)
class Call:
    """A call that is right: its arguments by the names of the parameters, and on what it is made."""

    on: Callable[[World], Any]
    arguments: dict[str, Any]
    star: str | None = None
    """The parameter that takes any number of positional arguments."""
    method: str | None = None
    refused: type[StreamhouseError] | None = None
    """What even this call ends with, where a right one would take more than this world has."""

    def make(self, world: World, **wrong: Any) -> Any:
        given = {**self.arguments, **wrong}
        call = self.on(world) if self.method is None else getattr(self.on(world), self.method)
        return call(given.pop(self.star), **given) if self.star is not None else call(**given)


def _wh(world: World) -> Any:
    return world.wh


def _log(world: World) -> Any:
    return world.log


def _hot(world: World) -> Any:
    return world.hot


def _keyed(world: World) -> Any:
    return world.keyed


def _lake(world: World) -> Any:
    return world.log.lake


def _awaited(table: str, name: str) -> Callable[[World], Any]:
    """Return the calls of a method for asyncio, until its result or its first batch."""

    def on(world: World) -> Any:
        async def wait_for(given: dict[str, Any]) -> Any:
            answer = getattr(getattr(world, table).aio, name)(**given)
            return await (anext(answer, None) if isinstance(answer, AsyncIterator) else answer)

        return lambda **given: asyncio.run(wait_for(given))

    return on


TRANSACTION = Transaction("app", 1)
LOOKUP = {"columns": ["name"], "max_staleness_ms": 0, "at_least": {0: OffsetRange(0, 1)}}
READ = {"columns": ["id"], "filter": [("id", ">", 0)]}

MISSING_DATAFUSION = None if find_spec("datafusion") else MissingExtraError
CALLS: dict[str, Call | list[Call]] = {
    "Warehouse": Call(
        lambda world: lambda **given: Warehouse(**given, storage=world.storage), {"location": "wh", "settings": {}}
    ),
    "Warehouse.create_database": Call(_wh, {"name": "more", "if_not_exists": True, "comment": "why"}),
    "Warehouse.databases": Call(_wh, {}),
    "Warehouse.database_exists": Call(_wh, {"name": "empty"}),
    "Warehouse.database_comment": Call(_wh, {"name": "empty"}),
    "Warehouse.comment_database": Call(_wh, {"name": "empty", "comment": "why"}),
    "Warehouse.drop_database": Call(_wh, {"name": "empty", "cascade": False, "if_exists": False}),
    "Warehouse.tables": Call(_wh, {"database": "default"}),
    "Warehouse.exists": Call(_wh, {"name": "log"}),
    "Warehouse.create_table": Call(
        _wh,
        {
            "name": "more",
            "schema": DDL,
            "primary_key": ["id", "day"],
            "partition_by": ["day"],
            "buckets": 2,
            "properties": {"comment": "why"},
            "defaults": {"name": "x"},
            "if_not_exists": False,
        },
    ),
    "Warehouse.adopt_table": Call(
        _wh,
        {"name": "adopted", "lake": "default.log", "primary_key": [], "properties": {}, "dry_run": True},
        refused=LakeMismatchError,  # it is a lake of ours
    ),
    "Warehouse.table": Call(_wh, {"name": "log"}),
    "Warehouse.find_table": Call(_wh, {"name": "log"}),
    "Warehouse.costs": Call(_wh, {"prices": {"gets_usd_per_1000": 0.1}, "database": "default"}),
    "Warehouse.sql": Call(_wh, {"query": "SELECT * FROM log"}),
    "Warehouse.view": Call(_wh, {"name": "log$changelog"}),
    "Warehouse.drop_table": Call(_wh, {"name": "log", "if_exists": False}),
    "Warehouse.dropped_tables": Call(_wh, {}),
    "Warehouse.clone_table": Call(_wh, {"source": "log", "target": "cloned", "version": "kept"}),
    "Warehouse.undrop_table": Call(_wh, {"name": "dropped", "uuid": None, "to": "back"}),
    "Warehouse.rename_table": Call(_wh, {"old": "log", "new": "other"}),
    "Warehouse.clean_dropped": Call(_wh, {"grace_ms": 3_600_000, "dry_run": True}),
    "Table.refresh": Call(_log, {}),
    "Table.append": Call(_log, {"rows": ROWS, "transaction": TRANSACTION}),
    "Table.writer": Call(
        lambda world: lambda **given: world.log.writer(**given).close(),
        {
            "flush_ms": 5,
            "flush_bytes": 1 << 20,
            "producer_id": "me",
            "in_flight_bytes_max": 1 << 20,
            "delivery_timeout_ms": 1000,
        },
    ),
    "Table.upsert": Call(_keyed, {"rows": [{"id": 1, "name": "b"}], "columns": ["name"], "transaction": TRANSACTION}),
    "Table.delete": [
        Call(_keyed, {"keys": [1], "transaction": TRANSACTION}),
        Call(_hot, {"where": [("id", "=", 1)], "transaction": TRANSACTION}),
    ],
    "Table.overwrite": [
        Call(_log, {"rows": ROWS[:1], "where": [("day", "=", 1)], "transaction": TRANSACTION}),
        Call(_keyed, {"rows": ROWS}),
    ],
    "Table.overwrite_partitions": Call(_log, {"rows": ROWS, "transaction": TRANSACTION}),
    "Table.truncate": Call(_log, {}),
    "Table.drop_partition": Call(_log, {"partition": {"day": 1}, "dry_run": True}),
    "Table.forget_transactions": Call(_log, {"app_ids": "app"}, star="app_ids"),
    "Table.move_consumer": Call(_log, {"consumer_id": "me", "offsets": {0: 0}}),
    "Table.consumer_position": Call(_log, {"consumer_id": "me"}),
    "Table.to_arrow": Call(_log, {**READ, "as_of_timestamp_ms": None}),
    "Table.scan": Call(
        lambda world: lambda **given: world.log.scan(**given).to_arrow(),
        {**READ, "version": None, "timestamp_ms": None, "limit": 5, "partitions": {"day": 1}},
    ),
    "Table.head": Call(_log, {"rows": 5}),
    "Table.count": Call(_log, {"filter": READ["filter"]}),
    "Table.to_pandas": Call(_log, READ),
    "Table.to_polars": Call(_log, READ),
    "Table.to_arrow_dataset": Call(_log, {}),
    "Table.to_datafusion": Call(_log, {"name": "rows", "context": None}, refused=MISSING_DATAFUSION),
    "Table.to_duckdb": Call(_log, {"name": "rows", "connection": None}),
    "Table.lookup": Call(_keyed, {"keys": [1, 2], **LOOKUP, "insert_if_absent": False}),
    "Table.lookup_one": Call(_keyed, {"key": 1, **LOOKUP}),
    "Table.prefix_lookup": Call(_keyed, {"prefix": [1], **LOOKUP}),
    "Table.tail": Call(
        lambda world: lambda **given: next(world.log.tail(**given), None),
        {
            "start": "earliest",
            "columns": ["id"],
            "include_metadata": True,
            "poll_ms": 1,
            "stop": threading.Event(),
            "until_ms": 0,
            "filter": "id > 0",
        },
    ),
    "Table.incremental_append_scan": Call(
        lambda world: lambda **given: world.log.incremental_append_scan(**given).to_arrow(),
        {"from_exclusive": 1, "to_inclusive": "kept"},
    ),
    "Table.changes": Call(
        lambda world: lambda **given: world.keyed.changes(**given).to_arrow(), {"from_exclusive": 1, "to_inclusive": 2}
    ),
    "Table.follow": Call(
        lambda world: lambda name, **given: next(world.log.follow(name, **given), None),
        {
            "name": "me",
            "start": "earliest",
            **READ,
            "include_metadata": True,
            "skip_change_commits": True,
            "sink": None,
            "poll_ms": 1,
            "stop": threading.Event(),
            "until_ms": 0,
            "available_now": True,
        },
    ),
    "AsyncTable.append": Call(_awaited("log", "append"), {"rows": ROWS, "transaction": TRANSACTION}),
    "AsyncTable.upsert": Call(
        _awaited("keyed", "upsert"), {"rows": [{"id": 1, "name": "b"}], "columns": ["name"], "transaction": TRANSACTION}
    ),
    "AsyncTable.delete": [
        Call(_awaited("keyed", "delete"), {"keys": [1], "transaction": TRANSACTION}),
        Call(_awaited("hot", "delete"), {"where": [("id", "=", 1)], "transaction": TRANSACTION}),
    ],
    "AsyncTable.to_arrow": Call(_awaited("log", "to_arrow"), {**READ, "as_of_timestamp_ms": None}),
    "AsyncTable.lookup": Call(_awaited("keyed", "lookup"), {"keys": [1, 2], **LOOKUP, "insert_if_absent": False}),
    "AsyncTable.lookup_one": Call(_awaited("keyed", "lookup_one"), {"key": 1, **LOOKUP}),
    "AsyncTable.tail": Call(
        _awaited("log", "tail"), {"start": "earliest", **READ, "include_metadata": True, "available_now": True}
    ),
    "AsyncTable.follow": Call(
        _awaited("log", "follow"),
        {
            "name": "me",
            "start": "earliest",
            **READ,
            "include_metadata": True,
            "skip_change_commits": True,
            "sink": None,
            "available_now": True,
        },
    ),
    "Table.open_lake": [Call(_log, {})],  # an older state is for the package alone

    "Table.rollback_to_version": Call(_log, {"version": 1, "dry_run": True}),
    "Table.create_tag": Call(_log, {"name": "a", "version": "kept", "retain_ms": 1000}),
    "Table.drop_tag": Call(_log, {"name": "kept"}),
    "Table.tags": Call(_log, {}),
    "Table.create_branch": Call(_log, {"name": "a"}),
    "Table.branch": Call(_log, {"name": "audit"}),
    "Table.branches": Call(_log, {}),
    "Table.fast_forward": Call(_log, {"name": "audit", "to": "main"}),
    "Table.drop_branch": Call(_log, {"name": "audit"}),
    "Table.read_version": Call(_log, {"version": 1, "columns": None, "filter": None}),
    "Table.rollback_to_timestamp": Call(_log, {"timestamp_ms": 1 << 42, "dry_run": True}),
    "Table.retier": Call(_log, {"allow_loss": False, "dry_run": True}),
    "Table.maintain": Call(_log, {"grace_ms": 3_600_000, "dry_run": True}),
    "Table.costs": Call(_log, {"prices": {"gets_usd_per_1000": 0.1}}),
    "Table.alter": Call(
        _log,
        {
            "add_columns": "more INT",
            "comments": {"id": "why"},
            "set_properties": {"comment": "why"},
            "unset_properties": ["table.log.ttl"],
            "rename_columns": {"name": "title"},
            "drop_columns": [],
            "widen_columns": {},
            "defaults": {"title": "x"},
            "drop_not_null": [],
            "move_columns": {"title": "id"},
        },
    ),
    "Table.add_columns": Call(_log, {"columns": "more INT", "defaults": {"more": 1}}),
    "Table.set_default": Call(_log, {"column": "name", "value": "x"}),
    "Table.drop_default": Call(_log, {"columns": "name"}, star="columns"),
    "Table.rename_column": Call(_log, {"name": "name", "new_name": "title"}),
    "Table.drop_column": Call(_log, {"names": "name"}, star="names"),
    "Table.widen_column": Call(_keyed, {"name": "day", "new_type": "bigint"}),
    "Table.set_partitioning": Call(_log, {"partition_by": ["truncate(2, name)", "day"]}),
    "Table.alter_properties": Call(_log, {"changed": {"comment": "why"}, "removed": ["table.log.ttl"]}),
    "LakeView.scan": Call(
        lambda world: lambda **given: world.log.lake.scan(**given).to_arrow(),
        {**READ, "version": None, "timestamp_ms": None, "limit": 5},
    ),
    "LakeView.head": Call(_lake, {"rows": 5}),
    "LakeView.count": Call(_lake, {"filter": READ["filter"]}),
    "LakeView.to_pandas": Call(_lake, READ),
    "LakeView.to_polars": Call(_lake, READ),
    "LakeView.to_arrow_dataset": Call(_lake, {}),
    "LakeView.to_datafusion": Call(_lake, {"name": "rows", "context": None}, refused=MISSING_DATAFUSION),
    "LakeView.to_duckdb": Call(_lake, {"name": "rows", "connection": None}),
    "LakeView.newest": Call(_lake, {}),
    "LakeView.to_arrow": [
        Call(_lake, {**READ, "as_of_snapshot": None, "as_of_timestamp_ms": None}),
        Call(lambda world: world.keyed.lake, {**READ, "as_of_snapshot": None, "as_of_timestamp_ms": None}),
    ],
    "LakeView.compact": Call(_lake, {"purge": True, "dry_run": True}),
    "LakeView.expire_snapshots": Call(_lake, {"retain_last": 1, "older_than_ms": 0, "dry_run": True}),
    "LakeView.remove_orphan_files": Call(_lake, {"grace_ms": 3_600_000, "dry_run": True}),
    "LakeView.optimize": Call(_lake, {"order_by": "id", "filter": [("id", ">", 1)], "dry_run": True}),
    "LakeView.rewrite_manifests": Call(_lake, {"dry_run": True}),
    "LakeView.metadata_table_names": Call(_lake, {}),
    "LakeView.metadata": Call(_lake, {"name": "snapshots"}),
    "LakeView.snapshots": Call(_lake, {}),
    "LakeView.files": Call(_lake, {}),
    "Inspect.read": Call(lambda world: world.log.inspect, {"name": "buckets"}),
    **{
        f"Inspect.{name}": Call(lambda world: world.log.inspect, {})
        for name in ("buckets", "segments", "commits", "partitions", "refs", "schemas", "options", "tiering")
    },
    "Inspect.lineage": Call(lambda world: world.keyed.inspect, {}),
    "Inspect.history": Call(lambda world: world.log.inspect, {"limit": 5}),
    "relocate": Call(
        lambda world: lambda **given: relocate(
            **{name: world.wh if value is HERE else value for name, value in given.items()}
        ),
        {"warehouse": HERE, "settings": {}, "copy": False, "dry_run": True, "progress": None},
    ),
    "export_metrics": Call(lambda _: export_metrics, {"meter_provider": None}),
    "Transaction": Call(
        lambda _: Transaction, {"app_id": "app", "version": 1, "owner": "me", "batch": None, "follows": None}
    ),
    "OffsetRange": Call(lambda _: OffsetRange, {"start": 0, "end": 1}),
    "BucketOffsets": Call(lambda _: BucketOffsets, {"ranges": {0: OffsetRange(0, 1)}}),
}  # fmt: skip
VIEWS = {
    "log$changelog": READ,
    "log$buckets": {"columns": ["bucket"], "filter": [("bucket", "=", 0)]},
    "log$partitions": {"columns": ["day"], "filter": [("day", "=", 1)]},
    "log$lake": READ,
    "log$lake$snapshots": {"columns": ["snapshot_id"], "filter": [("snapshot_id", ">", 0)]},
    "keyed$binlog": {"columns": ["_log_offset"], "filter": [("_log_offset", ">", 0)]},
}
CALLS |= {f"{name}.to_arrow": Call(lambda world, name=name: world.wh.view(name), read) for name, read in VIEWS.items()}


FUNCTIONS = {
    "Table.tail",
    "Table.follow",
    "Table.writer",
    "Table.scan",
    "Table.incremental_append_scan",
    "Table.changes",
    "LakeView.scan",
}
"""Methods whose result has to be read, closed or followed to find what is wrong."""


def calls() -> Iterator[tuple[str, Call]]:
    """All of `CALLS`, each with the method that it calls."""
    for name, found in CALLS.items():
        for call in found if isinstance(found, list) else [found]:
            is_function = "." not in name or name.startswith("AsyncTable.") or name in FUNCTIONS
            yield name, replace(call, method=None if is_function else name.rpartition(".")[2])


def surface() -> Iterator[tuple[str, Any]]:
    """Each public method, class and function with the name that it has in `CALLS`."""
    for kind in (Warehouse, Table, AsyncTable, LakeView, Inspect):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", method
    for kind in (Warehouse, Transaction, OffsetRange, BucketOffsets):
        yield kind.__name__, kind
    yield "relocate", relocate
    yield "export_metrics", export_metrics


def parameters_of(what: Any) -> dict[str, inspect.Parameter]:
    return {n: p for n, p in inspect.signature(what).parameters.items() if n not in INJECTED}
