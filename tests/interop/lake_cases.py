"""Lake tables for tests: one table of every type, with rows, and a lake on any storage."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kit.lake_rows import lake_rows
from storage.s3_proxy import Fault, nothing, nth, running_s3_proxy
from storage.s3_server import S3Server, settings_for
from streamhouse_spark import CommitConflictError, OffsetRange
from streamhouse_spark.config.table_properties import LakeFormat
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.formats import file_spec_of
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.parquet.bucket_writer import write_files
from streamhouse_spark.lake.parquet.file_writer import FileOutput
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import LakeFile, LakeSnapshot, WriteContext
from streamhouse_spark.log.bucketing import buckets_of
from streamhouse_spark.schema.partitioning import PartitionField
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.storage.local import LocalStorage

TABLE_UUID = "0123456789abcdef0123456789abcdef"
EVERY_TYPE = TableSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("a_bool", pa.bool_()),
            ("a_byte", pa.int8()),
            ("a_short", pa.int16()),
            ("an_int", pa.int32()),
            ("a_float", pa.float32()),
            ("a_double", pa.float64()),
            ("small_decimal", pa.decimal128(9, 2)),
            ("large_decimal", pa.decimal128(38, 10)),
            ("a_string", pa.string()),
            ("some_bytes", pa.binary()),
            ("a_date", pa.date32()),
            ("a_time_ntz", pa.timestamp("us")),
            ("a_time", pa.timestamp("us", "UTC")),
            ("a_list", pa.list_(pa.int16())),
            ("a_map", pa.map_(pa.string(), pa.int32())),
            ("a_struct", pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))])),
        ]
    )
)
EVENTS = TableSchema.of("id bigint not null, day date, region string, amount decimal(12,2)")
PLAIN = TableSchema.of("id bigint, name string")


def every_type_rows(num_rows: int, seed: int = 0) -> pa.Table:
    """Rows with values, edge values and nulls in every column."""
    rng = random.Random(seed)
    epoch = dt.datetime(1970, 1, 1)

    def row(i: int) -> dict[str, Any]:
        time = epoch + dt.timedelta(microseconds=rng.randrange(-(10**14), 3 * 10**15))
        values = {
            "a_bool": rng.random() < 0.5,
            "a_byte": rng.randrange(-128, 128),
            "a_short": rng.choice([-(2**15), 2**15 - 1, 7]),
            "an_int": rng.choice([-(2**31), 2**31 - 1, 0]),
            "a_float": rng.choice([0.5, -1.25, 3.0e38]),
            "a_double": rng.random(),
            "small_decimal": decimal.Decimal(rng.randrange(-(10**9) + 1, 10**9)).scaleb(-2),
            "large_decimal": decimal.Decimal(f"{rng.randrange(10**27)}.{rng.randrange(10**10):010d}"),
            "a_string": rng.choice(["", "plain", "漢字 😀", "x" * 40]),
            "some_bytes": rng.randbytes(rng.randrange(9)),
            "a_date": time.date(),
            "a_time_ntz": time,
            "a_time": time.replace(tzinfo=dt.UTC),
            "a_list": [1, None, -3][: rng.randrange(4)],
            "a_map": [("k", 1), ("l", None)][: rng.randrange(3)],
            "a_struct": {"x": rng.randrange(-128, 128), "y": ["a", None]},
        }
        return {"id": i, **{k: None if rng.random() < 0.2 else v for k, v in values.items()}}

    return pa.Table.from_pylist([row(i) for i in range(num_rows)], schema=EVERY_TYPE.arrow)


def event_rows(num_rows: int, seed: int = 0, *, null_keys: bool = False) -> pa.Table:
    rng = random.Random(seed)
    first = dt.date(2026, 1, 1)
    return pa.table(
        {
            "id": pa.array([rng.randrange(10**9) for _ in range(num_rows)], pa.int64()),
            "day": pa.array([rng.choice([first, first + dt.timedelta(1), None]) for _ in range(num_rows)], pa.date32()),
            "region": pa.array(
                [
                    None if null_keys and rng.random() < 0.2 else rng.choice(["eu", "us/ca", "ap 1"])
                    for _ in range(num_rows)
                ]
            ),
            "amount": pa.array([decimal.Decimal(rng.randrange(10**6)).scaleb(-2) for _ in range(num_rows)]).cast(
                pa.decimal128(12, 2)
            ),
        },
        schema=EVENTS.arrow,
    )


def lake_of(
    storage: Storage,
    schema: TableSchema = PLAIN,
    *,
    partition_by: Sequence[str] = (),
    partition_fields: Sequence[PartitionField] = (),
    bucket_key: str | None = None,
    num_buckets: int = 1,
    settings: Mapping[str, str] | None = None,
    world: World | None = None,
    table_uuid: str = TABLE_UUID,
    target_file_bytes: int = 128 << 20,
    lake_format: LakeFormat = "iceberg",
) -> Any:
    """The lake table of ``sales.orders``, as the format has it."""
    spec = LakeTableSpec(
        table_uuid=table_uuid,
        path=TablePath("sales", "orders"),
        location="lake/sales.db/orders" if lake_format == "paimon" else "lake/sales/orders",
        schema=schema,
        partition_by=tuple(partition_by),
        partition_fields=tuple(partition_fields),
        bucket_key=(bucket_key,) if bucket_key else (),
        num_buckets=num_buckets,
        target_file_bytes=target_file_bytes,
    )
    if lake_format == "paimon":
        from streamhouse_spark.lake.paimon.table import PaimonLake

        return PaimonLake(storage, spec, settings=settings, world=world)
    return IcebergLake(storage, spec, settings=settings, world=world)


def by_bucket(
    rows: pa.Table, key: str | None, num_buckets: int, lake_format: LakeFormat = "iceberg"
) -> dict[int, pa.Table]:
    if key is None:
        return {0: rows}
    buckets = buckets_of(rows[key], num_buckets, lake_format)
    return {b: rows.filter(pa.array(buckets == b)) for b in range(num_buckets) if (buckets == b).any()}


def batches_from(base_offset: int, rows: pa.Table, batch_rows: int = 7) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in rows.combine_chunks().to_batches(max_chunksize=batch_rows):
        yield base_offset, batch
        base_offset += batch.num_rows


def written_files(
    lake: LakeTable, context: WriteContext, bucket: int, offsets: OffsetRange, batches: Iterable[tuple[int, Any]]
) -> list[LakeFile]:
    """Data files of rows of one bucket, as a task of a round writes them."""
    shape = file_spec_of(context)
    output = FileOutput(context, shape, lake.binding.files_at(shape.data_location), lake.binding.world.ids)
    return write_files(output, bucket, offsets, batches)


def write_round(
    lake: LakeTable, rows: Mapping[int, pa.Table], expected: Mapping[int, int], batch_rows: int = 7
) -> tuple[list[LakeFile], dict[int, int]]:
    """Write the files of one round that begins at ``expected``; returns them and the offsets behind it."""
    context = lake.write_context()
    files, new = [], dict(expected)
    for bucket, table in rows.items():
        start = expected.get(bucket, 0)
        offsets = OffsetRange(start, start + table.num_rows)
        files += written_files(lake, context, bucket, offsets, batches_from(start, table, batch_rows))
        new[bucket] = offsets.end
    return files, new


def numbered(round_number: int) -> pa.Table:
    """Return the three rows of a round."""
    ids = range(3 * round_number, 3 * round_number + 3)
    return pa.table({"id": ids, "name": ["x"] * 3}, schema=PLAIN.arrow)


def tier_through_faults(server: S3Server, fault: Fault, lake_format: str = "iceberg") -> int:
    """Tier rounds on S3 with a fault at the first write of one, the second of the next and so on, and check all rows.

    Return the number of rounds: in the last, no such write was left.
    """
    with running_s3_proxy(server) as proxy:
        settings = settings_for(proxy.endpoint)
        storage = open_storage(f"s3://{server.new_bucket()}/wh", settings)
        lake = lake_of(storage, PLAIN, settings=settings, lake_format=lake_format)
        tier(lake, numbered(0))
        rounds = 1
        while True:
            proxy.plan = nth("PUT", rounds - 1, fault)
            tier(lake, numbered(rounds))
            rounds += 1
            if not proxy.faults_fired:
                break
        proxy.plan = nothing
        assert sorted(lake_rows(lake, lake.plan_read())["id"].to_pylist()) == list(range(3 * rounds))
        assert lake.newest().offsets == {0: 3 * rounds}
    return rounds


def tier(lake: LakeTable, rows: Mapping[int, pa.Table] | pa.Table) -> LakeSnapshot:
    """One whole round on top of what the lake holds."""
    lake.create_or_evolve()
    newest = lake.newest()
    expected = dict(newest.offsets) if newest else {}
    files, new = write_round(lake, rows if isinstance(rows, Mapping) else {0: rows}, expected)
    snapshot = lake.commit(files, expected=expected, new=new, context=lake.write_context())
    assert snapshot is not None
    return snapshot


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def tier_numbers(
    root: str, num_rounds: int, rows_per_round: int, lake_format: LakeFormat = "iceberg", *, fsync: bool = True
) -> None:
    """Win ``num_rounds`` rounds of a table whose row at offset n has the id n, against whoever else tries."""
    lake = lake_of(LocalStorage(root, fsync=fsync), lake_format=lake_format)
    lake.create_or_evolve()
    won = 0
    while won < num_rounds:
        newest = lake.newest()
        expected = dict(newest.offsets) if newest else {}
        ids = range(expected.get(0, 0), expected.get(0, 0) + rows_per_round)
        rows = pa.table({"id": ids, "name": [str(os.getpid())] * rows_per_round}, schema=PLAIN.arrow)
        files, new = write_round(lake, {0: rows}, expected)
        try:
            lake.commit(files, expected=expected, new=new, context=lake.write_context())
        except CommitConflictError:
            continue
        won += 1
