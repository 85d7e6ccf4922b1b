"""Generated columns of rows that the writers take as Spark drives them: batches, streams, by key, replaced parts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kit.rows import sorted_tuples
from streamhouse_spark import ConstraintViolatedError, InvalidOptionError
from streamhouse_spark.config.spark_options import parse_stream_write_options, parse_write_options
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.write.replaced_part import ReplacedPart
from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter, StreamhouseWriter
from streamhouse_spark.schema.ddl import parse_columns
from streamhouse_spark.warehouse.process_cache import Connection

SUM = {"table.generated.s": "a + b"}


@pytest.fixture
def connection(tmp_path, own_cache):
    found = Connection.of(str(tmp_path / "wh"), {})
    found.warehouse().create_database("d")
    return found


def frame(ddl):
    return spark_versions.spark_schema_of(pa.schema([pa.field(c.name, c.type) for c in parse_columns(ddl)]))


def write(connection, name, ddl, rows, *, batch=None, replaced=None, **options):
    schema = frame(ddl)
    if batch is None:
        writer = StreamhouseWriter(connection, name, parse_write_options(options), schema, replaced=replaced)
    else:
        given = parse_stream_write_options({"txnappid": "q", **options})
        writer = StreamhouseStreamWriter(connection, name, given, None, schema)
    rows = pa.RecordBatch.from_pylist(rows, spark_versions.arrow_schema_of(schema))
    messages = [writer.write(iter([rows]))]
    writer.commit(messages, *(() if batch is None else (batch,)))


def test_of_a_table_without_a_key(connection):
    table = connection.warehouse().create_table(
        "d.t", "id INT, a INT, b INT, s INT", partition_by=["s"], properties=SUM
    )
    write(connection, "d.t", "id INT, b INT, a INT", [{"id": 1, "a": 1, "b": 1}])
    for batch in (0, 0, 1):
        write(connection, "d.t", "id INT, a INT, b INT, s INT", [{"id": 2 + batch, "a": 2, "b": batch}], batch=batch)
    assert sorted_tuples(table) == [(1, 1, 1, 2), (2, 2, 0, 2), (3, 2, 1, 3)]
    write(connection, "d.t", "id INT, a INT, b INT", [{"id": 9, "a": 2, "b": 0}], replaced=ReplacedPart())
    assert sorted_tuples(table) == [(3, 2, 1, 3), (9, 2, 0, 2)], "the partition of the computed value"
    with pytest.raises(ConstraintViolatedError, match=r"'s' than a \+ b, such as 7, expected 2"):
        write(connection, "d.t", "a INT, b INT, s INT", [{"a": 1, "b": 1, "s": 7}], batch=5)


def test_of_a_table_by_key(connection):
    table = connection.warehouse().create_table(
        "d.k", "id INT NOT NULL, a INT, b INT, s INT", primary_key=["id"], properties=SUM
    )
    write(connection, "d.k", "id INT, a INT, b INT", [{"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 1, "b": 1}])
    changes = [{"id": 1, "op": "d"}, {"id": 3, "op": "c", "a": 4, "b": 4}]
    write(connection, "d.k", "id INT, op STRING, a INT, b INT", changes, batch=0, rowkindcolumn="op")
    write(connection, "d.k", "id INT, a INT", [{"id": 2, "a": 9}], partialupdate="true")
    assert sorted_tuples(table) == [(2, 9, 1, 10), (3, 4, 4, 8)]
    with pytest.raises(InvalidOptionError, match="names 's', a generated column"):
        write(connection, "d.k", "id INT, s INT", [{"id": 2, "s": 10}], partialupdate="true")
