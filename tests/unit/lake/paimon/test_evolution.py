"""Reads and merges of a Paimon lake whose columns and nested fields changed, with files of every schema and writer."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory
from pypaimon.schema.data_types import PyarrowFieldParser

from interop.keyed_cases import read_by_pypaimon
from kit.lake_rows import lake_rows
from kit.tables import tier
from streamhouse_spark import LakeMismatchError
from streamhouse_spark.lake.paimon.schema import nested_field_ids
from streamhouse_spark.lake.types import LakeSplit
from unit.lake.filters_of_reads import filter_of
from unit.lake.lake_schemas import SCHEMAS, rows_of
from unit.table.test_nested_column_changes import COLUMNS, s_of

NAME = "sales.orders"
PAIMON = {"table.datalake.format": "paimon"}
BIG = 2**40


@pytest.fixture
def table(wh):
    columns = "id bigint, a string, b string, n int"
    return wh.create_table(NAME, columns, buckets=2, properties={"bucket.key": "id", **PAIMON})


@pytest.fixture
def keyed(wh, own_cache):
    columns = "id int not null, a string, b string, n int"
    return wh.create_table("sales.people", columns, primary_key=["id"], buckets=1, properties=PAIMON)


def lake_of(table):
    return SCHEMAS["paimon"].lake_of(table)


def read_everywhere(table) -> list[tuple]:
    return SCHEMAS["paimon"].read(table)


def append_by_pypaimon(table, row: dict) -> None:
    """As a stock writer appends, from a copy on a disk: what it made there is brought back."""
    with tempfile.TemporaryDirectory() as folder:
        here = {info.key for info in table.storage.list("lake/")}
        for key in here:
            Path(folder, key).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, key).write_bytes(table.storage.read(key))
        paimon = CatalogFactory.create({"warehouse": f"{folder}/lake"}).get_table(table.name)
        builder = paimon.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        schema = PyarrowFieldParser.from_paimon_schema(paimon.table_schema.fields)
        write.write_arrow(pa.Table.from_pylist([row], schema=schema))
        commit.commit(write.prepare_commit())
        for path in Path(folder).rglob("*"):
            key = str(path.relative_to(folder))
            if path.is_file() and key not in here:
                table.storage.put(key, path.read_bytes())


class TestMaps:
    def test_what_names_columns_follows_them(self, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        table.rename_column("id", "key")
        tier(table)
        assert lake_of(table).options["bucket-key"] == "key"
        table.append([{"key": 2, "a": "y"}])
        tier(table)
        assert read_everywhere(table) == [(1, "x", None, None), (2, "y", None, None)]

    def test_the_highest_field_is_never_given_again(self, table):
        table.append([{"id": 1, "n": 7}])
        tier(table)
        table.drop_column("n")
        tier(table)
        SCHEMAS["paimon"].alter(table, lambda schema: schema.update(highestFieldId=2))  # as who counts what is left
        table.add_columns("n int")
        tier(table)
        assert SCHEMAS["paimon"].fields_of(table)["n"] == 4
        assert read_everywhere(table) == [(1, None, None, None)]


class TestReading:
    @pytest.mark.parametrize(
        ("before", "after", "low"),
        [
            ("tinyint", "smallint", -128), ("tinyint", "bigint", -128), ("smallint", "int", -(2**15)),
            ("int", "bigint", -(2**31)), ("float", "double", -1.5), ("decimal(9,2)", "decimal(20,2)", None),
        ],
    )  # fmt: skip
    def test_files_of_narrower_types_are_read_as_wider_ones(self, wh, before, after, low):
        table = wh.create_table("sales.t", f"id int, v {before}", properties=PAIMON)
        table.append([{"id": 1, "v": low}, {"id": 2, "v": 3}])
        tier(table)
        table.widen_column("v", after)
        three = pa.scalar(3, pa.int8())
        for _ in ("by the older schema", "by the newer one"):
            found = table.lake.to_arrow(filter=pa.compute.field("v") == three.cast(table.schema.field("v").type))
            assert found["id"].to_pylist() == [2]
            tier(table)
        table.append([{"id": 3, "v": 4}])
        tier(table)
        assert [row[0] for row in read_everywhere(table)] == [1, 2, 3]
        assert table.lake.to_arrow()["v"].type == table.schema.field("v").type

    def test_statistics_leave_out_files_by_what_columns_are_now(self, table):
        """A name that is another's now, and a bound of a narrower type, would leave out the wrong files."""
        for number in (1, 5):
            table.append([{"id": 1, "a": f"a{number}", "b": f"b{number}", "n": number}])
            tier(table)
        table.alter(rename_columns={"a": "b", "b": "a"}, widen_columns={"n": "bigint"})
        for _ in ("before", "after"):
            for asked, num_files in (
                ([("b", "=", "a1")], 1), ([("a", "=", "b5")], 1), ([("a", "=", "a1")], 0),
                ([("N", ">", 4)], 1), ([("n", ">", BIG)], 0), ([("n", "<", BIG)], 2),
            ):  # fmt: skip
                lake = table.open_lake()
                schema = table.refresh().schema
                plan = lake.plan_read(node=filter_of(schema, *asked), schema=schema)
                assert len(plan.splits) == num_files, asked
            tier(table)
        table.append([{"id": 1, "a": "b9", "b": "a9", "n": BIG + 1}])
        tier(table)
        plan = table.open_lake().plan_read(
            node=filter_of(table.state.schema, ("n", ">", BIG)), schema=table.state.schema
        )
        assert len(plan.splits) == 1
        table.drop_column("n")
        table.add_columns("n int")
        tier(table)
        plan = table.open_lake().plan_read(
            node=filter_of(table.state.schema, ("n", "=", 77)), schema=table.state.schema
        )
        assert len(plan.splits) == 3, "nothing is known of another column of that name"

    def test_other_readers_take_only_columns_that_never_changed_by_name(self, table):
        table.append([{"id": 1, "a": "a", "b": "b", "n": 1}])
        tier(table)
        table.alter(rename_columns={"a": "c"}, drop_columns=["b"], widen_columns={"n": "bigint"}, add_columns="d int")
        table.add_columns("b string")
        for _ in range(2):
            state = table.refresh()
            scan = table.open_lake().scan_files(
                snapshot_id=state.lake.snapshot_id, columns=state.schema.names, schema=state.schema
            )
            assert scan.readable_by_name == {"id", "d"}
            tier(table)

    def test_files_without_field_ids_are_read_by_their_schema(self, table):
        table.append([{"id": 1, "a": "a1", "b": "b1", "n": 1}])
        tier(table)
        append_by_pypaimon(table, {"id": 2, "a": "a2", "b": "b2", "n": 2})
        table.alter(rename_columns={"a": "b", "b": "a"}, widen_columns={"n": "bigint"})
        table.alter(drop_columns=["n"], add_columns="m int")
        table.rename_column("m", "n")
        expected = [(1, "a1", "b1", None), (2, "a2", "b2", None)]
        for _ in ("before", "after"):
            assert rows_of(table.lake.to_arrow(columns=["id", "b", "a", "n"])) == expected
            tier(table)
        append_by_pypaimon(table, {"id": 3, "a": "a3", "b": "b3", "n": 3})
        assert read_everywhere(table) == [*expected, (3, "b3", "a3", 3)]

    def test_older_snapshots_are_read_in_their_own_columns(self, table):
        table.append([{"id": 1, "a": "x", "n": 1}])
        tier(table)
        lake, snapshot = table.open_lake(), table.refresh().lake.snapshot_id
        table.alter(rename_columns={"a": "c"}, drop_columns=["n"], add_columns="a int")
        table.append([{"id": 2, "c": "y", "a": 5}])
        tier(table)
        lake = table.open_lake()
        own = lake_rows(lake, lake.plan_read(snapshot_id=snapshot))
        assert own.to_pylist() == [{"id": 1, "a": "x", "b": None, "n": 1}]
        newest = lake_rows(lake, lake.plan_read(snapshot_id=snapshot, schema=table.state.schema))
        assert newest.to_pylist() == [{"id": 1, "c": "x", "b": None, "a": None}]

    def test_metadata_tables_know_files_of_every_schema(self, table):
        table.append([{"id": 1, "a": "x", "n": 1}])
        tier(table)
        table.alter(rename_columns={"a": "n", "n": "a"}, drop_columns=["b"], widen_columns={"n": "bigint"})
        table.append([{"id": 2, "n": "y", "a": BIG}])
        tier(table)
        lake = table.open_lake()
        assert sorted(lake.metadata_table("files")["schema_id"].to_pylist()) == [0, 1]
        assert lake.metadata_table("schemas").num_rows == 2


