"""`Table.lake.optimize`: the same rows, with the same offsets, in files that hold ranges of columns."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.tables import tier
from streamhouse_spark import CommitConflictError, InvalidOptionError, OffsetRange, SchemaMismatchError
from streamhouse_spark.expressions.filters import Projection, parse_filter
from streamhouse_spark.lake.parquet import clustering
from streamhouse_spark.lake.parquet.file_writer import parse_clustered_file_name
from streamhouse_spark.lake.parquet.reader import has_whole_footer
from streamhouse_spark.lake.types import CompactReport
from streamhouse_spark.table.maintenance import lake as lake_maintenance

COLUMNS = "id BIGINT, a INT, b INT, name STRING, day DATE"
ROUNDS, ROWS = 5, 400


def rows_of(turn: int, num_rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(turn)
    a, b = random.integers(0, 1000, num_rows), random.integers(0, 1000, num_rows)
    return pa.table({
        "id": pa.array(np.arange(num_rows) + turn * num_rows),
        "a": pa.array(a, pa.int32(), mask=a % 97 == 0),
        "b": pa.array(b, pa.int32()),
        "name": pc.binary_join_element_wise("name", pa.array(a).cast(pa.string()), "-"),
        "day": pa.array(np.where(b % 2, 20_000, 20_001), pa.int32()).cast(pa.date32()),
    })  # fmt: skip


def filled(wh, **shape):
    table = wh.create_table("t", COLUMNS, **shape)
    for turn in range(ROUNDS):
        table.append(rows_of(turn))
        tier(table)
    return table


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(clustering, "CLUSTERED_FILE_BYTES", 4000)


@pytest.fixture
def table(wh):
    return filled(wh)


def lake_rows(table) -> pa.Table:
    return table.lake.to_arrow().sort_by("id")


def by_offset(table) -> dict[int, list[int]]:
    """Bucket → the ids of the lake's rows in the order of their offsets."""
    lake, ends = table.open_lake(), table.lake.newest().offsets
    return {
        bucket: [i for _, rows in lake.read_offsets(bucket, OffsetRange(0, end)) for i in rows.column("id").to_pylist()]
        for bucket, end in ends.items()
    }


def files_read(table, condition) -> int:
    schema = table.refresh().schema
    node = Projection.of(schema, None, parse_filter(condition)).node
    return len(table.open_lake().plan_read(node=node, schema=schema).splits)


def test_rows_and_offsets_stay_and_files_hold_ranges(table):
    rows, offsets = lake_rows(table), by_offset(table)
    shown = table.lake.optimize("a", dry_run=True)
    assert (shown.files_removed, shown.rows, shown.snapshot) == (ROUNDS, ROUNDS * ROWS, None)
    assert shown.files_added > 5
    assert table.lake.files().num_rows == ROUNDS
    assert files_read(table, [("a", "=", 500)]) == ROUNDS
    report = table.lake.optimize("a")
    assert (report.files_removed, report.rows) == (ROUNDS, ROUNDS * ROWS)
    assert report.files_added > 5
    assert report.snapshot == table.lake.newest()
    assert lake_rows(table) == rows
    assert by_offset(table) == offsets == {0: list(range(ROUNDS * ROWS))}
    assert files_read(table, [("a", "=", 500)]) == 1
    assert files_read(table, [("b", "=", 500)]) == report.files_added


def test_what_is_clustered_is_left_alone(table):
    table.lake.optimize("a")
    before = table.lake.newest()
    assert table.lake.optimize("a") == CompactReport()
    assert table.lake.optimize(" `a` ") == CompactReport()
    assert table.lake.newest() == before
    table.append(rows_of(ROUNDS))
    tier(table)
    added = table.lake.optimize("a")
    assert (added.files_removed, added.rows) == (1, ROWS)  # the cluster is large beside it
    for turn in range(ROUNDS + 1, ROUNDS + 4):
        table.append(rows_of(turn))
        tier(table)
    rows = lake_rows(table)
    grown = table.lake.optimize("a")
    assert grown.rows > 3 * ROWS  # with smaller clusters
    assert lake_rows(table) == rows
    assert by_offset(table)[0] == list(range((ROUNDS + 4) * ROWS))


def test_another_order_writes_all_again(table):
    table.lake.optimize("a")
    report = table.lake.optimize("b, name")
    assert report.rows == ROUNDS * ROWS
    assert files_read(table, [("b", "=", 500)]) <= 2
    assert table.lake.optimize("a").rows == ROUNDS * ROWS


