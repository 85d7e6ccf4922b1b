"""Bad rows of a request: each has its reason, and the others are written where the client says so."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.network import arrow_stream
from streamhouse_spark import Warehouse
from streamhouse_spark.serve import rest_api, row_bodies
from streamhouse_spark.serve.row_bodies import ARROW, CSV, JSON, JSON_LINES, parse_body
from streamhouse_spark.write.file_readers import CsvOptions

ROWS = "/api/v1/tables/sales.orders/rows"
RULES = CsvOptions(pa.schema([("id", pa.int64()), ("name", pa.string())]))


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    properties = {"table.constraint.positive": "id > 0"}
    warehouse.create_table("sales.orders", "id BIGINT NOT NULL, name STRING, price DECIMAL(9,2)", properties=properties)
    warehouse.create_table("sales.keyed", "id BIGINT NOT NULL, name STRING, n INT", primary_key=["id"])
    return warehouse


LINES = b"""{"id": 1, "name": "a"}
{"id": 2, "name":
{"id": -3}

{"name": "x"}
{"id": "y"}
{"id": 6, "odd": 1}
{"id": 7}"""
BODIES = {
    JSON_LINES: (LINES, [1, 7], [1, 2, 3, 4, 5]),
    JSON: (b'[{"id": 1}, {"id": "x"}, {"id": 3, "price": "1.234"}, {"id": 4, "price": "1.25"}]', [1, 4], [1, 2]),
    CSV: (b'id,name\n1,"a\nb"\nx,"c\n,d"\n3,e\n,f\n', [1, 3], [1, 3]),
    ARROW: (arrow_stream(pa.table({"id": [1, None, -3, 4], "name": list("abcd")})), [1, 4], [1, 2]),
}


@pytest.mark.parametrize("kind", BODIES)
def test_bad_rows_are_refused_skipped_or_kept(client, warehouse, kind):
    body, good, bad = BODIES[kind]
    headers = {"Content-Type": kind}
    refused = client.post(ROWS, content=body, headers=headers)
    assert refused.status_code == 400
    assert [one["row"] for one in refused.json()["error"]["bad_rows"]] == bad
    assert client.get(ROWS).json() == [], "all rows or none"

    skipped = client.post(f"{ROWS}?bad_rows=skip", content=body, headers=headers).json()
    assert ([one["row"] for one in skipped["bad_rows"]], skipped["rows"]) == (bad, len(good))
    assert all("SCHEMA_MISMATCH" in x["message"] or "CONSTRAINT" in x["message"] for x in skipped["bad_rows"])
    assert sorted(row["id"] for row in client.get(ROWS).json()) == good

    path = f"{ROWS}?bad_rows=dead-letter&dead_letters=sales.bad"
    for _ in range(2):  # sent again, it adds nothing to either table
        kept = client.post(path, content=body, headers=headers | {"Idempotency-Key": "shop:1"}).json()
        assert kept["rows"] == len(good)
    letters = warehouse.table("sales.bad").to_arrow().to_pylist()
    assert [(row["target"], int(row["position"])) for row in letters] == [("sales.orders", row) for row in bad]
    assert len(client.get(ROWS).json()) == 2 * len(good)


def test_a_dead_letter_has_the_row_as_it_came(client, warehouse):
    path = f"{ROWS}?dead_letters=sales.bad"
    client.post(path, content=BODIES[CSV][0], headers={"Content-Type": CSV})
    client.post(path, content=LINES, headers={"Content-Type": JSON_LINES})
    events = [row["event"] for row in warehouse.table("sales.bad").to_arrow().to_pylist()]
    assert events[:3] == ['id,name\nx,"c\n,d"', "id,name\n,f", '{"id": 2, "name":']


def test_rows_that_are_all_bad_write_nothing(client, warehouse):
    answer = client.post(f"{ROWS}?bad_rows=skip", json=[{"id": 0}]).json()
    assert (answer["rows"], answer["offsets"]) == (0, {})
    assert "constraint 'positive'" in answer["bad_rows"][0]["message"]
    assert warehouse.table("sales.orders").state.version == 1


def test_generated_columns_are_looked_at_too(client, warehouse):
    properties = {"table.generated.twice": "id * 2", "table.constraint.small": "twice < 10"}
    warehouse.create_table("sales.generated", "id BIGINT, twice BIGINT", properties=properties)
    rows = [{"id": 1}, {"id": 2, "twice": 5}, {"id": 9}, {"id": 3, "twice": 6}]
    answer = client.post("/api/v1/tables/sales.generated/rows?bad_rows=skip", json=rows).json()
    assert ([one["row"] for one in answer["bad_rows"]], answer["rows"]) == ([1, 2], 2)


def test_too_many_are_refused_whole(client, monkeypatch):
    monkeypatch.setattr(row_bodies, "BAD_ROWS_MAX", 3)
    answer = client.post(f"{ROWS}?bad_rows=skip", json=[{"id": 1}, *[{"id": 0}] * 4])
    assert answer.status_code == 400
    assert "more than 3 of 5 rows are invalid, and nothing was written; the first is row 1" in answer.text
    monkeypatch.setattr(rest_api, "BAD_ROWS_SHOWN", 2)
    assert len(client.post(ROWS, json=[{"id": 1}, *[{"id": 0}] * 3]).json()["error"]["bad_rows"]) == 2


def test_partial_updates_over_http_keep_other_columns(client):
    keyed = "/api/v1/tables/sales.keyed/rows"
    client.post(keyed, json=[{"id": 1, "name": "a", "n": 1}])
    assert client.post(f"{keyed}?columns=id,n", json=[{"id": 1, "n": 2}, {"id": 2, "n": 3}]).status_code == 200
    found = sorted(client.get(keyed).json(), key=lambda row: row["id"])
    assert found == [{"id": 1, "name": "a", "n": 2}, {"id": 2, "name": None, "n": 3}]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("bad_rows=ignore", "refuse, skip, dead-letter"),
        ("bad_rows=dead-letter", "require each other"),
        ("bad_rows=skip&dead_letters=sales.bad", "require each other"),
        ("dead_letters=a.b.c", "a.b.c"),
        ("columns=id", "requires mode=upsert"),
        ("mode=delete&bad_rows=skip", "is not supported with columns="),
    ],
)
def test_requests_that_cannot_be(client, asked, text):
    answer = client.post(f"{ROWS}?{asked}", json=[{"id": 0}])
    assert answer.status_code == 400
    assert text in answer.json()["error"]["message"]


@given(st.lists(st.tuples(st.integers(1, 9), st.text(st.sampled_from('ab,"\n\r '), max_size=4)), max_size=9), st.data())
def test_any_range_of_a_csv_body_is_its_rows(rows, data):
    """As Arrow reads the whole of it."""
    quoted = ['{},"{}"'.format(number, text.replace('"', '""')) for number, text in rows]
    body = "\n".join(["id,name", *quoted]).encode()
    found = parse_body(body, CSV, RULES)
    assert found.num_rows == len(rows)
    begin = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(begin, len(rows)))
    if begin < end:
        assert [row["id"] for row in found.read(begin, end).to_pylist()] == [number for number, _ in rows[begin:end]]
        whole = parse_body(body, CSV, RULES).read(0, len(rows)).slice(begin, end - begin)
        assert found.read(begin, end).to_pylist() == whole.to_pylist()
    assert all(json.dumps(found.text(row)) for row in range(len(rows)))


@pytest.mark.parametrize("keyed", [False, True])
def test_a_partition_that_the_lake_cannot_hold_is_a_bad_row(client, warehouse, keyed):
    table = warehouse.create_table(
        "sales.days",
        "id BIGINT NOT NULL, day DATE NOT NULL",
        partition_by=["day"],
        primary_key=["id", "day"] if keyed else [],
        properties={"table.datalake.format": "paimon"},
    )
    rows = pa.table({"id": [1, 2, 3], "day": pa.array([0, 2**31 - 1, 1], pa.int32()).cast(pa.date32())})
    place, headers = "/api/v1/tables/sales.days/rows", {"Content-Type": ARROW}
    refused = client.post(place, content=arrow_stream(rows), headers=headers)
    assert refused.status_code == 400
    assert [one["row"] for one in refused.json()["error"]["bad_rows"]] == [1]
    assert table.refresh().num_rows == 0
    skipped = client.post(f"{place}?bad_rows=skip", content=arrow_stream(rows), headers=headers).json()
    assert ([one["row"] for one in skipped["bad_rows"]], skipped["rows"]) == ([1], 2)
    assert "has the value +5881580-07-11" in skipped["bad_rows"][0]["message"]
