"""Histories of tables before another engine reads them: rounds, deletes, compaction, expiry, added columns.

Each history yields after every step that another engine must read right: where the lake table lies, and its rows.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from faults.sim import sim_world
from interop.keyed_cases import KeyedTable, live_deletes
from interop.lake_cases import EVENTS, EVERY_TYPE, by_bucket, event_rows, every_type_rows, lake_of, tier
from kit.tables import tier as tier_table
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.local import LocalStorage

DAYS = [dt.date(2026, 1, 1), dt.date(2026, 1, 2), dt.date(1969, 12, 31)]
SHAPES = {
    "plain": (TableSchema.of("id bigint not null, name string, n bigint"), {}),
    "partitions and buckets": (
        TableSchema.of("day date not null, id bigint not null, name string, n bigint"),
        {"key": ["day", "id"], "partition_by": ["day"], "bucket_key": "id", "num_buckets": 3},
    ),
    "strings": (
        TableSchema.of("id string not null, name string, n bigint"),
        {"key": ["id"], "bucket_key": "id", "num_buckets": 2},
    ),
}


def history(table: KeyedTable, rng: random.Random, rounds: int, keys: int) -> Iterator[None]:
    """Upserts and deletes in rounds, with an added column on the way."""

    def row() -> tuple:
        values = {"day": rng.choice(DAYS), "id": rng.randrange(keys), "name": rng.choice(["a", None, "漢"]), "n": 0}
        if table.state.schema.column("id").type == pa.string():
            values["id"] = f"key-{values['id']:05d}"
        return tuple(values.get(name, rng.choice([None, 0.5])) for name in table.state.schema.names)

    for number in range(rounds):
        if number == rounds // 2:
            table.add_column("more double")
        table.change([row() for _ in range(keys // 2)])
        table.change([], rng.sample(sorted(table.rows), len(table.rows) // 4))
        table.tier(bytes_per_bucket_max=300 if number % 3 == 2 else 1 << 20)
        yield


# -- for engines that know nothing of us ------------------------------------------------------------------------------


SCALARS = EVERY_TYPE.names[1:14]


@dataclass(frozen=True)
class Written:
    """A lake table and the rows that every reader must find in it."""

    folder: Path
    name: str
    """With its database, below the folder of all lake tables."""
    rows: pa.Table
    num_deletes: int = 0
    """Deleted positions that the newest snapshot names."""
    filters: tuple[str, ...] = ()
    """Columns by which rows are to be looked for: bounds and partition values must not hide one."""

    def counts(self, column: str) -> dict[Any, int]:
        """Some values of a column, and how many rows have each; None among them where there are nulls."""
        found = Counter(self.rows[column].to_pylist())
        values = sorted(found.keys() - {None})
        chosen = {values[0], values[len(values) // 2], values[-1]} if values else set()
        return {value: number for value, number in found.items() if value is None or value in chosen}


def written(table: KeyedTable, root: Path, filters: Sequence[str] = ()) -> Written:
    schema = table.state.schema.arrow
    columns = list(zip(*table.expected(), strict=True)) or [()] * len(schema)
    rows = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    return Written(root / "wh/lake/d/t", "d.t", rows, sum(live_deletes(table.lake()).values()), tuple(filters))


def keyed_table(root: Path, schema: TableSchema, **options: Any) -> KeyedTable:
    return KeyedTable(LocalStorage(str(root / "wh"), fsync=False), sim_world(), schema, **options)


def keyed(shape: str) -> Callable[[Path], Iterator[Written]]:
    """Upserts and deletes, a column added in the middle, compaction, expiry, and rounds after them."""

    def steps(root: Path) -> Iterator[Written]:
        schema, options = SHAPES[shape]
        table = keyed_table(root, schema, **options)
        for number, _ in enumerate(history(table, random.Random(shape), rounds=8, keys=40)):
            if number == 5:
                assert table.lake().compact().files_removed
                table.lake().expire(keep_last=1, keep_ms=-60_000)
            yield written(table, root)
        assert live_deletes(table.lake())

    return steps


def keyed_every_type(root: Path) -> Iterator[Written]:
    table = keyed_table(root, EVERY_TYPE, bucket_key="id", num_buckets=2)
    for seed in range(3):
        table.change(tuple(row.values()) for row in every_type_rows(30, seed).slice(seed * 4).to_pylist())
        table.change([], [(i,) for i in range(seed, 30, 7) if (i,) in table.rows])
        table.tier()
        yield written(table, root)
    assert table.lake().compact().files_removed
    yield written(table, root, SCALARS)


def keyed_by(name: str) -> Callable[[Path], Iterator[Written]]:
    """The type of a column as the key, and as the partition: bounds and partition values decide what is read."""

    def steps(root: Path) -> Iterator[Written]:
        columns = [c for c in EVERY_TYPE.arrow if c.name in (name, "a_string", "id")]
        schema = TableSchema.of(pa.schema([c.with_nullable(c.name != name) for c in columns]))
        table = keyed_table(root, schema, key=[name], partition_by=[name])
        for seed in range(3):
            rows = [row for row in every_type_rows(30, seed).select(schema.names).to_pylist() if row[name] is not None]
            table.change(tuple(row.values()) for row in rows)
            table.change([], sorted(table.rows)[: 1 + len(table.rows) // 4])
            table.tier()
            yield written(table, root, [name])

    return steps


def keyed_emptied(root: Path) -> Iterator[Written]:
    """A first round whose changes take each other away, and rows that all go."""
    table = keyed_table(root, SHAPES["plain"][0])
    table.change([(1, "x", 0)])
    table.change([], [(1,)])
    table.tier()
    yield written(table, root)
    table.change([(i, "x", 0) for i in range(5)])
    table.tier()
    table.change([], list(table.rows))
    table.tier()
    yield written(table, root)
    table.truncate()
    table.change([(7, "after", 0)])
    table.tier()
    yield written(table, root)


def keyed_large(root: Path) -> Iterator[Written]:
    """Several row groups and pages, and deleted positions all over them."""
    table = keyed_table(root, SHAPES["plain"][0])
    table.change([(i, f"name-{i}", 0) for i in range(250_000)])
    table.tier()
    table.change([(i, "again", 0) for i in range(0, 250_000, 7)])
    table.change([], [(i,) for i in range(1, 250_000, 11) if (i,) in table.rows])
    table.tier()
    yield written(table, root)


def log_every_type(root: Path) -> Iterator[Written]:
    lake = lake_of(LocalStorage(str(root / "wh"), fsync=False), EVERY_TYPE, bucket_key="id", num_buckets=3)
    yield from _log_rounds(root, lake, [every_type_rows(40, seed) for seed in range(3)], SCALARS)


def log_partitioned(root: Path) -> Iterator[Written]:
    storage = LocalStorage(str(root / "wh"), fsync=False)
    lake = lake_of(storage, EVENTS, partition_by=["day", "region"], bucket_key="id", num_buckets=3)
    yield from _log_rounds(root, lake, [event_rows(40, seed, null_keys=True) for seed in range(6)], EVENTS.names)


def log_by(name: str) -> Callable[[Path], Iterator[Written]]:
    """A column of each type as the partition, with nulls."""

    def steps(root: Path) -> Iterator[Written]:
        lake = lake_of(LocalStorage(str(root / "wh"), fsync=False), EVERY_TYPE, partition_by=[name])
        yield from _log_rounds(root, lake, [every_type_rows(12, seed) for seed in range(2)], [name])

    return steps


def _log_rounds(root: Path, lake: IcebergLake, rounds: list[pa.Table], filters: Sequence[str]) -> Iterator[Written]:
    key, num_buckets = (lake.binding.spec.bucket_key or (None,))[0], lake.binding.spec.num_buckets
    folder, there = root / "wh/lake/sales/orders", []
    for rows in rounds:
        tier(lake, by_bucket(rows, key, num_buckets))
        there.append(rows)
        yield Written(folder, "sales.orders", pa.concat_tables(there), filters=tuple(filters))
    if lake.compact().files_removed:
        lake.expire(keep_last=1, keep_ms=-60_000)
        yield Written(folder, "sales.orders", pa.concat_tables(there), filters=tuple(filters))


def log_evolved(root: Path) -> Iterator[Written]:
    """Files from before a column was added do not have it."""
    table = Warehouse(LocalStorage(str(root / "wh"), fsync=False).url).create_table(
        "sales.orders", "id bigint, day date", partition_by=["day"], buckets=2
    )
    day = dt.date(2026, 1, 1)
    table.append([{"id": 1, "day": day}])
    tier_table(table)
    table.alter(add_columns="`größe x` string comment 'why', s struct<x:int>", comments={"id": "the key"})
    table.append([{"id": 2, "day": day, "größe x": "b", "s": {"x": 1}}, {"id": 3, "day": None}])
    tier_table(table)
    yield Written(root / "wh/lake/sales/orders", "sales.orders", table.to_arrow())


def partitioned_anew(key: Sequence[str]) -> Callable[[Path], Iterator[Written]]:
    """Files of several partition specs, and deleted rows in each."""

    def steps(root: Path) -> Iterator[Written]:
        table = Warehouse(LocalStorage(str(root / "wh"), fsync=False).url).create_table(
            "sales.orders", "id bigint, day date, land string, moment timestamp", primary_key=key, buckets=2,
            partition_by=["land"], properties={"bucket.key": "id"},
        )  # fmt: skip
        written = 0
        for fields in (["land"], ["days(moment)", "land"], ["truncate(1, land)", "day"], [], ["land"]):
            table.set_partitioning(fields)
            rows = [_row_of(number) for number in range(written, written + 12)]
            (table.upsert if key else table.append)(rows)
            written += 12
            if key:
                table.delete([tuple(_row_of(number)[name] for name in key) for number in range(0, written, 7)])
            else:
                table.delete(where=[("id", "<", written // 3)])
            tier_table(table)
            num_deletes = sum(live_deletes(table.open_lake()).values())
            filters = ("day", "land", "moment")
            yield Written(root / "wh/lake/sales/orders", "sales.orders", table.to_arrow(), num_deletes, filters)

    return steps


def _row_of(number: int) -> dict[str, Any]:
    at = dt.datetime(1969, 12, 31, 20, tzinfo=dt.UTC) + dt.timedelta(hours=5 * number)
    return {"id": number, "day": DAYS[number % 3], "land": ["de", "fr", "dk"][number % 3], "moment": at}


HISTORIES: dict[str, Callable[[Path], Iterator[Written]]] = {
    **{f"keyed, {shape}": keyed(shape) for shape in SHAPES},
    "keyed, every type": keyed_every_type,
    **{f"keyed by {name}": keyed_by(name) for name in SCALARS},
    "keyed, emptied": keyed_emptied,
    "keyed, large": keyed_large,
    "log, every type": log_every_type,
    "log, partitioned": log_partitioned,
    **{f"log by {name}": log_by(name) for name in SCALARS},
    "log, evolved": log_evolved,
    "log, partitioned anew": partitioned_anew([]),
    "keyed, partitioned anew": partitioned_anew(["id", "day", "land", "moment"]),
}
