"""Any name, text, value and file that reaches the library: an answer, or an error of ours."""

from __future__ import annotations

import io
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.hostile_input import COLUMNS, FEW, MANY, NAMES, damaged, json_values, names, profile, refuses_or_answers, texts
from streamhouse_spark import Warehouse
from streamhouse_spark.expressions.where import parse_where
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.serve.acl import parse_access, parse_tokens
from streamhouse_spark.write.file_readers import CsvOptions, open_rows

EXAMPLES = [FEW, pytest.param(MANY, marks=pytest.mark.long)]
PROPERTIES = ["bucket.num", "bucket.key", "partition.fields", "table.log.ttl", "table.constraint.c", "comment",
              "table.generated.s", "table.identity.id", "table.datalake.format", "table.merge-engine"]  # fmt: skip
ROWS = pa.table({"id": [1, 2], "s": ["a", None], "l": [[1], None], "x": [{"a": 1, "b": "q"}, None]})
values = st.one_of(
    json_values,
    st.binary(max_size=4),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(),
    st.complex_numbers(),
    st.builds(object),
    st.integers(0, 0).map(lambda _: 10**5_000),
    st.lists(st.integers(0, 0).map(lambda _: 10**5_000), max_size=1),
)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    warehouse = Warehouse(str(folder / "wh"))
    warehouse.create_table("s.t", COLUMNS)
    yield warehouse
    assert [path.name for path in folder.iterdir()] == ["wh"]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_name_is_accepted_or_a_typed_error(warehouse, examples):
    @profile(examples)
    @given(names)
    def holds(name):
        for call in (warehouse.table, warehouse.create_database, lambda n: warehouse.view(n).to_arrow()):
            refuses_or_answers(call, name)
        made = refuses_or_answers(warehouse.create_table, name, "id INT", if_not_exists=True)
        if made is not None and made.name != "s.t":
            warehouse.drop_table(name)

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_condition_column_or_property_is_accepted_or_a_typed_error(warehouse, examples):
    table = warehouse.table("s.t")

    @profile(examples)
    @given(texts, st.dictionaries(st.sampled_from(PROPERTIES), st.one_of(texts, values), max_size=2))
    def holds(text, properties):
        where = refuses_or_answers(parse_where, text, table.schema)
        if where is not None:
            refuses_or_answers(table.to_arrow, filter=where)
        refuses_or_answers(TableSchema.of, text)
        if refuses_or_answers(warehouse.create_table, "s.p", COLUMNS, properties=properties) is not None:
            warehouse.drop_table("s.p")

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_rows_are_accepted_or_a_typed_error(warehouse, examples):
    table = warehouse.table("s.t")

    @profile(examples)
    @given(st.lists(st.dictionaries(st.sampled_from([*NAMES, "nope"]), values, max_size=5), max_size=3))
    def holds(rows):
        refuses_or_answers(table.append, rows)

    holds()


def files() -> dict[str, bytes]:
    parquet, file, stream = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(ROWS, parquet)
    with pa.ipc.new_file(file, ROWS.schema) as writer:
        writer.write_table(ROWS)
    with pa.ipc.new_stream(stream, ROWS.schema) as writer:
        writer.write_table(ROWS)
    return {
        "parquet": parquet.getvalue(),
        "arrow": file.getvalue(),
        "arrow stream": stream.getvalue(),
        "csv": b'id,s\n1,a\n2,"b\nc"\n',
        "json": b'{"id":1,"s":"a","l":[1]}\n{"id":2,"x":{"a":1}}\n',
    }


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("kind", files())
def test_any_file_of_rows_is_loaded_or_a_typed_error(warehouse, tmp_path, kind, examples):
    table, path = warehouse.table("s.t"), tmp_path / "rows"

    def loaded(rules):
        with ExitStack() as stack:
            for batch in open_rows(str(path), kind.split()[0], rules, stack, io.BytesIO()).batches:
                table.append(pa.Table.from_batches([batch]))

    @profile(examples)
    @given(damaged(files()[kind]), st.booleans())
    def holds(data, is_told):
        path.write_bytes(data)
        refuses_or_answers(loaded, CsvOptions(table.schema if is_told else None))

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_file_of_rights_is_loaded_or_a_typed_error(warehouse, tmp_path, examples):
    parts = ["[clients.a]\n", "token_sha256 = ", f"'{'0' * 64}'\n", "write = ['*']\n", "read = 1\n", "[oidc]\n",
             "=", "issuer='https://x'\n", "requests_per_second = nan\n", "[groups.g]\n", "[[clients]]\n",
             "a.b=1\n"]  # fmt: skip
    path = tmp_path / "rights.toml"

    @profile(examples)
    @given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(parts), max_size=7).map("".join)))
    def holds(text):
        path.write_text(text, "utf-8", "surrogatepass")
        refuses_or_answers(parse_access, str(path), warehouse.world.clock)
        refuses_or_answers(parse_tokens, str(path))

    holds()