class TestKeyed:
    def test_rows_of_several_schemas_are_merged_by_the_key(self, keyed):
        keyed.upsert([{"id": i, "a": f"a{i}", "b": f"b{i}", "n": i} for i in range(4)])
        tier(keyed)
        keyed.alter(rename_columns={"id": "a", "a": "id"}, widen_columns={"n": "bigint"}, drop_columns=["b"])
        expected = [(0, "a0", 0), (1, "a1", 1), (2, "a2", 2), (3, "a3", 3)]
        for _ in ("before", "after"):
            assert rows_of(keyed.lake.to_arrow(columns=["a", "id", "n"])) == expected
            tier(keyed)
        assert lake_of(keyed).primary_keys == ["a"]
        keyed.upsert([{"a": 1, "id": "new", "n": BIG}])
        keyed.delete([{"a": 2}])
        tier(keyed)
        expected = [(0, "a0", 0), (1, "new", BIG), (3, "a3", 3)]
        assert read_everywhere(keyed) == expected
        lake = keyed.open_lake()
        found = lake_rows(lake, lake.plan_read(columns=["id", "n"], schema=keyed.refresh().schema))
        assert rows_of(found) == [("a0", 0), ("a3", 3), ("new", BIG)], "merged by a key that is not asked for"
        assert lake.compact().files_removed > 1
        assert read_everywhere(keyed) == expected
        assert {row["schema_id"] for row in lake.metadata_table("files").to_pylist()} == {1}

    def test_files_of_a_writer_without_field_ids_are_merged_too(self, keyed):
        keyed.upsert([{"id": i, "a": f"a{i}", "b": "b", "n": i} for i in range(3)])
        tier(keyed)
        append_by_pypaimon(keyed, {"id": 1, "a": "theirs", "b": "b", "n": 9})
        keyed.alter(rename_columns={"id": "n", "n": "a", "a": "id"}, widen_columns={"n": "bigint"})
        expected = [(0, "a0", 0), (1, "theirs", 9), (2, "a2", 2)]
        for _ in ("before", "after"):
            assert rows_of(keyed.lake.to_arrow(columns=["n", "id", "a"])) == expected
            without_the_key = rows_of(keyed.lake.to_arrow(columns=["id", "a"]))
            assert without_the_key == sorted(row[1:] for row in expected), "another column has the key's older name"
            tier(keyed)
        lake = keyed.open_lake()
        splits = lake.plan_read(schema=keyed.refresh().schema).splits
        shipped = [LakeSplit.from_json(json.loads(json.dumps(split.to_json()))) for split in splits]
        assert tuple(shipped) == splits
        assert any(file.field_names for split in splits if split.merge for file in split.merge.files)
        assert lake.compact().files_removed == 2
        assert [(row[0], row[1], row[3]) for row in read_everywhere(keyed)] == expected

    def test_compaction_before_the_lake_follows(self, keyed):
        for number in (1, 2):
            keyed.upsert([{"id": 1, "a": f"a{number}", "n": number}])
            tier(keyed)
        keyed.alter(rename_columns={"a": "b", "b": "a", "id": "key"}, widen_columns={"n": "bigint"})
        keyed.refresh()
        assert keyed.open_lake().compact().files_removed == 2
        assert rows_of(keyed.lake.to_arrow(columns=["key", "b", "a", "n"])) == [(1, "a2", None, 2)]
        tier(keyed)
        assert read_everywhere(keyed) == [(1, "a2", None, 2)]