def test_a_z_order_skips_by_each_of_its_columns(table, monkeypatch):
    monkeypatch.setattr(clustering, "CLUSTERED_FILE_BYTES", 1000)
    report = table.lake.optimize("zorder(a, b)")
    for column in "a", "b":
        assert files_read(table, [(column, "=", 300)]) <= 0.5 * report.files_added
    assert by_offset(table) == {0: list(range(ROUNDS * ROWS))}


@pytest.mark.parametrize("order", ["name", "a, b", "day, zorder(b, name)", "id", "zorder(id,a,b,name,day)"])
def test_orders_keep_rows_and_offsets(table, order):
    rows = lake_rows(table)
    assert table.lake.optimize(order).rows == rows.num_rows
    assert lake_rows(table) == rows
    assert by_offset(table) == {0: list(range(ROUNDS * ROWS))}


def test_buckets_and_partitions_are_clustered_apart(wh):
    table = filled(wh, buckets=2, partition_by=["day"], properties={"bucket.key": "id"})
    rows, offsets = lake_rows(table), by_offset(table)
    table.lake.optimize("a")
    assert lake_rows(table) == rows
    assert by_offset(table) == offsets
    assert all(parse_clustered_file_name(path) for path in table.lake.files()["file_path"].to_pylist())


def test_a_filter_chooses_partitions(wh):
    table = filled(wh, partition_by=["day"])
    rows = lake_rows(table)
    day = rows["day"][0].as_py()
    chosen = rows.filter(pc.equal(rows["day"], day)).num_rows
    shown = table.lake.optimize("a", filter=[("day", "=", day)], dry_run=True)
    assert shown.rows == chosen < rows.num_rows
    assert table.lake.optimize("a", filter=[("day", "=", day)]).rows == chosen
    assert table.lake.optimize("a", filter=[("day", "=", day)]) == CompactReport()
    assert table.lake.optimize("a").rows == rows.num_rows - chosen
    assert lake_rows(table) == rows


def test_files_are_about_as_large_as_they_are_meant_to_be(wh, monkeypatch):
    monkeypatch.undo()
    assert clustering.CLUSTERED_FILE_BYTES == 32 << 20
    monkeypatch.setattr(clustering, "CLUSTERED_FILE_BYTES", 100_000)
    table = wh.create_table("t", COLUMNS)
    table.append(rows_of(0, 100_000))
    tier(table)
    table.lake.optimize("b")
    sizes = table.lake.files()["file_size_in_bytes"].to_pylist()
    assert len(sizes) > 5
    assert all(60_000 < size < 220_000 for size in sizes)  # the footers hold offsets as well


def test_files_have_footers_with_checksums(table):
    table.lake.optimize("a")
    lake = table.open_lake()
    paths = table.lake.files()["file_path"].to_pylist()
    assert all(
        parse_clustered_file_name(path) and has_whole_footer(lake.binding.files_at(path), path) for path in paths
    )


def test_deleted_rows_are_left_behind(wh, table):
    table.delete(where=[("a", "<", 100)])
    tier(table)
    rows = lake_rows(table)
    assert rows.num_rows < ROUNDS * ROWS
    report = table.lake.optimize("a")
    assert (report.rows, report.purged_rows) == (rows.num_rows, ROUNDS * ROWS - rows.num_rows)
    assert lake_rows(table) == rows == table.to_arrow().sort_by("id")
    table.delete(where=[("a", "=", 500)])  # of rows in clustered files
    tier(table)
    assert lake_rows(table) == rows.filter(pc.fill_null(pc.not_equal(rows["a"], 500), True))


def test_compaction_leaves_clusters_alone_and_joins_what_comes_after(table):
    table.lake.optimize("a")
    files = set(table.lake.files()["file_path"].to_pylist())
    for turn in range(ROUNDS, ROUNDS + 6):
        table.append(rows_of(turn, 5))
        tier(table)
    rows = lake_rows(table)
    assert table.lake.compact().files_removed == 6
    assert files < set(table.lake.files()["file_path"].to_pylist())
    assert lake_rows(table) == rows


def test_rows_that_were_deleted_meanwhile_stay_deleted(table, monkeypatch):
    written = clustering.write_cluster

    def late(*args):
        added = written(*args)
        monkeypatch.undo()
        table.delete(where=[("a", "=", 500)])
        tier(table)
        return added

    monkeypatch.setattr("streamhouse_spark.lake.iceberg.compaction.write_cluster", late)
    with pytest.raises(CommitConflictError, match="rows were deleted during the compaction"):
        table.lake.optimize("a")
    assert 500 not in table.lake.to_arrow()["a"].to_pylist()


