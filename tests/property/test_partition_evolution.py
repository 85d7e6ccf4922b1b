"""Any history of writes, rounds, upkeep and changes of the partitioning leaves the rows of a list, for every reader and
every filter, and each file of the lake is where its own spec says that its rows are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import clear_manifest_cache

from kit.tables import tier, trim_tiered
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import Table
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lake.iceberg import drop_partition as lake_drop
from streamhouse_spark.lake.iceberg import evolution
from streamhouse_spark.lake.iceberg.scan import PartitionFilter
from streamhouse_spark.log import data_skipping
from streamhouse_spark.log.segments import writer
from streamhouse_spark.table import drop_partition as table_partitions
from streamhouse_spark.write.auto_compaction import compact_inline_rows

Row = tuple[int, int | None, str | None]
LANDS = ("de", "fr", None)
DAYS = (0, 1, 5, -3, None)
LAYOUTS = (
    (), ("day",), ("land",), ("truncate(2, day)",), ("truncate(4, day)", "land"), ("land", "day"),
    ("truncate(1, land)",),
)  # fmt: skip
IDS = st.integers(0, 11)
ROWS = st.lists(st.tuples(IDS, st.sampled_from(DAYS), st.sampled_from(LANDS)), max_size=4)
LAYOUT = st.sampled_from(LAYOUTS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("layout"), LAYOUT),
        st.tuples(st.just("layout"), LAYOUT),
        st.tuples(st.just("partitions"), ROWS),
        st.tuples(st.just("delete"), IDS),
        st.tuples(st.just("drop"), st.sampled_from(DAYS), st.sampled_from(LANDS)),
        st.tuples(st.just("tier")),
        st.tuples(st.just("tier")),
        st.tuples(st.just("merge")),
        st.tuples(st.just("trim")),
        st.tuples(st.just("compact")),
        st.tuples(st.just("reopen")),
    ),
    max_size=14,
)


def partition_of(row: Row, layout: tuple[str, ...]) -> tuple[Any, ...]:
    _, day, land = row
    values = {
        "day": day,
        "land": land,
        "truncate(2, day)": None if day is None else day - day % 2,
        "truncate(4, day)": None if day is None else day - day % 4,
        "truncate(1, land)": None if land is None else land[:1],
    }
    return tuple(values[field] for field in layout)


def is_of(row: Row, chosen: Mapping[str, Any]) -> bool:
    _, day, land = row
    return all({"day": day, "land": land}[name] == value for name, value in chosen.items())


def as_rows(found: Any) -> list[Row]:
    return sorted(((r["id"], r["day"], r["land"]) for r in found.to_pylist()), key=repr)


def given_rows(rows: list[Row]) -> list[dict[str, Any]]:
    return [{"id": number, "day": day, "land": land} for number, day, land in rows]


def check_reads(table: Table, model: list[Row]) -> None:
    assert as_rows(table.to_arrow()) == sorted(model, key=repr)
    for day in DAYS[:-1]:
        found = as_rows(table.to_arrow(filter=[("day", "=", day)]))
        assert found == sorted((r for r in model if r[1] == day), key=repr), f"day = {day}"
    for land in LANDS:
        wanted = pc.field("land").is_null() if land is None else pc.field("land") == land
        found = as_rows(table.to_arrow(filter=wanted))
        assert found == sorted((r for r in model if r[2] == land), key=repr), f"land = {land}"


def check_lake(table: Table, model: list[Row]) -> None:
    """The lake as Iceberg's own library reads it, and each of its files by its own spec."""
    lake = table.open_lake().binding.find()
    if lake is None:
        assert not model
        return
    assert as_rows(lake.scan().to_arrow()) == sorted(model, key=repr)
    for condition, kept in (("day = 1", lambda r: r[1] == 1), ("land = 'de'", lambda r: r[2] == "de")):
        assert as_rows(lake.scan(row_filter=condition).to_arrow()) == sorted(filter(kept, model), key=repr)
    specs, schema = lake.metadata.specs(), lake.schema()
    fields = [field for spec in specs.values() for field in spec.fields]
    assert len({field.field_id for field in fields}) == len({(f.source_id, str(f.transform)) for f in fields})
    assert len({field.field_id for field in fields}) == len({field.name for field in fields})
    assert all(1000 <= field.field_id <= lake.metadata.last_partition_id for field in fields)
    for task in lake.scan().plan_files():
        with lake.io.new_input(task.file.file_path).open() as stream:
            stored = pq.read_table(stream)
        for place, field in enumerate(specs[task.file.spec_id].fields):
            source = schema.find_field(field.source_id)
            derive = field.transform.transform(source.field_type)
            values = {derive(value) for value in stored.column(source.name).to_pylist()}
            assert values == {task.file.partition[place]}, f"{task.file.file_path}: {field}"