@pytest.fixture
def nested_table(wh):
    return wh.create_table(NAME, COLUMNS, properties={"table.datalake.format": "paimon"})


def test_names_that_swap_and_fields_that_come_back(nested_table):
    nested_table.append([{"id": 1, "s": {"a": 1, "b": "x"}, "m": {"k": {"v": 1}}}])
    tier(nested_table)
    nested_table.alter(rename_columns={"s.a": "b", "s.b": "a"}, widen_columns={"s.a": "bigint", "m.value.v": "bigint"})
    nested_table.drop_column("s.a")
    nested_table.add_columns("s.a STRING, s.t struct<u:int>")
    nested_table.append([{"id": 2, "s": {"b": 2**40, "a": "new", "t": {"u": 3}}}])
    expected = [{"b": 1, "a": None, "t": None}, {"b": 2**40, "a": "new", "t": {"u": 3}}]
    for _ in range(2):
        assert s_of(nested_table.to_arrow()) == expected
        tier(nested_table)
    assert s_of(nested_table.lake.to_arrow()) == s_of(read_by_pypaimon(nested_table.storage, NAME)) == expected
    nested_table.lake.compact()
    assert s_of(nested_table.lake.to_arrow()) == s_of(read_by_pypaimon(nested_table.storage, NAME)) == expected


