"""Names that stand beside a table's columns: no column gets one, and tables from before they were reserved are read."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from kit.tables import tier
from streamhouse_spark import SchemaMismatchError, Table
from streamhouse_spark.datasource.dml.keyed_row_writer import set_key_columns
from streamhouse_spark.datasource.dml.row_changes import KIND, make_row_changes_schema
from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, METADATA_FIELDS
from streamhouse_spark.schema import evolution as schema_evolution
from streamhouse_spark.schema import table_schema as schema
from streamhouse_spark.schema.table_schema import INTERNAL, RESERVED_NAMES
from streamhouse_spark.warehouse import creation

NAMES = ["_found", "_FOUND", "_File", "_pos", "_key_id", "_value_kind", "__streamhouse_read_v", "__Streamhouse_Kind"]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def unreserved() -> Iterator[pytest.MonkeyPatch]:
    """Until it is undone tables are made as they could be made before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "require_unreserved_name", lambda _: None)
        patch.setattr(creation, "require_unreserved_partition_name", lambda _: None)
        yield patch


@pytest.fixture(params=["iceberg", "paimon"])
def older(wh, unreserved, request) -> Table:
    """A table of rows by key with a column `_found`, which was made before that was reserved."""
    table = wh.create_table(
        "t",
        "id bigint, _found string, v bigint",
        primary_key=["id"],
        properties={"table.datalake.format": request.param},
    )
    unreserved.undo()
    table.upsert([{"id": 1, "_found": "mine", "v": 10}])
    tier(table)
    table.upsert([{"id": 2, "_found": "yours", "v": 20}])
    return table


def test_all_names_of_ours_are_reserved():
    for field in (*CHANGELOG_FIELDS, *METADATA_FIELDS):
        assert field.name in RESERVED_NAMES
    assert KIND.startswith(INTERNAL)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", [None, "id"])
def test_no_column_gets_one(wh, name, key):
    keyed = {"primary_key": [key]} if key else {}
    with pytest.raises(SchemaMismatchError, match=f"'{name}' is reserved for .*; rename the column"):
        wh.create_table("refused", f"id bigint, `{name}` int", **keyed)
    table = wh.create_table("t", "id bigint, v int", **keyed)
    before = table.refresh()
    with pytest.raises(SchemaMismatchError, match="is reserved"):
        table.add_columns(f"`{name}` int")
    with pytest.raises(SchemaMismatchError, match="is reserved"):
        table.rename_column("v", name)
    assert table.refresh() == before


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
def test_no_lake_table_with_one_is_adopted(wh, unreserved, lake_format):
    name = "_found" if lake_format == "paimon" else "_pos"
    properties = {"table.datalake.format": lake_format}
    table = wh.create_table("t", f"id bigint, `{name}` int", properties=properties)
    table.append([{"id": 1, name: 5}])
    unreserved.undo()
    tier(table)
    with pytest.raises(SchemaMismatchError, match=f"'{name}' is reserved"):
        creation.make_create_action(table.path, table.state.schema, (), (), None, properties, adopted="none")


@pytest.mark.parametrize("name", ["hot_rows", "LAKE_ROWS", "lake_files", "lake_size_bytes"])
def test_no_table_is_partitioned_by_what_partitions_counts(wh, name):
    with pytest.raises(SchemaMismatchError, match=rf"'{name}' is reserved for a column of \$partitions"):
        wh.create_table("t", f"id bigint, {name} bigint", partition_by=[name])
    table = wh.create_table("t", f"id bigint, {name} bigint")
    table.append([{"id": 1, name: 7}])
    assert table.to_arrow().to_pylist() == [{"id": 1, name: 7}]


def test_an_older_table_with_a_reserved_name_is_read(wh, unreserved):
    table = wh.create_table("t", "id bigint, lake_rows bigint", partition_by=["lake_rows"])
    unreserved.undo()
    table.append([{"id": 1, "lake_rows": 7}])
    assert table.to_arrow().num_rows == 1
    with pytest.raises(SchemaMismatchError, match="adds a column 'lake_rows', and the table has"):
        wh.view("t$partitions").to_arrow()