def check(steps: list[tuple[Any, ...]], first: tuple[str, ...] = ("day",)) -> None:
    clear_manifest_cache()  # stores of other runs have manifests of the same names
    storage = new_store()
    table = open_warehouse(storage, 1).create_table(
        "d.t", "id BIGINT, day INT, land STRING", partition_by=list(first), buckets=2,
        properties={"bucket.key": "id"},
    )  # fmt: skip
    model: list[Row] = []
    layout = first
    for number, step in enumerate(steps):
        match step:
            case ("append", rows):
                table.append(given_rows(rows))
                model += rows
            case ("layout", layout):
                table.set_partitioning(list(layout))
            case ("partitions", rows) if layout:
                table.overwrite_partitions(given_rows(rows))
                gone = {partition_of(row, layout) for row in rows}
                model = [row for row in model if partition_of(row, layout) not in gone] + rows
            case ("delete", gone):
                assert table.delete(where=[("id", "=", gone)]) == sum(n == gone for n, _, _ in model)
                model = [row for row in model if row[0] != gone]
            case ("drop", day, land) if table.partition_by:
                chosen = {name: value for name, value in (("day", day), ("land", land)) if name in table.partition_by}
                kept = [r for r in model if not is_of(r, chosen)]
                assert table.drop_partition(chosen).rows == len(model) - len(kept)
                model = kept
            case ("merge",):
                compact_inline_rows(table)
            case ("tier",):
                tier(table)
                check_lake(table, model)
            case ("trim",):
                trim_tiered(table)
            case ("compact",):
                table.lake.compact(purge=True)
            case ("reopen",):
                table = open_warehouse(storage, 2 + number).table("d.t")
        check_reads(table, model)
        assert table.refresh().num_rows == len(model)
    tier(table)
    check_lake(table, model)


@settings(deadline=None, max_examples=12)
@given(steps=STEPS, first=LAYOUT)
def test_log_tables_keep_their_rows_through_changes_of_partitioning(steps, first):
    check(steps, first)


@pytest.mark.long
@settings(deadline=None, max_examples=400)
@given(steps=STEPS, first=LAYOUT)
def test_log_tables_keep_their_rows_through_many_changes_of_partitioning(steps, first):
    check(steps, first)


@pytest.mark.parametrize("examples", [8, pytest.param(150, marks=pytest.mark.long)])
def test_keyed_tables_keep_their_rows_through_changes_of_partitioning(examples):
    @settings(deadline=None, max_examples=examples)
    @given(steps=STEPS, first=LAYOUT)
    def run(steps, first):
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, STREAMHOUSE_CACHE_DIR=cache):
            close_tablets()
            check_with_a_key(steps, first)
            close_tablets()

    run()


def check_with_a_key(steps: list[tuple[Any, ...]], first: tuple[str, ...]) -> None:  # noqa: C901 - a case a step
    clear_manifest_cache()
    storage = new_store()
    table = open_warehouse(storage, 1).create_table(
        "d.t", "id BIGINT, day INT, land STRING, n INT", primary_key=["id", "day", "land"],
        partition_by=list(first), buckets=2,
    )  # fmt: skip
    model: dict[Row, int] = {}
    layout = first
    for number, step in enumerate(steps):
        keys = [(n, day or 0, land or "") for n, day, land in step[1]] if step[0] in ("append", "partitions") else []
        rows = [row | {"n": number} for row in given_rows(keys)]
        match step:
            case ("append", _):
                table.upsert(rows)
            case ("layout", layout):
                table.set_partitioning(list(layout))
            case ("partitions", _) if layout:
                table.overwrite_partitions(rows)
                gone = {partition_of(key, layout) for key in keys}
                model = {key: n for key, n in model.items() if partition_of(key, layout) not in gone}
            case ("partitions", _):
                keys = []
            case ("delete", gone):
                table.delete([(gone, 0, "de")])
                model.pop((gone, 0, "de"), None)
            case ("drop", day, land) if table.partition_by:
                given = {"day": day or 0, "land": land or ""}
                chosen = {name: value for name, value in given.items() if name in table.partition_by}
                kept = {key: n for key, n in model.items() if not is_of(key, chosen)}
                assert table.drop_partition(chosen).rows == len(model) - len(kept)
                model = kept
            case ("merge",):
                compact_inline_rows(table)
            case ("tier",):
                tier(table)
                check_lake(table, list(model))
            case ("trim",):
                pass
            case ("compact",):
                table.lake.compact(purge=True)
            case ("reopen",):
                close_tablets()
                table = open_warehouse(storage, 2 + number).table("d.t")
        model |= dict.fromkeys(keys, number)
        found = table.to_arrow()
        assert sorted(((*key, n) for key, n in model.items()), key=repr) == sorted(
            ((r["id"], r["day"], r["land"], r["n"]) for r in found.to_pylist()), key=repr
        )
        for day in DAYS[:-1]:
            assert as_rows(table.to_arrow(filter=[("day", "=", day)])) == sorted(
                (key for key in model if key[1] == day), key=repr
            )