def test_own_files_without_ids_inside_are_from_before_the_first_change(nested_table, monkeypatch):
    """Older versions wrote the ids of the columns alone."""
    with monkeypatch.context() as older:
        older.setattr("streamhouse_spark.lake.paimon.schema._file_type", PyarrowFieldParser.from_paimon_type)
        nested_table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
        tier(nested_table)
    nested_table.drop_column("s.b")
    nested_table.alter(rename_columns={"s.a": "b"}, add_columns="s.a STRING")
    for _ in range(2):
        assert s_of(nested_table.to_arrow()) == [{"b": 1, "a": None}]
        tier(nested_table)


def test_files_of_another_engine_without_ids_are_read_by_the_names_of_their_schema(nested_table):
    nested_table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
    nested_table.alter(rename_columns={"s.a": "b", "s.b": "a"})
    tier(nested_table)
    append_by_pypaimon(nested_table, {"id": 2, "s": {"b": 2, "a": "y"}})
    assert s_of(nested_table.lake.to_arrow()) == [{"b": 1, "a": "x"}, {"b": 2, "a": "y"}]
    nested_table.drop_column("s.a")
    nested_table.rename_column("s.b", "a")
    nested_table.append([{"id": 3, "s": {"a": 3}}])
    tier(nested_table)
    found = s_of(nested_table.lake.to_arrow())
    assert found == s_of(read_by_pypaimon(nested_table.storage, NAME)) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_what_another_engine_changes_inside_is_a_difference(nested_table):
    nested_table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
    nested_table.add_columns("s.c INT")
    tier(nested_table)

    def change(schema):
        next(f for f in schema["fields"] if f["name"] == "s")["type"]["fields"][0]["name"] = "theirs"

    SCHEMAS["paimon"].alter(nested_table, change)
    nested_table.add_columns("s.d INT")
    nested_table.append([{"id": 2, "s": {"a": 2, "d": 2}}])
    with pytest.raises(LakeMismatchError, match=r"'s\.a' .* was renamed to 'theirs' in the lake by"):
        tier(nested_table)
    assert s_of(nested_table.to_arrow()) == [
        {"a": 1, "b": "x", "c": None, "d": None},
        {"a": 2, "b": None, "c": None, "d": 2},
    ]


def test_ids_are_never_given_again(nested_table):
    nested_table.append([{"id": 1}])
    tier(nested_table)
    nested_table.add_columns("s.c INT")
    tier(nested_table)
    first = nested_field_ids(lake_of(nested_table).fields[1].type)
    nested_table.drop_column("s.c")
    tier(nested_table)
    nested_table.add_columns("s.c INT, whole INT")
    tier(nested_table)
    schema = lake_of(nested_table)
    after = nested_field_ids(schema.fields[1].type)
    assert {path for path, _ in first.items() & after.items()} == {("a",), ("b",)}
    assert len({*first.values(), *after.values(), *(field.id for field in schema.fields)}) == 3 + 1 + 5
