"""Bulk reads over Arrow Flight with a real client: each offer is one state, in parts that hold each row once."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyarrow import flight

from doc_pages import PAGES
from kit.flight_client import Client, flights, told
from kit.rows import ids
from kit.tables import tier
from kit.variants import readable_rows
from streamhouse_spark import Warehouse
from streamhouse_spark.read import split_planning
from streamhouse_spark.schema.variant import VARIANT
from streamhouse_spark.serve.flight import read_service
from streamhouse_spark.serve.flight.requests import PARTS_MAX


@pytest.fixture
def server(warehouse):
    with flights(warehouse) as server:
        yield server


@pytest.fixture
def client(server):
    return Client(server.url)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(split_planning, "OPENING_BYTES", 0)
    monkeypatch.setattr(split_planning, "TARGET_BYTES_MIN", 1)


def rows(*ids, n=1):
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array([n] * len(ids), pa.int64())})


def made(warehouse, *, keyed=False, lake="iceberg"):
    """A table with rows in the lake, newer ones in the log, and changes of rows in the lake."""
    columns = "id BIGINT NOT NULL, n BIGINT"
    properties = {"table.datalake.format": lake}
    key = ["id"] if keyed else []
    table = warehouse.create_table("s.t", columns, primary_key=key, buckets=3, properties=properties)
    write = table.upsert if keyed else table.append
    write(rows(*range(200)))
    tier(table)
    for first in range(200, 300, 20):
        write(rows(*range(first, first + 20)))
    if keyed:
        table.delete(rows(7, 8, 250).select(["id"]))
    elif lake == "iceberg":
        table.delete(where=[("id", "in", [7, 250])])
    return table


@pytest.mark.parametrize("lake", ["iceberg", pytest.param("paimon", marks=pytest.mark.long)])
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
@pytest.mark.usefixtures("small_parts")
def test_the_parts_are_the_table(warehouse, client, keyed, lake):
    table = made(warehouse, keyed=keyed, lake=lake)
    expected = table.to_arrow()
    info = client.info(table="s.t", parts=8)
    assert len(info.endpoints) > 2
    assert all(not endpoint.locations for endpoint in info.endpoints)
    assert info.schema == expected.schema
    assert info.total_records == (-1 if keyed else expected.num_rows)
    assert info.total_bytes > 0
    assert json.loads(info.app_metadata) == {"version": table.state.version}
    with ThreadPoolExecutor(8) as pool:
        found = pa.concat_tables(pool.map(client.part, info.endpoints))
    assert found.sort_by("id").equals(expected.sort_by("id"))
    assert client.direct(table="s.t").sort_by("id").equals(expected.sort_by("id"))
    lake_alone = client.read(table="s.t$lake", parts=8)
    assert lake_alone.sort_by("id").equals(table.lake.to_arrow().sort_by("id"))


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_columns_conditions_and_limits(warehouse, client, keyed):
    table = made(warehouse, keyed=keyed)
    assert client.read(table="s.t", columns=["n"]).schema.names == ["n"]
    assert client.read(table="S.T", columns=["n", "id"]).schema.names == ["n", "id"]
    found = client.read(table="s.t", where="id >= 195 AND id < 205", columns=["id"])
    assert ids(found) == list(range(195, 205))
    info = client.info(table="s.t", where="id > 5", limit=11)
    assert (len(info.endpoints), info.total_records) == (1, -1)
    assert client.part(info.endpoints[0]).num_rows == 11
    assert client.info(table="s.t", limit=11).total_records == (-1 if keyed else 11)
    assert client.read(table="s.t", limit=0).num_rows == 0
    assert client.read(table="s.t", limit=10**6).num_rows == table.to_arrow().num_rows
    assert client.read(table="s.t", where="id < 0").num_rows == 0


def test_an_offer_is_of_the_state_that_it_was_made_of(warehouse, client):
    table = made(warehouse)
    before = ids(table.to_arrow())
    offer = client.info(table="s.t")
    of_lake = client.info(table="s.t$lake")
    table.append(rows(1_000))
    tier(table)
    table.append(rows(1_001))
    assert ids(pa.concat_tables(map(client.part, offer.endpoints))) == before
    assert ids(pa.concat_tables(map(client.part, of_lake.endpoints))) == list(range(200))
    version = json.loads(offer.app_metadata)["version"]
    assert ids(client.read(table="s.t", version=version)) == before
    table.create_tag("then", version)
    assert ids(client.read(table="s.t", version="then")) == before
    assert ids(client.read(table="s.t")) == [*before, 1_000, 1_001]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_any_server_reads_a_part_of_another_ones_offer(warehouse, client, keyed, tmp_path):
    table = made(warehouse, keyed=keyed)
    expected = table.to_arrow().sort_by("id")
    offer = client.info(table="s.t", parts=8)
    (table.upsert if keyed else table.append)(rows(1_000))
    with flights(Warehouse(str(tmp_path / "wh"))) as other:
        found = pa.concat_tables(map(Client(other.url).part, offer.endpoints))
    assert found.sort_by("id").equals(expected)


@pytest.mark.usefixtures("small_parts")
def test_a_part_that_can_no_longer_be_read_as_it_was_offered(warehouse, client, tmp_path):
    table = made(warehouse)
    offer = client.info(table="s.t", parts=8)
    wrong = json.loads(offer.endpoints[0].ticket.ticket)
    warehouse.drop_table("s.t")
    made(warehouse)
    with pytest.raises(flight.FlightServerError, match="another table has its name") as caught:
        client.part(offer.endpoints[0])
    assert told(caught.value)[0] == "SNAPSHOT_EXPIRED"
    wrong["uuid"] = warehouse.table("s.t").uuid
    advice = "request the flight info again"
    with flights(Warehouse(str(tmp_path / "wh"))) as other, pytest.raises(flight.FlightServerError, match=advice):
        Client(other.url).direct(**wrong)
    assert table.uuid != wrong["uuid"]


def test_a_ticket_for_a_part_that_there_is_not(warehouse, client):
    made(warehouse)
    ticket = json.loads(client.info(table="s.t").endpoints[0].ticket.ticket)
    for changed, text in [
        ({"part": 99}, "part 99 of 1"),
        ({"plan": None}, "only some of"),
        ({"part": None}, "has only some of"),
    ]:
        with pytest.raises(flight.FlightServerError, match=text) as caught:
            client.direct(**ticket | changed)
        assert told(caught.value)[0] == "INVALID_OPTION"
    assert client.part(client.info(table="s.t").endpoints[0]).num_rows == 298


def test_system_tables_are_read_over_flight(warehouse, client):
    table = made(warehouse, keyed=True)
    assert client.read(table="s.t$buckets").num_rows == 3
    history = client.read(table="s.t$history", columns=["version", "operation"], where="version > 1")
    assert history.equals(warehouse.view("s.t$history").to_arrow(columns=["version", "operation"]).slice(1))
    for suffix in ("changelog", "binlog", "lake$snapshots"):
        expected = warehouse.view(f"s.t${suffix}").to_arrow()
        found = client.read(table=f"s.t${suffix}")
        assert found.equals(expected), suffix
        assert client.flight.get_schema(flight.FlightDescriptor.for_path(f"s.t${suffix}")).schema == expected.schema
    inserted = client.read(table="s.t$changelog", where="_change_type = 'delete'", columns=["id"], limit=2)
    assert set(ids(inserted)) < {7, 8, 250}
    assert table.state.primary_key


def test_flights_list_tables_with_their_schemas(warehouse, client):
    made(warehouse)
    warehouse.create_table("other.u", "x INT")
    listed = {info.descriptor.path[0].decode(): info for info in client.flight.list_flights()}
    assert sorted(listed) == ["other.u", "s.t"]
    assert listed["s.t"].schema == warehouse.table("s.t").schema
    assert listed["s.t"].total_records == 298
    assert client.part(listed["s.t"].endpoints[0]).num_rows == 298
    assert [info.descriptor.path for info in client.flight.list_flights(b"other")] == [[b"other.u"]]
    for descriptor in (
        flight.FlightDescriptor.for_path("s.t"),
        flight.FlightDescriptor.for_path("s", "t"),
        flight.FlightDescriptor.for_command('{"table": "s.t"}'),
    ):
        assert client.flight.get_schema(descriptor).schema == warehouse.table("s.t").schema
        assert client.flight.get_flight_info(descriptor).total_records == 298
    chosen = flight.FlightDescriptor.for_command('{"table": "s.t", "columns": ["n"], "where": "id > 3"}')
    assert client.flight.get_schema(chosen).schema.names == ["n"]


def test_an_empty_table_is_read_with_its_schema(warehouse, client):
    table = warehouse.create_table("s.t", "id BIGINT, l ARRAY<STRUCT<a: INT, b: STRING>>, d DECIMAL(38, 2)")
    assert client.read(table="s.t").equals(table.to_arrow())
    assert client.read(table="s.t$lake").num_rows == 0


def test_every_type_arrives_as_it_is(warehouse, client):
    table = warehouse.create_table(
        "s.t",
        "i BIGINT, s STRING, b BINARY, d DECIMAL(38, 4), y DATE, t TIMESTAMP, m MAP<STRING, INT>, "
        "l ARRAY<STRUCT<a: INT, b: STRING>>, f DOUBLE, z BOOLEAN",
    )
    one = {"i": 1, "s": "é" * 9, "b": b"\x00", "m": {"k": 1}, "l": [{"a": 1, "b": None}, None], "f": 1.5, "z": True}
    table.append([one, {"i": 2}] * 500)
    tier(table)
    table.append([one] * 7)
    assert client.read(table="s.t").equals(table.to_arrow())


def test_batches_are_small_and_read_as_they_are_taken(warehouse, monkeypatch):
    table = warehouse.create_table("s.t", "id BIGINT, s STRING")
    table.append(pa.table({"id": range(400_000), "s": [f"{n:0100}" for n in range(400_000)]}))
    given = []
    sliced = read_service._slice_batches

    def counted(tables):
        for batch in sliced(tables):
            given.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(read_service, "_slice_batches", counted)
    with flights(warehouse) as server:
        client = Client(server.url)
        reader = client.flight.do_get(flight.Ticket('{"table": "s.t"}'), client.options)
        first = reader.read_chunk().data
        assert first["id"][0].as_py() == 0
        threading.Event().wait(1)
        assert len(given) < 15, "a client that takes nothing is given nothing more"
        assert max(given) <= read_service.BATCH_BYTES * 1.1
        found = pa.concat_tables([pa.Table.from_batches([first]), reader.read_all()])
    assert found.equals(table.to_arrow().select(found.schema.names))


@pytest.mark.parametrize(
    ("asked", "condition", "text"),
    [
        ({"table": "s.absent"}, "TABLE_NOT_FOUND", "s.absent"),
        ({"table": "s.t$nothing"}, "INVALID_NAME", r"unknown suffix \$nothing"),
        ({"table": "a.b.c"}, "INVALID_NAME", "3 parts"),
        ({"table": "s.t", "colums": ["id"]}, "INVALID_OPTION", "did you mean columns"),
        ({"table": "s.t", "columns": "id"}, "INVALID_OPTION", "expected a list of names"),
        ({"table": "s.t", "columns": []}, "INVALID_OPTION", "expected a list of names"),
        ({"table": "s.t", "columns": ["absent"]}, "SCHEMA_MISMATCH", "absent"),
        ({"table": "s.t", "columns": ["id", "id"]}, "SCHEMA_MISMATCH", "requested twice"),
        ({"table": "s.t", "where": "id ~ 1"}, "INVALID_OPTION", "~"),
        ({"table": "s.t", "where": 7}, "INVALID_OPTION", "expected a string"),
        ({"table": "s.t", "limit": -1}, "INVALID_OPTION", "limit is -1"),
        ({"table": "s.t", "limit": True}, "INVALID_OPTION", "limit is True"),
        ({"table": "s.t", "parts": PARTS_MAX + 1}, "INVALID_OPTION", "parts is 65"),
        ({"table": "s.t", "version": 99}, "INVALID_OPTION", "no commit 99"),
        ({"table": "s.t", "version": "absent"}, "INVALID_OPTION", "a tag"),
        ({"table": "s.t", "snapshot": 1}, "INVALID_OPTION", "use a version"),
        ({"table": "s.t$lake", "version": 1}, "INVALID_OPTION", "use a snapshot"),
        ({"table": "s.t$lake", "snapshot": 1}, "SNAPSHOT_EXPIRED", "1"),
        ({}, "INVALID_OPTION", "has no table"),
    ],
)
def test_requests_that_cannot_be(warehouse, client, asked, condition, text):
    made(warehouse)
    with pytest.raises(flight.FlightServerError, match=text) as caught:
        client.info(**asked)
    assert told(caught.value)[0] == condition
    with pytest.raises(flight.FlightServerError) as caught:
        client.direct(**asked)
    assert told(caught.value)[0] == condition
    assert "Traceback" not in str(caught.value)


def test_the_flight_example_of_the_guide_runs(warehouse, server):
    orders = warehouse.create_table("sales.orders", "order_id BIGINT, customer STRING, amount DOUBLE")
    orders.append([{"customer": "ann", "amount": 9.5}, {"customer": "bob", "amount": 1.0}])
    code = re.search(r"```py\n(.*?)```", PAGES["docs/guides/serve.md"], re.DOTALL)[1]
    names = {}
    exec(code.replace("grpc://127.0.0.1:8815", server.url), names)
    assert names["rows"].to_pylist() == [{"customer": "ann", "amount": 9.5}]


def test_calls_that_write_or_act_say_how_to_write(client):
    calls = (
        lambda: list(client.flight.do_action("drop")),
        client.flight.do_put(flight.FlightDescriptor.for_path("s.t"), pa.schema([]))[0].close,
        client.flight.do_exchange(flight.FlightDescriptor.for_path("s.t"))[1].read_all,
    )
    for call in calls:
        with pytest.raises(flight.FlightServerError, match="POST /api/v1/tables") as caught:
            call()
        assert told(caught.value) == ("INVALID_OPTION", 400)
    assert list(client.flight.list_actions()) == []


def test_a_defect_tells_the_client_nothing(warehouse, monkeypatch, caplog):
    table = made(warehouse)

    def fails_soon(*_):
        yield rows(1).cast(table.schema).to_batches()[0]
        fails()

    def fails(*_):
        raise RuntimeError("a secret")

    with flights(warehouse) as server:
        client = Client(server.url)
        monkeypatch.setattr(read_service, "_limit_rows", fails_soon)
        with pytest.raises(flight.FlightInternalError, match="see its log for request") as caught:
            client.direct(table="s.t")
        assert told(caught.value) == ("INTERNAL", 500)
        monkeypatch.setattr(read_service, "_take_snapshot", fails)
        with pytest.raises(flight.FlightInternalError, match="see its log for request") as info:
            client.info(table="s.t")
    assert "secret" not in f"{caught.value}{info.value}"
    logged = [record.exc_info[1] for record in caplog.records if record.exc_info]  # whatever formats them
    assert [str(error) for error in logged] == ["a secret", "a secret"]


@pytest.mark.parametrize("duration_s", [1.5, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
@pytest.mark.usefixtures("small_parts")
def test_every_offer_is_one_state_while_rows_stream_in(warehouse, client, keyed, duration_s, record_property):
    """Each write has the ids from 0 to 9 under the next n: so a state has all ten of each n up to some."""
    columns = "id BIGINT NOT NULL, n BIGINT NOT NULL"
    table = warehouse.create_table("s.t", columns, primary_key=["id", "n"] if keyed else [], buckets=3)
    stop, written = threading.Event(), [0]

    def write():
        own = Warehouse(warehouse.url).table("s.t")
        while not stop.is_set():
            batch = rows(*range(10), n=written[0])
            (own.upsert if keyed else own.append)(batch)
            written[0] += 1

    def tier_on():
        own = Warehouse(warehouse.url).table("s.t")
        while not stop.is_set():
            tier(own)
            stop.wait(0.2)

    def read():
        found = []
        while not stop.is_set():
            before = written[0]
            info = client.info(table="s.t", parts=4)
            answer = pa.concat_tables(map(client.part, info.endpoints))
            most = max(answer["n"].to_pylist(), default=-1)
            assert answer.num_rows == 10 * (most + 1), "a torn state"
            assert info.total_records == (-1 if keyed else answer.num_rows)
            assert sum(answer["id"].to_pylist()) == 45 * (most + 1)
            assert most + 1 >= before, "rows that were durable before the call are missing"
            found.append(most)
        return found

    with ThreadPoolExecutor(4) as pool:
        background = [pool.submit(write), pool.submit(tier_on)]
        readers = [pool.submit(read) for _ in range(2)]
        stop.wait(duration_s)
        stop.set()
        for reader in readers:
            found = reader.result()
            assert found == sorted(found), "an answer went back"
            assert found
        for thread in background:
            thread.result()
    record_property("answers", sum(len(reader.result()) for reader in readers))
    assert table.refresh().lake is not None


@pytest.mark.paimon
def test_variants_come_as_they_are(warehouse, client):
    table = warehouse.create_table("s.v", "id BIGINT, v VARIANT", properties={"table.datalake.format": "paimon"})
    values = [{"a": [1, None, {"b": 2.5}]}, [], "text", 5, None]
    table.append([{"id": number, "v": value} for number, value in enumerate(values)])
    tier(table)
    table.append([{"id": 9, "v": {"new": 1}}])
    found = client.read(table="s.v", parts=4)
    assert found.schema.field("v").type.equals(VARIANT, check_metadata=True)
    assert {row["id"]: row["v"] for row in readable_rows(found)} == {**dict(enumerate(values)), 9: {"new": 1}}