def test_rows_that_were_tiered_meanwhile_are_there(table, monkeypatch):
    written = clustering.write_cluster

    def late(*args):
        added = written(*args)
        table.append(rows_of(ROUNDS))
        tier(table)
        return added

    monkeypatch.setattr("streamhouse_spark.lake.iceberg.compaction.write_cluster", late)
    lake = table.open_lake()
    lake_maintenance.optimize(table, lake, "a")
    assert by_offset(table)[0] == lake_rows(table)["id"].to_pylist() == list(range(table.to_arrow().num_rows))


def test_others_write_the_groups_and_some_of_them_twice(wh):
    table = filled(wh, buckets=2, properties={"bucket.key": "id"})
    rows, offsets, asked = lake_rows(table), by_offset(table), []

    def run(groups, writer):
        found = []
        for text in [pickle.dumps((group, writer)) for group in groups]:
            for _ in range(2):  # an attempt whose answer is lost, and another one
                group, elsewhere = pickle.loads(text)
                written = elsewhere.write_group(group, table.storage, table.settings, table.world)
            found.append(written)
            asked.append(group.num_rows)
        return found

    report = lake_maintenance.optimize(table, table.open_lake(), "a", run=run)
    assert sum(asked) == report.rows == ROUNDS * ROWS
    assert len(asked) == 2
    assert lake_rows(table) == rows
    assert by_offset(table) == offsets
    assert lake_maintenance.optimize(table, table.open_lake(), "a", run=run) == CompactReport()


def test_nothing_is_committed_where_others_fail(table):
    before = table.lake.newest()

    def run(groups, writer):
        writer.write_group(groups[0], table.storage, table.settings, table.world)
        raise OSError("cancelled")

    with pytest.raises(OSError, match="cancelled"):
        lake_maintenance.optimize(table, table.open_lake(), "a", run=run)
    with pytest.raises(CommitConflictError, match="0 of 1 file groups were rewritten"):
        lake_maintenance.optimize(table, table.open_lake(), "a", run=lambda groups, writer: [])
    assert table.lake.newest() == before


def test_a_large_table_is_clustered_in_several_commits(wh, monkeypatch):
    monkeypatch.setattr(clustering, "CLUSTER_ROWS_MAX", 2 * ROWS)
    monkeypatch.setattr("streamhouse_spark.lake.parquet.compaction.COMPACT_BYTES_MAX", 1)
    table = filled(wh)
    snapshots = table.lake.snapshots().num_rows
    assert table.lake.optimize("a", dry_run=True).rows == ROUNDS * ROWS
    assert table.lake.optimize("a").rows == ROUNDS * ROWS
    assert table.lake.snapshots().num_rows == snapshots + 3
    assert by_offset(table) == {0: list(range(ROUNDS * ROWS))}


def test_optimizing_an_absent_or_empty_lake_does_nothing(wh):
    table = wh.create_table("t", COLUMNS)
    assert table.lake.optimize("a", filter=[("a", "=", 1)]) == CompactReport()
    tier(table)
    assert table.lake.optimize("a") == CompactReport()


@pytest.mark.parametrize(
    ("order", "error", "says"),
    [
        ("", InvalidOptionError, "has 0 columns"),
        ("a DESC", InvalidOptionError, "has a direction"),
        ("zorder()", InvalidOptionError, "expected a, b or zorder"),
        ("a, a", InvalidOptionError, "is repeated"),
        ("a, zorder(b, a)", InvalidOptionError, "is repeated"),
        ("nope", SchemaMismatchError, "nope"),
        ("zorder(a, nope)", SchemaMismatchError, "nope"),
    ],
)
def test_orders_that_cannot_be(table, order, error, says):
    before = table.lake.newest()
    with pytest.raises(error, match=says):
        table.lake.optimize(order)
    assert table.lake.newest() == before


def test_columns_without_an_order(wh):
    table = wh.create_table("t", "id BIGINT, s STRUCT<x: INT>, l ARRAY<INT>")
    for name in "s", "l":
        with pytest.raises(InvalidOptionError, match=r"has type .*, which has no order"):
            table.lake.optimize(name)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({"primary_key": ["id"]}, "has a primary key"),
        ({"properties": {"table.datalake.format": "paimon"}}, "has a Paimon lake"),
    ],
)
def test_lakes_that_are_laid_out_otherwise(wh, shape, says):
    table = wh.create_table("t", "id BIGINT NOT NULL, a INT", **shape)
    with pytest.raises(InvalidOptionError, match=says):
        table.lake.optimize("a")