# -- planted bugs: the checks above find them --------------------------------------------------------------------------

MIXED: list[Row] = [(1, 0, "de"), (2, 1, "fr"), (3, 5, None), (4, 1, "de")]
HISTORY = [
    ("append", MIXED), ("merge",), ("tier",), ("layout", ("land",)), ("append", [(5, 1, "fr"), (6, 5, "de")]),
    ("tier",), ("append", [(7, 1, "fr")]), ("layout", ("truncate(2, day)",)), ("tier",),
]  # fmt: skip


@contextmanager
def patched(*patches: tuple[object, str, object]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for holder, name, value in patches:
            patch.setattr(holder, name, value)
        yield


@pytest.mark.long
def test_no_bug_is_found_where_none_is():
    check(HISTORY)
    check([("append", MIXED), ("layout", ("day",))], ("id",))
    check([("append", MIXED), ("layout", ("id",)), ("merge",)])
    check([("append", [(1, 0, "a"), (2, 1, "b")]), ("tier",), ("layout", ("land",)), ("drop", None, "b")], ())


def test_files_that_are_left_out_by_the_newest_spec():
    right = PartitionFilter.__init__

    def by_the_newest(self: PartitionFilter, node: Any, names: Any, schema: Any, metadata: Any, buckets: Any) -> None:
        right(self, node, names, schema, metadata, buckets)
        newest = metadata.spec()
        self._specs = {i: newest if len(newest.fields) == len(spec.fields) else spec for i, spec in self._specs.items()}

    with (
        patched((PartitionFilter, "__init__", by_the_newest)),
        pytest.raises((AssertionError, TypeError, ValueError), match=r"^(?!.*positional argument)"),
    ):
        check(HISTORY)


def test_segments_that_are_left_out_by_the_newest_columns():
    with (
        patched((data_skipping, "partition_columns_at", lambda _former, now, _schema_id: now)),
        pytest.raises(AssertionError),
    ):
        check([("append", MIXED), ("layout", ("day",))], ("id",))


def test_merged_segments_that_take_the_newest_columns():
    with patched((writer, "partition_columns_at", lambda _former, now, _schema_id: now)), pytest.raises(AssertionError):
        check([("append", MIXED), ("layout", ("id",)), ("merge",)])


@pytest.mark.long
def test_a_field_that_takes_the_id_of_another():
    with patched((evolution, "_last_field_id", lambda _metadata: 999)), pytest.raises(AssertionError):
        check(HISTORY)


@pytest.mark.long
def test_files_that_are_dropped_whole_by_the_newest_spec():
    def by_the_newest(file: Any, spec: Any, schema: Any) -> dict[str, object]:
        return {"land": file.partition[0]}

    def whole(table: Table, chosen: Any) -> table_partitions.DropPartitionReport:
        return table_partitions._drop_from_lake(table, table.refresh().ends, chosen)

    plants = ((table_partitions, "_delete_by_offset", whole), (lake_drop, "_partition_values", by_the_newest))
    with patched(*plants), pytest.raises(AssertionError):
        check([("append", [(1, 0, "a"), (2, 1, "b")]), ("tier",), ("layout", ("land",)), ("drop", None, "b")], ())
