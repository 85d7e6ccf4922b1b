"""Rows that the server, the command line and Flight give are rows that they take, for every type."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from kit.network import arrow_stream
from streamhouse_spark import Warehouse
from streamhouse_spark.schema.variant import encode_variant
from streamhouse_spark.serve.rest_api import tail_events
from streamhouse_spark.serve.row_bodies import ARROW, CSV, JSON, JSON_LINES

ALL_TYPES = """id BIGINT NOT NULL, b BOOLEAN, i TINYINT, s SMALLINT, n INT, f FLOAT, d DOUBLE, e DECIMAL(38,10),
t STRING, c CHAR(3), h VARCHAR(3), x BINARY, y DATE, z TIMESTAMP, w TIMESTAMP_NTZ, a ARRAY<BINARY>,
m MAP<STRING, DOUBLE>, k MAP<DATE, ARRAY<INT>>,
u STRUCT<a: BINARY, b: STRUCT<z: TIMESTAMP>>, v VARIANT"""
MICROS = 1_769_860_800_123_456


def sample(schema: pa.Schema) -> pa.Table:
    values = {
        "id": [1, 2, 3],
        "b": [True, False, None],
        "i": [-128, 127, None],
        "s": [-32768, 32767, None],
        "n": [-(2**31), 2**31 - 1, None],
        "f": [float("nan"), float("-inf"), 0.1],
        "d": [float("inf"), -0.0, 5e-324],
        "e": [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001"), None],
        "t": ['a"\\\n\u2028é', "", None],
        "c": ["abc", "a  ", None],
        "h": ["abc", "a", None],
        "x": [b"\xff\x00YQ==", b"", None],
        "y": [-719_162, 20_000, None],
        "z": [MICROS, -MICROS, None],
        "w": [MICROS - 123_456, 0, None],
        "a": [[b"\x00", None], [], None],
        "m": [[("a", float("nan")), ("", None)], [], None],
        "k": [[(3, [1, None])], [], None],
        "u": [{"a": b"\xfe", "b": {"z": MICROS}}, {"a": None, "b": None}, None],
        "v": [encode_variant({"a": [1, Decimal("2.5"), None, "x"]}), encode_variant(7), None],
    }
    return pa.table([pa.array(values[field.name], field.type) for field in schema], schema=schema)


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    paimon = {"table.datalake.format": "paimon"}
    for name in ("s.given", "s.taken"):
        warehouse.create_table(name, ALL_TYPES, properties=paimon)
    warehouse.create_table("s.keyed", ALL_TYPES, primary_key=["id"], properties=paimon)
    given = warehouse.table("s.given")
    given.append(sample(given.schema))
    return warehouse


def rows_of(warehouse: Warehouse, name: str) -> list[str]:
    """The rows as texts, in which NaN is itself."""
    rows = warehouse.table(name).to_arrow().sort_by("id")
    return [repr(row) for row in rows.to_pylist()]


def api(table: str) -> str:
    return f"/api/v1/tables/{table}/rows"


@pytest.mark.parametrize("kind", [JSON, JSON_LINES, ARROW])
@pytest.mark.parametrize("target", ["s.taken", "s.keyed"])
def test_rows_of_the_server_are_taken_by_the_server(client, warehouse, kind, target):
    answer = client.get(api("s.given"), headers={"Accept": kind})
    posted = client.post(api(target), content=answer.content, headers={"Content-Type": kind})
    assert (posted.status_code, posted.json()["rows"]) == (200, 3), posted.text
    assert rows_of(warehouse, target) == rows_of(warehouse, "s.given")


def test_scalars_in_csv_are_taken_by_the_server(client, warehouse):
    names = "id,b,i,s,n,f,d,e,t,c,h,x,y,z,w"
    answer = client.get(f"{api('s.given')}?columns={names}", headers={"Accept": CSV})
    assert client.post(api("s.taken"), content=answer.content, headers={"Content-Type": CSV}).status_code == 200
    found, expected = (
        warehouse.table(name).to_arrow(columns=names.split(",")).sort_by("id").to_pylist()
        for name in ("s.taken", "s.given")
    )
    assert repr(found) == repr(expected)


@pytest.mark.parametrize("kind", [JSON, JSON_LINES])
@pytest.mark.parametrize("source", ["s.given", "s.keyed"])
def test_changes_are_taken_with_the_columns_that_they_add(client, warehouse, kind, source):
    if source == "s.keyed":
        warehouse.table(source).upsert(warehouse.table("s.given").to_arrow())
    event = next(tail_events(warehouse.table(source).tail("earliest", include_metadata=True)))
    changes = event.partition("data: ")[2]
    rows = json.loads(changes)
    assert {"_bucket", "_log_offset", "_commit_timestamp"} < set(rows[0])
    body = changes if kind == JSON else "\n".join(json.dumps(row) for row in rows)
    assert client.post(api("s.taken"), content=body, headers={"Content-Type": kind}).status_code == 200
    assert rows_of(warehouse, "s.taken") == rows_of(warehouse, "s.given")


def test_changes_that_are_no_new_rows_are_refused(client, warehouse):
    body = [{"id": 1, "_change_type": "insert"}, {"id": 1, "_change_type": "delete"}]
    answer = client.post(api("s.keyed"), json=body)
    assert answer.status_code == 400
    assert "changes of type 'delete'" in answer.json()["error"]["message"]
    assert client.post(api("s.keyed"), json=body[:1]).status_code == 200


def test_a_copy_of_a_copy_has_the_same_bytes(client, warehouse):
    for _ in range(3):
        rows = client.get(f"{api('s.given')}?where=id=1").json()
        assert client.post(api("s.given"), json=[{**rows[0], "id": 1}]).status_code == 200
    assert set(warehouse.table("s.given").to_arrow(filter=[("id", "=", 1)])["x"].to_pylist()) == {b"\xff\x00YQ=="}


@pytest.mark.parametrize("kind", [JSON, JSON_LINES, CSV])
def test_names_match_without_regard_to_case(client, warehouse, kind):
    warehouse.create_table("s.names", "id BIGINT, Price DECIMAL(9,2), day DATE, x BINARY")
    body = {
        JSON: b'[{"ID": 7, "PRICE": "1.10", "Day": "2026-01-31", "X": "YQ=="}, {"id": 8, "price": 1.10}]',
        JSON_LINES: b'{"ID": 7, "PRICE": "1.10", "Day": "2026-01-31", "X": "YQ=="}\n{"id": 8, "price": 1.10}\n',
        CSV: b"ID,PRICE,Day,X\n7,1.10,2026-01-31,YQ==\n8,1.10,,\n",
    }[kind]
    answer = client.post(api("s.names"), content=body, headers={"Content-Type": kind})
    assert answer.status_code == 200, answer.text
    rows = warehouse.table("s.names").to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], str(row["Price"]), row["x"]) for row in rows] == [(7, "1.10", b"a"), (8, "1.10", None)]


BAD = [
    ('{"id": 1, "id": 2}', "twice"),
    ('{"id": 1, "ID": 2}', "twice"),
    ('{"id": 1, "u": {"a": "YQ==", "a": "YQ=="}}', "twice"),
    ('{"id": 1, "v": {"a": 1, "a": 2}}', "twice"),
    ('{"id": 1, "m": {"a": 1, "a": 2}}', "twice"),
    ('{"id": 1, "d": NaN}', "NaN"),
    ('{"id": 1, "d": -Infinity}', "Infinity"),
    ('{"id": 1, "d": "nan"}', '"nan"'),
    ('{"id": 1, "f": 3.5e38}', "3.5e38"),
    ('{"id": 1, "x": "YQ="}', '"YQ="'),
    ('{"id": 1, "a": ["?"]}', '"?"'),
    ('{"id": 1.5}', "1.5"),
    ('{"id": 9223372036854775808}', "9223372036854775808"),
    ('{"id": 1, "e": 0.12345678901}', "0.12345678901"),
    ('{"id": 1, "t": 5}', "expected a string"),
    ('{"id": 1, "z": "2026-01-31T12:00:00"}', "with Z or an offset"),
    ('{"id": 1, "w": "2026-01-31T12:00:00Z"}', "without a zone"),
    ('{"id": 1, "y": "2026-02-30"}', "2026-02-30"),
    ('{"id": 1, "k": {"2026-01-31": []}}', "array of pairs"),
    ('{"id": 1, "u": {"q": 1}}', "with the names a, b"),
    ('{"id": 1, "t": "\\ud800"}', "t"),
    ('{"id": 1} {"id": 2}', "not JSON"),
    ('{"id": 1} null', "not JSON"),
    ("null", "object"),
    ("7", "object"),
]


@pytest.mark.parametrize(("body", "text"), BAD)
@pytest.mark.parametrize("kind", [JSON, JSON_LINES])
def test_json_that_does_not_fit_is_refused_in_both_forms(client, warehouse, body, text, kind):
    version = warehouse.table("s.taken").refresh().version
    answer = client.post(api("s.taken"), content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400, answer.text
    assert text in answer.json()["error"]["message"]
    assert warehouse.table("s.taken").refresh().version == version


@pytest.mark.parametrize("depth", [150, 300, 480, 700, 950, 5_000, 100_000])
@pytest.mark.parametrize("column", ["v", "t", "a", "absent"])
@pytest.mark.parametrize("kind", [JSON, JSON_LINES])
def test_deep_values_are_stored_or_refused(client, column, depth, kind):
    for value in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        body = f'{{"id": 1, "{column}": {value}}}'
        answer = client.post(api("s.taken"), content=body, headers={"Content-Type": kind})
        assert answer.status_code == (200 if column == "v" and depth == 150 else 400), answer.text


@pytest.mark.parametrize("kind", [JSON, JSON_LINES, CSV])
def test_a_column_that_a_row_lacks_has_its_default_and_a_null_stays(client, warehouse, kind):
    warehouse.create_table("s.defaults", "id BIGINT, n INT DEFAULT 7, s STRING DEFAULT 'x'")
    bodies = {
        JSON: [b'[{"id": 1}, {"id": 2, "n": null}, {"id": 3, "n": 5, "s": null}]', b'[{"id": 4}]', b"{}"],
        JSON_LINES: [b'{"id": 1}\n{"id": 2, "n": null}\n{"id": 3, "N": 5, "s": null}', b'{"id": 4}', b"{}"],
        CSV: [b"id,s\n1,x\n", b'id,n,s\n2,,x\n3,5,\n4,7,"x"\n,7,x'],
    }[kind]
    for body in bodies:
        assert client.post(api("s.defaults"), content=body, headers={"Content-Type": kind}).status_code == 200
    rows = warehouse.table("s.defaults").to_arrow().to_pylist()
    found = {row["id"]: (row["n"], row["s"]) for row in rows}
    assert found == {1: (7, "x"), 2: (None, "x"), 3: (5, None), 4: (7, "x"), None: (7, "x")}


@pytest.mark.parametrize(
    ("data_type", "given", "value"),
    [
        ("BINARY", "_wA=", b"\xff\x00"), ("BINARY", "/wA=", b"\xff\x00"), ("DATE", "2026-01-31", dt.date(2026, 1, 31)),
        ("TIMESTAMP", "2026-01-31T12:00:00Z", dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)), ("BIGINT", "7", 7),
        ("TIMESTAMP", "2026-01-31T12:00:00", None), ("BIGINT", "x", None), ("DECIMAL(9,2)", "1.10", Decimal("1.10")),
    ],
)  # fmt: skip
def test_a_key_is_looked_up_in_the_form_that_rows_have(client, warehouse, data_type, given, value):
    warehouse.create_table("s.k", f"k {data_type} NOT NULL, n INT", primary_key=["k"])
    if value is None or "_" in given:
        assert client.get("/api/v1/tables/s.k/lookup", params={"k": given}).status_code == 400
        return
    warehouse.table("s.k").upsert([{"k": value, "n": 1}])
    row = client.get(api("s.k")).json()[0]
    assert str(row["k"]) == given
    assert client.get("/api/v1/tables/s.k/lookup", params={"k": given}).json() == row


def test_a_dead_letter_of_json_is_the_row_as_it_came(client, warehouse):
    body = b'[{"id": 1.50,\n "d": 1e400}, {"id": 1, "id": 2}]'
    client.post(f"{api('s.taken')}?dead_letters=s.bad", content=body, headers={"Content-Type": JSON})
    events = warehouse.table("s.bad").to_arrow()["event"].to_pylist()
    assert events == ['{"id": 1.50,  "d": 1e400}', '{"id": 1, "id": 2}'] or events == [
        '{"id": 1.50, "d": 1e400}', '{"id": 1, "id": 2}'
    ]  # fmt: skip


def test_flight_rows_are_taken_by_the_server(client, warehouse):
    rows = warehouse.table("s.given").to_arrow()
    posted = client.post(api("s.taken"), content=arrow_stream(rows), headers={"Content-Type": ARROW})
    assert posted.status_code == 200
    assert rows_of(warehouse, "s.taken") == rows_of(warehouse, "s.given")


CSV_BAD = [
    ('id,t\n1,"open\n2,b\n', "line 2 is not closed"),
    ('id,t\n1,"a"b\n', "line 2"),
    ('id,t\n1,a"b\n', "line 2"),
    ('id,t\n1,"a" \n', "line 2"),
    ('id,t\n1,"a""\n2,b\n', "line 2 is not closed"),
    ('"id,t\n1,a\n', "line 1 is not closed"),
    ("id,t\n1\n", "columns"),
    ("id,x\n1,YQ=\n", '"YQ="'),
    ("id,z\n1,2026-01-31T12:00:00\n", "with Z or an offset"),
]


@pytest.mark.parametrize(("body", "text"), CSV_BAD)
@pytest.mark.parametrize("query", ["", "?bad_rows=skip"])
def test_csv_that_is_not_rfc_4180_is_refused_and_nothing_is_stored(client, warehouse, body, text, query):
    version = warehouse.table("s.taken").refresh().version
    answer = client.post(api("s.taken") + query, content=body, headers={"Content-Type": CSV})
    if query and answer.status_code == 200:
        assert answer.json()["rows"] == 0
        assert len(answer.json()["bad_rows"]) == 1
    else:
        assert answer.status_code == 400
        assert query or text in answer.json()["error"]["message"]
    assert warehouse.table("s.taken").refresh().version == version


def test_csv_of_rfc_4180_is_taken(client, warehouse):
    body = '\ufeffid,t\r\n1,"a""b"\r\n2,""\r\n3,\r\n"4","x\r\ny,z"\r\n5,""""\r\n'
    answer = client.post(api("s.taken"), content=body.encode(), headers={"Content-Type": CSV})
    assert answer.status_code == 200, answer.text
    rows = warehouse.table("s.taken").to_arrow(columns=["id", "t"]).sort_by("id").to_pylist()
    assert [row["t"] for row in rows] == ['a"b', "", None, "x\r\ny,z", '"']
