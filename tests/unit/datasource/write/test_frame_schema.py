"""``mergeSchema``: columns that a frame has and the table lacks, by the writers as Spark drives them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse_spark import InvalidOptionError, SchemaMismatchError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_write_options, parse_write_options
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.write.frame_schema import merge_columns, merge_frame_columns
from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter, StreamhouseWriter
from streamhouse_spark.schema.ddl import parse_columns
from streamhouse_spark.warehouse.process_cache import Connection

MERGE = {"mergeschema": "true"}


@pytest.fixture
def connection(tmp_path, own_cache):
    found = Connection.of(str(tmp_path / "wh"), {})
    found.warehouse().create_database("d")
    return found


@pytest.fixture
def table(connection):
    return connection.warehouse().create_table("d.t", "id INT NOT NULL, name STRING")


@pytest.fixture
def keyed(connection):
    return connection.warehouse().create_table("d.k", "id INT NOT NULL, name STRING", primary_key=["id"])


def frame(ddl):
    columns = parse_columns(ddl)
    found = spark_versions.spark_schema_of(pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in columns]))
    for field, column in zip(found.fields, columns, strict=True):
        field.metadata = {"comment": column.comment} if column.comment else {}
    return found


def write(connection, name, ddl, rows, *, overwrite=False, **options):
    schema = frame(ddl)
    writer = StreamhouseWriter(connection, name, parse_write_options(MERGE | options), schema, overwrite=overwrite)
    batch = pa.RecordBatch.from_pylist(rows, spark_versions.arrow_schema_of(schema))
    writer.commit([writer.write(iter([batch]))])


def test_columns_are_added_once_nullable_and_last(connection, table):
    for number in range(2):
        write(connection, "d.t", "ID INT, n INT NOT NULL, note STRING COMMENT 'why'", [{"ID": 1, "n": 2, "note": "x"}])
        state = table.refresh()
        assert state.schema.ddl() == "id INT NOT NULL, name STRING, n INT, note STRING COMMENT 'why'"
        assert len(state.schemas) == 2
        assert state.version == 3 + number
    assert table.to_arrow().to_pylist() == [{"id": 1, "name": None, "n": 2, "note": "x"}] * 2
    write(connection, "d.t", "id INT NOT NULL, more DOUBLE", [{"id": 3, "more": 0.5}], overwrite=True)
    assert table.to_arrow().to_pylist() == [{"id": 3, "name": None, "n": None, "note": None, "more": 0.5}]


def test_a_stream_adds_them_too(connection, table):
    schema, options = frame("id INT NOT NULL, note STRING"), parse_stream_write_options(MERGE | {"txnappid": "q"})
    for batch in (0, 1, 1):
        writer = StreamhouseStreamWriter(connection, "d.t", options, None, schema)
        rows = pa.RecordBatch.from_pylist([{"id": batch, "note": "x"}], spark_versions.arrow_schema_of(schema))
        writer.commit([writer.write(iter([rows]))], batch)
    assert table.to_arrow().to_pylist() == [{"id": i, "name": None, "note": "x"} for i in range(2)]
    assert len(table.refresh().schemas) == 2


def test_merged_columns_are_upserted_by_key(connection, keyed):
    write(connection, "d.k", "id INT NOT NULL, op STRING, n INT", [{"id": 1, "op": "c", "n": 5}], rowkindcolumn="OP")
    write(connection, "d.k", "id INT NOT NULL, note STRING", [{"id": 1, "note": "x"}], partialupdate="true")
    assert keyed.refresh().schema.names == ("id", "name", "n", "note")
    assert keyed.to_arrow().to_pylist() == [{"id": 1, "name": None, "n": 5, "note": "x"}]


def test_writers_at_once_add_each_column_once(memory, world):
    """Each knows the table only as it was before any of them."""
    made = Warehouse("wh", storage=memory, world=world).create_table("t", "id INT")
    frames = [frame("id INT, a INT, b STRING"), frame("id INT, b STRING, c INT"), frame("id INT, A INT")]
    opened = [Warehouse("wh", storage=memory, world=world).table("t") for _ in frames]
    for table, given in zip(opened, frames, strict=True):
        merge_columns(table, given, None)
    assert made.refresh().schema.ddl() == "id INT, a INT, b STRING, c INT"
    assert made.state.version == 3


def test_what_is_tried_before_is_not_taken_for_what_another_writer_adds(connection, keyed):
    table = connection.table("d.k")
    tried = merge_frame_columns(table, frame("id INT NOT NULL, a INT"), None)
    table.keyed.require_partial(("a",), tried)
    connection.warehouse().table("d.k").add_columns("b INT")
    assert table.refresh().schema_id == tried.schema_id
    assert table.keyed.keyed_schema().schema.names == ("id", "name", "b")


@pytest.mark.parametrize(
    ("ddl", "options", "says"),
    [
        ("id STRING, new INT", {}, "column 'id' of d.t"),
        ("name STRING, new INT", {}, "column 'id' of d.t is NOT NULL and missing"),
        ("id INT NOT NULL, new INT, _bucket INT", {}, "'_bucket' is reserved"),
        ("id INT NOT NULL, new INT, New INT", {}, "expected names that differ"),
        ("id INT NOT NULL, new INT, title STRING", {}, "'title' of the rows is not in d.t: it was renamed to 'name'"),
        ("id INT NOT NULL, new INT, gone STRING", {}, "'gone' of the rows is not in d.t: it was dropped; mergeSchema"),
    ],
)
def test_what_cannot_be_written_adds_nothing(connection, ddl, options, says):
    table = connection.warehouse().create_table("d.t", "id INT NOT NULL, title STRING, gone INT")
    table.alter(rename_columns={"title": "name"}, drop_columns=["gone"])
    version = table.refresh().version
    with pytest.raises(SchemaMismatchError, match=says):
        write(connection, "d.t", ddl, [], **options)
    assert table.refresh().version == version


def test_options_that_cannot_be_add_nothing(connection, table, keyed):
    for name, given in (("d.t", {"rowkindcolumn": "op"}), ("d.k", {"rowkindcolumn": "op"})):
        with pytest.raises(InvalidOptionError):
            write(connection, name, "id INT NOT NULL, op STRING, n INT", [], overwrite=name == "d.k", **given)
    assert (table.refresh().version, keyed.refresh().version) == (1, 1)


def test_another_type_meanwhile_is_refused(connection, table):
    table.add_columns("n STRING")
    with pytest.raises(SchemaMismatchError, match=r"column 'n' of d\.t"):
        write(connection, "d.t", "id INT NOT NULL, n INT", [])


def test_without_it_the_error_says_how_a_column_is_added(connection, table):
    with pytest.raises(
        SchemaMismatchError, match=r"add_columns\(…\), ALTER TABLE … ADD COLUMN, or Spark's write option merge"
    ):
        write(connection, "d.t", "id INT NOT NULL, n INT", [], mergeschema="false")
    with pytest.raises(SchemaMismatchError, match=r"is not in d\.t; "):
        table.append([{"id": 1, "n": 1}])


class TestInside:
    def test_fields_inside_columns_are_added_before_the_rows(self, connection):
        table = connection.warehouse().create_table("d.s", "id INT, s STRUCT<a: INT>, r ARRAY<STRUCT<x: INT>>")
        table.append([{"id": 1, "s": {"a": 1}, "r": [{"x": 1}]}])
        ddl = "id INT, s STRUCT<b: INT, A: INT, t: STRUCT<u: STRING>>, r ARRAY<STRUCT<y: INT>>, m INT"
        row = {"id": 2, "s": {"b": 2, "A": 3, "t": {"u": "u"}}, "r": [{"y": 4}], "m": 5}
        table.refresh()
        for _ in range(2):
            merge_columns(table, frame(ddl), None)
            assert len(table.refresh().schemas) == 2
        table.append([{**row, "s": {"b": 2, "a": 3, "t": {"u": "u"}}}])
        assert table.to_arrow().to_pylist() == [
            {"id": 1, "s": {"a": 1, "b": None, "t": None}, "r": [{"x": 1, "y": None}], "m": None},
            {"id": 2, "s": {"a": 3, "b": 2, "t": {"u": "u"}}, "r": [{"x": None, "y": 4}], "m": 5},
        ]

    def test_a_write_that_only_has_more_fields_inside(self, connection):
        table = connection.warehouse().create_table("d.s", "id INT, s STRUCT<a: INT>")
        write(connection, "d.s", "id INT, s STRUCT<a: INT, b: INT>", [{"id": 1, "s": {"a": 1, "b": 2}}])
        assert table.to_arrow().to_pylist() == [{"id": 1, "s": {"a": 1, "b": 2}}]

    @pytest.mark.parametrize("renamed", [False, True], ids=["dropped", "dropped, and its struct renamed"])
    def test_no_field_is_added_under_a_name_that_one_had_before(self, connection, renamed):
        table = connection.warehouse().create_table("d.s", "id INT, s STRUCT<a: INT, p: STRUCT<x: INT, y: INT>>")
        table.drop_column("s.p.x")
        struct = "q" if renamed else "p"
        if renamed:
            table.rename_column("s.p", "q")
        with pytest.raises(
            SchemaMismatchError, match=rf"field 's\.{struct}\.x' of the rows .* had a field with this name"
        ):
            merge_columns(table, frame(f"id INT, s STRUCT<{struct}: STRUCT<x: INT>>"), None)
        merge_columns(table, frame(f"id INT, s STRUCT<{struct}: STRUCT<z: INT>>"), None)
