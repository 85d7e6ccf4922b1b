"""Tables whose rows lie in lake, log and records, and a Parquet copy of the same rows beside each."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamhouse_spark import Table, Warehouse
from streamhouse_spark.log.bucketing import iceberg_buckets
from streamhouse_spark.spark import tier
from streamhouse_spark.write.auto_compaction import compact_inline_rows

COLUMNS = {
    "u": "BIGINT NOT NULL",  # another one in each row of all tables
    "k": "BIGINT",
    "n": "INT",
    "t": "TINYINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "m": "DECIMAL(12,2)",
    "big": "DECIMAL(30,8)",
    "s": "STRING",
    "p": "STRING",
    "b": "BINARY",
    "flag": "BOOLEAN",
    "day": "DATE",
    "ts": "TIMESTAMP",
    "wall": "TIMESTAMP_NTZ",
    "st": "STRUCT<a: INT, b: STRING, c: STRUCT<x: DOUBLE, y: TIMESTAMP>>",
    "arr": "ARRAY<INT>",
    "mp": "MAP<STRING, INT>",
}
DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
ADDED = "extra INT"
"""A column that some tables get when they already have rows in both tiers."""

WORDS = ["", "a", "ab", "abc", "b", "zz", "Ünï", "日本", "🦀", "it's", "50%_x", "back\\slash", "\uffff", "a\x00b"]
PARTITIONS = ["north", "south", "", "ö/=%25 x"]
FLOATS = [0.0, -0.0, 1.5, -2.25, 1e6, float("nan"), float("inf"), float("-inf"), 0.1]
BYTES = [b"", b"\x00", b"a", b"\xff\xfe", bytes(range(8))]
FIRST_DAY = dt.date(2024, 3, 8)
FIRST_MOMENT = dt.datetime(2024, 3, 9, 20, 30)  # two hours around it, clocks change in America
KEYS = 40


def rows(rng: random.Random, start: int, count: int, part: int, schema: pa.Schema) -> pa.Table:
    """Rows that cluster by ``part``, so that statistics prune: numbers and times of parts overlap little."""

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.12 else value

    def one(u: int) -> dict[str, Any]:
        moment = FIRST_MOMENT + dt.timedelta(
            hours=7 * part, minutes=30 * rng.randrange(16), microseconds=rng.choice([0, 0, 1])
        )
        unscaled = rng.randrange(-300, 300) + 200 * part
        return {
            "u": u,
            "k": maybe(rng.randrange(KEYS)),
            "n": maybe(10 * part + rng.randrange(15)),
            "t": maybe(rng.choice([-128, -1, 0, 1, 5, 127])),
            "f": maybe(rng.choice(FLOATS)),
            "d": maybe(
                rng.choice(FLOATS) if part % 3 == 1 else rng.choice([part, part + 0.25, part + 0.5, float("nan")])
            ),
            "m": maybe(Decimal(unscaled).scaleb(-2)),
            "big": maybe(Decimal(rng.choice([unscaled, 10**29 - 1, -1, 10**8 * part])).scaleb(-8)),
            "s": maybe(rng.choice(WORDS) if part % 3 else f"w{part}{rng.choice('abc')}"),
            "p": maybe(rng.choice(PARTITIONS[: 1 + part % 4])),
            "b": maybe(rng.choice(BYTES)),
            "flag": maybe(rng.random() < 0.5),
            "day": maybe(FIRST_DAY + dt.timedelta(days=part + rng.randrange(3))),
            "ts": maybe(moment.replace(tzinfo=dt.UTC)),
            "wall": maybe(moment),
            "st": maybe(
                {
                    "a": maybe(part + rng.randrange(4)),
                    "b": maybe(rng.choice(WORDS)),
                    "c": maybe({"x": maybe(rng.choice(FLOATS)), "y": maybe(moment.replace(tzinfo=dt.UTC))}),
                }
            ),
            "arr": maybe([maybe(rng.randrange(5)) for _ in range(rng.randrange(4))]),
            "mp": maybe([(name, maybe(rng.randrange(9))) for name in ("x", "y", "z")[: rng.randrange(4)]]),
            "extra": maybe(part + rng.randrange(3)),
        }

    return pa.Table.from_pylist([one(start + i) for i in range(count)], schema=schema)


@dataclass
class Subject:
    """A table of the catalog, built part by part, and what a copy has to hold."""

    name: str
    table: Table
    rng: random.Random
    first_u: int
    parts: list[pa.Table] = field(default_factory=list)
    num_tiered: int = 0

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self.parts)

    def add(self, count: int) -> None:
        part = rows(self.rng, self.first_u + self.num_rows, count, len(self.parts), self.table.refresh().schema.arrow)
        self.table.append(part)
        self.parts.append(part)

    def tier(self, spark: Any, wh: Warehouse) -> None:
        tier(spark, wh.url, [self.name])
        self.num_tiered = len(self.parts)


@dataclass(frozen=True)
class Side:
    """The two names of one set of rows."""

    catalog: str
    copy: str
    has_extra: bool
    has_place: bool
    """Whether the hidden columns ``_bucket`` and ``_log_offset`` can be asked of it."""
    num_rows: int


def build(spark: Any, wh: Warehouse, folder: Path, seed: int = 0) -> list[Side]:
    """All subjects with their copies; the first is partitioned, the last small."""
    rng = random.Random(seed)
    everything = {"table.statistics.columns": "*"}
    keyed = {"bucket.key": "k"}
    trimmed = {"table.log.ttl": "1ms"}

    def subject(
        number: int, name: str, buckets: int, properties: dict[str, str], partition_by: tuple[str, ...] = ()
    ) -> Subject:
        table = wh.create_table(f"diff.{name}", DDL, buckets=buckets, partition_by=partition_by, properties=properties)
        return Subject(f"diff.{name}", table, random.Random(rng.randrange(2**32)), number * 1_000_000)

    # partitioned, by key; several rounds, trimmed, a new column in all places, merged and inline rows
    parts = subject(1, "parts", 4, {**keyed, **everything, **trimmed}, ("p",))
    for count in (40, 1, 30):
        parts.add(count)
    parts.tier(spark, wh)
    parts.table.add_columns(ADDED)
    parts.add(40)
    parts.tier(spark, wh)
    parts.table.maintain()
    for count in (30, 5, 20):
        parts.add(count)
    compact_inline_rows(parts.table)
    parts.add(10)
    # one bucket, no key; the newest rows inline, older ones in segments
    plain = subject(2, "plain", 1, everything)
    for count in (50, 20):
        plain.add(count)
    plain.tier(spark, wh)
    for count in (25, 25, 25):
        plain.add(count)
    compact_inline_rows(plain.table)
    plain.add(15)
    # bucketed as the first, with default statistics only
    keyed_table = subject(3, "keyed", 4, keyed)
    keyed_table.add(60)
    keyed_table.tier(spark, wh)
    keyed_table.table.add_columns(ADDED)
    keyed_table.add(40)
    keyed_table.add(3)
    # never tiered, other buckets, small
    small = subject(4, "small", 3, {**keyed, **everything})
    small.add(12)
    compact_inline_rows(small.table)
    small.add(5)
    found = []
    for made in (parts, plain, keyed_table, small):
        found += sides(spark, made, folder)
    return found


def sides(spark: Any, made: Subject, folder: Path) -> list[Side]:
    """The union's side, and the lake's where it has one."""
    short = made.name.split(".")[1]
    schema = made.table.refresh().schema.arrow
    whole = pa.concat_tables([_widened(part, schema) for part in made.parts])
    buckets = (
        iceberg_buckets(whole["k"].combine_chunks(), made.table.num_buckets) if made.table.num_buckets > 1 else None
    )
    place = spark.table(f"streamhouse.diff.`{short}$changelog`").select("u", "_log_offset").toArrow().to_pydict()
    offsets = dict(zip(place["u"], place["_log_offset"], strict=True))
    tiered = sum(part.num_rows for part in made.parts[: made.num_tiered])
    whole = (
        whole.append_column(
            "_bucket", pa.array([0] * whole.num_rows if buckets is None else list(map(int, buckets)), pa.int32())
        )
        .append_column("_log_offset", pa.array([offsets[u] for u in whole["u"].to_pylist()], pa.int64()))
        .append_column("_tiered", pa.array([i < tiered for i in range(whole.num_rows)]))
    )
    path = str(folder / f"{short}.parquet")
    pq.write_table(whole, path, write_statistics=False, use_dictionary=False, row_group_size=100)
    has_extra = "extra" in schema.names
    frame = spark.read.parquet(path)  # without statistics and dictionaries: Spark has to look at every row
    frame.drop("_tiered").createOrReplaceTempView(f"copy_{short}")
    found = [Side(f"streamhouse.{made.name}", f"copy_{short}", has_extra, True, whole.num_rows)]
    if tiered:
        frame.where("_tiered").drop("_tiered").createOrReplaceTempView(f"copy_{short}_lake")
        lake_name = f"streamhouse.diff.`{short}$lake`"
        found.append(Side(lake_name, f"copy_{short}_lake", has_extra, False, tiered))
    return found


def _widened(part: pa.Table, schema: pa.Schema) -> pa.Table:
    missing = [column for column in schema if column.name not in part.schema.names]
    for column in missing:
        part = part.append_column(column, pa.nulls(part.num_rows, column.type))
    return part.select(schema.names).cast(schema)
