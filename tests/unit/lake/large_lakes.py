"""Lakes of many files that cost little to make: one round is written, the files of the others are copies."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from interop.lake_cases import by_bucket, lake_of, write_round
from streamhouse_spark import OffsetRange
from streamhouse_spark.config.table_properties import LakeFormat
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.types import LakeFile
from streamhouse_spark.schema.partitioning import parse_field
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage

FIRST_DAY = 20_000
"""Larger than what else stands in the lake's binary form of a date."""
ROUNDS, DAYS_PER_ROUND, BUCKETS = 20, 10, 10
SCHEMA = TableSchema.of(pa.schema([("id", pa.int64()), ("day", pa.date32()), ("key", pa.int32())]))


def daily_lake(storage: Storage, world: World, lake_format: LakeFormat, partitioned_by: str = "day") -> LakeTable:
    """A lake partitioned by day, or by ``days(day)``: each round with the files of some days, one a bucket and day,
    2,000 in 200 days.

    Rows of the copies say the days of the first round, their metadata say later ones.
    """
    lake = lake_of(
        storage,
        SCHEMA,
        partition_by=["day"] if partitioned_by == "day" else [],
        partition_fields=[parse_field(partitioned_by, SCHEMA)],
        bucket_key="key",
        num_buckets=BUCKETS,
        world=world,
        lake_format=lake_format,
    )
    lake.create_or_evolve()
    written, new = write_round(lake, by_bucket(_rows(), "key", BUCKETS, lake_format), {})
    assert len(written) == DAYS_PER_ROUND * BUCKETS
    for number in range(ROUNDS):
        files = [_in_round(file, number, new[file.bucket]) for file in written]
        for file, copied in zip(written, files, strict=True):
            at, then = (one.location.removeprefix(f"{storage.url}/") for one in (file, copied))
            storage.put(then, storage.read(at))
        expected, then = ({b: n * end for b, end in new.items()} for n in (number, number + 1))
        assert lake.commit(files, expected=expected if number else {}, new=then, context=lake.write_context())
    return lake


def _rows() -> pa.Table:
    keys, days = zip(*((k, d) for k in range(60) for d in range(DAYS_PER_ROUND)), strict=True)
    columns = {
        "id": pa.array(range(len(keys)), pa.int64()),
        "day": pa.array([FIRST_DAY + day for day in days], pa.int32()).cast(pa.date32()),
        "key": pa.array(keys, pa.int32()),
    }
    return pa.table(columns, schema=SCHEMA.arrow)


def _in_round(file: LakeFile, number: int, length: int) -> LakeFile:
    """The file as a later round would have it, of later days and offsets."""
    day, start = _day_of(file.partition[0]), file.offsets.start + number * length
    return replace(
        file,
        location=file.location.replace(".parquet", f"-{number}.parquet"),
        offsets=OffsetRange(start, start + len(file.offsets)),
        partition=tuple(_moved(value, day, number) for value in file.partition),
        columns={name: _moved_values(values, day, number) for name, values in file.columns.items()},
    )


def _day_of(value: bytes | None) -> bytes:
    days = (struct.pack("<i", FIRST_DAY + day) for day in range(DAYS_PER_ROUND))
    return next(day for day in days if value is not None and day in value)


def _moved(value: Any, day: bytes, number: int) -> Any:
    later = struct.pack("<i", struct.unpack("<i", day)[0] + number * DAYS_PER_ROUND)
    return value.replace(day, later) if isinstance(value, bytes) else value


def _moved_values(values: Mapping[int, Any], day: bytes, number: int) -> Mapping[int, Any]:
    return {i: _moved(value, day, number) for i, value in values.items()}
