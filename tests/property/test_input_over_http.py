"""Any request to `serve`: an answer that says what is wrong, never a 500, an exception, a hang or a file elsewhere."""

from __future__ import annotations

import io
import json
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.hostile_input import COLUMNS, FEW, MANY, SECRET, damaged, json_rows, json_values, names, profile, texts
from kit.serving import http_client
from streamhouse_spark import Warehouse
from streamhouse_spark.serve.acl import ANONYMOUS, Access, digest_of
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.options import ServeOptions

EXAMPLES = [FEW, pytest.param(MANY, marks=pytest.mark.long)]
TYPES = ["application/json", "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream", "x", ",,", ""]
PARAMETERS = ["mode", "columns", "bad_rows", "dead_letters", "where", "limit", "id", "s", "snapshots", "warehouse"]


def arrow(rows: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows)
    return sink.getvalue()


ROWS = pa.table(
    {
        "id": [1, 2],
        "s": ["a", None],
        "l": pa.array([[1], None], pa.list_(pa.int32())),
        "m": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
        "x": pa.array([{"a": 1, "b": "c"}, None], pa.struct({"a": pa.int32(), "b": pa.string()})),
        "y": pa.array([1, 2], pa.int32()).cast(pa.date32()),
    }
)
bodies = st.one_of(
    json_rows.map(lambda rows: json.dumps(rows).encode()),
    json_rows.map(lambda rows: "\n".join(map(json.dumps, rows)).encode()),
    json_values.map(lambda value: json.dumps(value).encode()),
    damaged(arrow(ROWS), arrow(ROWS, "zstd"), arrow(ROWS.select(["s"])), b'id,s,d\n1,a,2.5\n2,"b,c",3\n'),
    damaged(b'[{"id": 1, "s": "a", "l": [1], "x": {"a": 1}}]', b'{"id":1}\n{"id":2,"y":"2020-01-01"}\n'),
    st.binary(max_size=60),
    texts.map(lambda text: text.encode("utf-8", "surrogatepass")),
)
queries = st.dictionaries(st.sampled_from(PARAMETERS), texts.filter(lambda text: len(text) < 5_000), max_size=3)
keys = st.sampled_from([None, "a:1", '"a', '"a"', '"\\"', "9" * 30, "é", "\x7f", "a" * 3_000, "-1", "0", "1", "2", ""])
identities = st.dictionaries(st.sampled_from(["Idempotency-Key", "Producer-Id", "Producer-Sequence"]), keys, max_size=3)
paths = names.map(lambda name: quote(name.encode("utf-8", "surrogatepass"), safe=""))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    warehouse = Warehouse(str(folder / "wh"))
    warehouse.create_table("s.t", COLUMNS).append([{"id": 1, "s": "a"}])
    warehouse.create_table("s.k", "id BIGINT NOT NULL, s STRING", primary_key=["id"]).upsert([{"id": 1, "s": "a"}])
    app = make_app(warehouse, ServeOptions(lambda: Access({digest_of(SECRET): ANONYMOUS})))
    yield http_client(app, headers={"Authorization": f"Bearer {SECRET}"})
    assert [path.name for path in folder.iterdir()] == ["wh"]
    assert {path.name for path in (folder / "wh").iterdir()} <= {"streamhouse.json", "s", "tables", "lake", "default"}


def answered(client, method, path, **more):
    answer = client.request(method, path, **more)
    assert answer.status_code < 500, (method, path, more, answer.text)
    assert SECRET not in answer.text
    return answer


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_write_over_http_gets_an_answer(served, examples):
    @profile(examples)
    @given(paths, queries, bodies, st.sampled_from(TYPES), identities)
    def holds(name, query, body, kind, identity):
        headers = {"Content-Type": kind} | {n: v.encode("latin-1") for n, v in identity.items() if v is not None}
        answered(served, "POST", f"/api/v1/tables/{name}/rows", params=query, content=body, headers=headers)

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_read_over_http_gets_an_answer(served, examples):
    @profile(examples)
    @given(paths, queries, st.sampled_from(["", "/rows", "/lookup"]), st.sampled_from(TYPES))
    def holds(name, query, tail, kind):
        answered(served, "GET", f"/api/v1/tables/{name}{tail}", params=query, headers={"Accept": kind})

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_request_to_the_iceberg_catalog_gets_an_answer(served, examples):
    @profile(examples)
    @given(
        st.one_of(st.just("s"), paths),
        paths,
        st.sampled_from(["", "/metrics", "/credentials"]),
        queries,
        st.sampled_from(["GET", "HEAD", "POST", "DELETE"]),
        st.sampled_from(["", "/lake"]),
    )
    def holds(database, table, tail, query, method, prefix):
        path = f"/iceberg/v1{prefix}/namespaces/{database}"
        answered(served, method, path, params=query)
        answered(served, method, f"{path}/tables/{table}{tail}", params=query)

    holds()
