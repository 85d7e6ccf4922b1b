"""Requests with an Idempotency-Key, or with a producer's sequence number, are stored once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.serving import http_client
from streamhouse_spark import Transaction, Warehouse
from streamhouse_spark.core.types import StreamBatch
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.serve import rest_api
from streamhouse_spark.serve.acl import ALL_TABLES, Access, Client, digest_of
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.options import ServeOptions

UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"
KEY = {"Idempotency-Key": UUID}
ROWS = "/api/v1/tables/sales.orders/rows"
KEYED = "/api/v1/tables/sales.keyed/rows"
JSON = {"Content-Type": "application/json"}


def produced(producer: str, sequence: int) -> dict[str, str]:
    return {"Producer-Id": producer, "Producer-Sequence": str(sequence)}


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("sales.orders", "id BIGINT, name STRING")
    warehouse.create_table("sales.keyed", "id BIGINT NOT NULL, name STRING", primary_key=["id"])
    return warehouse


def ids(warehouse: Warehouse, table: str = "sales.orders") -> list[int]:
    return sorted(warehouse.table(table).to_arrow()["id"].to_pylist())


def condition(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["condition"]


@pytest.mark.parametrize("identity", [KEY, {"Idempotency-Key": f'"{UUID}"'}, produced("shop:north", 0)])
@pytest.mark.parametrize(
    ("path", "body"), [(ROWS, [{"id": 1}]), (KEYED, [{"id": 2}]), (f"{KEYED}?mode=delete", [{"id": 1}])]
)
def test_a_retried_request_gets_the_first_answer_and_adds_nothing(client, warehouse, path, body, identity):
    client.post(KEYED, json=[{"id": 1}, {"id": 3}])
    first = client.post(path, json=body, headers=identity)
    assert (first.status_code, first.json()["rows"]) == (200, 1), first.text
    versions = [warehouse.table(name).refresh().version for name in ("sales.orders", "sales.keyed")]
    restarted = http_client(make_app(Warehouse(warehouse.url)))
    for server in (client, restarted):
        again = server.post(path, json=body, headers=identity)
        assert (again.status_code, again.json()) == (200, first.json())
    assert [warehouse.table(name).refresh().version for name in ("sales.orders", "sales.keyed")] == versions


def test_a_quoted_key_is_the_bare_one(client, warehouse):
    for key in (UUID, f' "{UUID}" '):
        assert client.post(ROWS, json=[{"id": 1}], headers={"Idempotency-Key": key}).json()["rows"] == 1
    assert ids(warehouse) == [1]


@pytest.mark.parametrize(
    ("query", "content", "kind"),
    [
        ("", b'[{"id": 2}]', "application/json"),
        ("?bad_rows=skip", b'[{"id": 1}]', "application/json"),
        ("?dead_letters=sales.bad", b'[{"id": 1}]', "application/json"),
        ("", b'{"id": 1}\n', "application/x-ndjson"),
    ],
)
@pytest.mark.parametrize("identity", [KEY, produced("shop", 0)])
def test_another_request_with_a_stored_identity_is_422_and_writes_nothing(
    client, warehouse, identity, query, content, kind
):
    assert client.post(ROWS, content=b'[{"id": 1}]', headers=JSON | identity).status_code == 200
    answer = client.post(ROWS + query, content=content, headers={"Content-Type": kind} | identity)
    assert condition(answer) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert ids(warehouse) == [1]
    advised = produced("shop", 1) if "Producer-Id" in identity else {"Idempotency-Key": "another"}
    assert client.post(ROWS + query, content=content, headers={"Content-Type": kind} | advised).status_code == 200


def test_a_request_in_flight_is_409_until_it_is_answered(client, warehouse, monkeypatch):
    begun, may_go_on = threading.Event(), threading.Event()
    write = rest_api._RowsApi._store_rows

    def paused(*given):
        begun.set()
        assert may_go_on.wait(60)
        return write(*given)

    monkeypatch.setattr(rest_api._RowsApi, "_store_rows", paused)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, ROWS, json=[{"id": 1}], headers=KEY)
        assert begun.wait(60)
        for body in ([{"id": 1}], [{"id": 2}]):
            answer = client.post(ROWS, json=body, headers=KEY)
            assert condition(answer) == (409, "REQUEST_IN_FLIGHT")
            assert answer.headers["retry-after"] == "1"
        monkeypatch.undo()
        assert client.post(ROWS, json=[{"id": 3}], headers={"Idempotency-Key": "other"}).status_code == 200
        may_go_on.set()
        answer = first.result()
    assert client.post(ROWS, json=[{"id": 1}], headers=KEY).json() == answer.json()
    assert ids(warehouse) == [1, 3]


def test_a_crash_between_commit_and_answer_replays_the_answer(warehouse, monkeypatch):
    client = http_client(make_app(warehouse), raise_server_exceptions=False)
    with monkeypatch.context() as crashing:
        crashing.setattr(rest_api.ServerCounters, "count_rows", lambda *_: 1 / 0)
        assert client.post(ROWS, json=[{"id": 1}], headers=KEY).status_code == 500
        assert client.post(ROWS, json=[{"id": 2}], headers=produced("shop", 0)).status_code == 500
    assert ids(warehouse) == [1, 2]
    restarted = http_client(make_app(Warehouse(warehouse.url)))
    assert restarted.post(ROWS, json=[{"id": 1}], headers=KEY).json()["offsets"] == {"0": [0, 1]}
    assert restarted.post(ROWS, json=[{"id": 2}], headers=produced("shop", 0)).json()["offsets"] == {"0": [1, 2]}
    assert ids(warehouse) == [1, 2]


@pytest.mark.parametrize("identity", [KEY, produced("shop", 0)])
def test_servers_that_get_the_same_request_at_once_store_it_once(warehouse, identity):
    servers = [http_client(make_app(Warehouse(warehouse.url))) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda server: server.post(ROWS, json=[{"id": 1}], headers=identity), servers))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert ids(warehouse) == [1]


def test_a_key_outlives_columns_checkpoints_and_other_requests(client, warehouse):
    first = client.post(ROWS, json=[{"id": 1, "name": "a"}], headers=KEY)
    for number in range(60):
        client.post(ROWS, json=[{"id": 100}], headers={"Idempotency-Key": str(number)})
    table = warehouse.table("sales.orders")
    table.log.checkpoint(table.refresh())
    table.rename_column("name", "label")
    restarted = http_client(make_app(Warehouse(warehouse.url)))
    assert restarted.post(ROWS, json=[{"id": 1, "name": "a"}], headers=KEY).json() == first.json()
    assert condition(restarted.post(ROWS, json=[{"id": 2}], headers=KEY)) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert ids(warehouse).count(1) == 1


@pytest.mark.parametrize(
    ("stored", "sequence", "text"),
    [
        ((), 1, "expected sequence 0"),
        ((0,), 2, "expected sequence 1"),
        ((0, 1, 2), 1, "expected sequence 3"),
        ((0, 1, 2), 9, "expected sequence 3"),
    ],
)
@pytest.mark.parametrize("path", [ROWS, KEYED])
def test_a_gap_or_a_step_back_of_a_producer_writes_nothing(client, warehouse, path, stored, sequence, text):
    for number in stored:
        assert client.post(path, json=[{"id": number}], headers=produced("shop", number)).status_code == 200
    answer = client.post(path, json=[{"id": 50}], headers=produced("shop", sequence))
    assert condition(answer) == (409, "PRODUCER_SEQUENCE")
    assert text in answer.json()["error"]["message"]
    assert ids(warehouse, path.split("/")[4]) == list(stored)
    for number in range(len(stored), len(stored) + 2):
        assert client.post(path, json=[{"id": number}], headers=produced("shop", number)).status_code == 200


def test_a_race_of_two_requests_for_one_sequence_number_stores_one(warehouse):
    servers = [http_client(make_app(Warehouse(warehouse.url))) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        posted = [
            pool.submit(server.post, ROWS, json=[{"id": number}], headers=produced("shop", 0))
            for number, server in enumerate(servers)
        ]
        statuses = sorted(one.result().status_code for one in posted)
    assert statuses == [200, 422, 422, 422]
    assert len(ids(warehouse)) == 1


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ([("Idempotency-Key", "")], "printable ASCII"),
        ([("Idempotency-Key", '""')], "printable ASCII"),
        ([("Idempotency-Key", "x" * 256)], "255"),
        ([("Idempotency-Key", "é".encode("latin-1"))], "printable ASCII"),
        ([("Idempotency-Key", "a"), ("Idempotency-Key", "b")], "expected at most one"),
        ([("Idempotency-Key", "a"), ("Producer-Id", "shop"), ("Producer-Sequence", "0")], "either"),
        ([("Producer-Id", "shop")], "send both"),
        ([("Producer-Sequence", "1")], "send both"),
        ([("Producer-Id", "shop"), ("Producer-Sequence", "-1")], "starts at 0"),
        ([("Producer-Id", "shop"), ("Producer-Sequence", "9" * 19)], "starts at 0"),
        ([("Producer-Id", "streamhouse.request.00"), ("Producer-Sequence", "0")], "reserved"),
    ],
)
def test_malformed_identities_are_400_and_write_nothing(client, warehouse, headers, text):
    answer = client.post(ROWS, content=b'[{"id": 1}]', headers=[("Content-Type", "application/json"), *headers])
    assert condition(answer) == (400, "INVALID_OPTION")
    assert text in answer.json()["error"]["message"]
    assert ids(warehouse) == []


def test_keys_of_different_clients_are_distinct(warehouse):
    secrets = {name: name * 20 for name in ("ann", "bob")}
    clients = {digest_of(secret): Client(name, writable=(ALL_TABLES,)) for name, secret in secrets.items()}
    client = http_client(make_app(warehouse, ServeOptions(lambda: Access(clients))))
    for secret in secrets.values():
        answer = client.post(ROWS, json=[{"id": 1}], headers=KEY | {"Authorization": f"Bearer {secret}"})
        assert answer.status_code == 200
    assert ids(warehouse) == [1, 1]


def test_keys_of_a_table_and_of_its_branch_are_distinct(client, warehouse):
    client.post(ROWS, json=[{"id": 1}], headers=KEY)
    warehouse.table("sales.orders").create_branch("audit")
    branch = "/api/v1/tables/sales.orders$branch_audit/rows"
    for _ in range(2):
        answer = client.post(branch, json=[{"id": 1}], headers=KEY)
        assert answer.status_code == 200, answer.text
    assert ids(warehouse) == [1]
    assert sorted(row["id"] for row in client.get(branch).json()) == [1, 1]


@pytest.mark.parametrize("identity", [KEY, produced("shop", 0)])
def test_a_request_whose_rows_are_all_bad_keeps_its_identity(client, warehouse, identity):
    path = f"{ROWS}?bad_rows=skip"
    first = client.post(path, json=[{"id": "x"}], headers=identity).json()
    assert (first["rows"], len(first["bad_rows"])) == (0, 1)
    assert client.post(path, json=[{"id": "x"}], headers=identity).json() == first
    assert client.post(path, json=[{"id": 1}], headers=identity).status_code == 422
    if "Producer-Id" in identity:
        assert client.post(path, json=[{"id": 1}], headers=produced("shop", 1)).status_code == 200


def test_a_refused_request_may_be_corrected_under_its_key(client, warehouse):
    assert client.post(ROWS, json=[{"id": "x"}], headers=KEY).status_code == 400
    assert client.post(ROWS, json=[{"id": 1}], headers=KEY).status_code == 200
    assert ids(warehouse) == [1]


def test_applications_cannot_take_the_identity_of_a_request(warehouse):
    for batch in (None, StreamBatch("0" * 32)):
        with pytest.raises(InvalidOptionError, match="reserved"):
            warehouse.table("sales.orders").append([], transaction=Transaction("streamhouse.request.0", 0, batch=batch))