class TestATableFromBefore:
    ROWS = ({"id": 1, "_found": "mine", "v": 10}, {"id": 2, "_found": "yours", "v": 20})

    def test_it_is_read_and_written(self, wh, older):
        assert sorted(older.to_arrow().to_pylist(), key=lambda row: row["id"]) == list(self.ROWS)
        assert wh.view("t").scan(limit=5).to_arrow().num_rows == 2
        assert wh.view("t$changelog").to_arrow()["_found"].to_pylist() == ["mine", "yours"]
        older.upsert([{"id": 2, "_found": "theirs"}], columns=["_found"])
        older.delete([1])
        tier(older)
        assert older.to_arrow().to_pylist() == [{"id": 2, "_found": "theirs", "v": 20}]
        assert older.lake.to_arrow().to_pylist() == [{"id": 2, "_found": "theirs", "v": 20}]

    def test_a_lookup_says_what_is_wrong_or_leaves_the_column_out(self, older):
        for columns in (None, ["_found"]):
            with pytest.raises(SchemaMismatchError, match=r"a lookup in default.t adds a column '_found'"):
                older.lookup([1], columns=columns)
        assert older.lookup([1, 3], columns=["v"]).to_pylist() == [
            {"id": 1, "v": 10, "_found": True},
            {"id": 3, "v": None, "_found": False},
        ]
        assert older.lookup_one(1) == self.ROWS[0]
        assert older.lookup_one(3) is None
        assert older.prefix_lookup(2).to_pylist() == [self.ROWS[1]]

    def test_one_row_that_only_arrow_can_read(self, older):
        """The column stands in a lookup twice then, and `lookup_one` has the table's."""
        plan = older._lookup_one._get_plan(older.keyed.keyed_schema(), None)
        assert older._lookup_one._lookup_with_arrow(plan, [1], None, None) == self.ROWS[0]
        assert older._lookup_one._lookup_with_arrow(plan, [3], None, None) is None

    def test_renaming_the_column_mends_it(self, older):
        older.rename_column("_found", "was_found")
        assert older.lookup([1]).to_pylist() == [{"id": 1, "was_found": "mine", "v": 10, "_found": True}]


def test_an_update_keeps_a_column_that_begins_as_ours_do(wh, unreserved):
    name = f"{INTERNAL}read_v"
    table = wh.create_table("t", f"id bigint, v bigint, `{name}` bigint", primary_key=["id"])
    arriving = make_row_changes_schema(
        table.state.schema, [table.state.schema.arrow.field(n) for n in table.state.primary_key]
    )
    row = {KIND: "update", f"{INTERNAL}read_id": 1, "id": 1, "v": 2, name: 3}
    staging = KeyedStagingPlan(None, "t", table.uuid, 1, table.state.schema, ("id",), None, KIND, None, False)
    found = set_key_columns(pa.RecordBatch.from_pylist([row], schema=arriving), staging.key, staging.table)
    assert found.to_pylist() == [{KIND: "update", "id": 1, "v": 2, name: 3}]


@pytest.mark.parametrize("name", [KIND, f"{INTERNAL}read_id"])
def test_an_update_of_a_table_with_the_very_name_is_refused(wh, unreserved, name):
    table = wh.create_table("t", f"id bigint, `{name}` bigint", primary_key=["id"])
    with pytest.raises(SchemaMismatchError, match=f"adds a column '{name}', and the table has"):
        make_row_changes_schema(
            table.state.schema, [table.state.schema.arrow.field(n) for n in table.state.primary_key]
        )


def test_the_check_of_renaming_is_the_one_of_creation():
    assert schema_evolution.check_column_name is schema.check_column_name is creation.check_column_name
