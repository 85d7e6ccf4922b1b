"""The lake in the place of hot rows that take too long, or that cannot be made: only where a server is told so."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.iceberg_documents import rows_of
from kit.serving import http_client
from kit.tables import tier
from kit.waiting import wait_for
from streamhouse_spark import InvalidOptionError, StorageError, TableNotFoundError, Warehouse
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.iceberg.rest import _format_warning
from streamhouse_spark.serve.iceberg.served_tables import ServedTable, ServedTables, StaleFallback
from streamhouse_spark.serve.options import ServeOptions
from streamhouse_spark.serve.server_metrics import ServerCounters

PATH = "/iceberg/v1/namespaces/s/tables/t"


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    table = warehouse.create_table("s.t", "id BIGINT")
    table.append([{"id": 1}])
    tier(table)
    table.append([{"id": 2}])
    return warehouse


@pytest.fixture
def held(monkeypatch):
    """Documents are made once this is set."""
    held, original = threading.Event(), ServedTable.latest_metadata

    def newest(table):
        assert held.wait(60)
        return original(table)

    monkeypatch.setattr(ServedTable, "latest_metadata", newest)
    yield held
    held.set()


def failing(monkeypatch, error):
    def newest(_):
        raise error

    monkeypatch.setattr(ServedTable, "latest_metadata", newest)


def ids_in(answer) -> list[str]:
    return [snapshot["summary"]["total-records"] for snapshot in answer.json()["metadata"]["snapshots"]]


def test_an_engine_gets_the_lake_where_hot_rows_take_long(warehouse, held):
    client = http_client(make_app(warehouse, ServeOptions(lake_after_s=0.1)))
    slow = client.get(PATH)
    assert slow.status_code == 200
    assert ids_in(slow) == ["1"]
    assert slow.headers["warning"] == ('199 streamhouse "without hot rows: its hot rows were not ready after 0.1 s"')
    known = client.get(PATH, headers={"If-None-Match": slow.headers["etag"]})
    assert (known.status_code, "warning" in known.headers) == (304, True)
    assert 'streamhouse_serve_lake_alone_total{table="s.t"} 2.0' in client.get("/metrics").text
    held.set()
    wait_for(lambda: "warning" not in client.get(PATH).headers, "an answer with hot rows")
    fresh = client.get(PATH)
    assert ids_in(fresh) == ["1", "2"]
    assert slow.json()["metadata"]["table-uuid"] == fresh.json()["metadata"]["table-uuid"], "engines refuse another"


def test_an_engine_gets_the_lake_where_hot_rows_cannot_be_made(warehouse, monkeypatch, caplog):
    failing(monkeypatch, StorageError('the log is "away"\nwith more'))
    client = http_client(make_app(warehouse, ServeOptions(lake_after_s=60)))
    answer = client.get(PATH)
    assert ids_in(answer) == ["1"]
    assert answer.headers["warning"].endswith('its hot rows could not be read: STORAGE: the log is ?away? with more"')
    assert "s.t: responded without hot rows" in caplog.text
    patient = http_client(make_app(warehouse))
    assert patient.get(PATH).status_code == 503, "nobody said that old rows will do"


def test_the_rows_are_those_of_the_lake(warehouse, monkeypatch):
    served = ServedTables(warehouse).table("s.t")
    before = {info.key for info in warehouse.storage.list("")}
    failing(monkeypatch, StorageError("away"))
    document, reason = StaleFallback(1, ServerCounters()).metadata(served)
    assert "away" in reason
    assert rows_of(warehouse.storage, document) == [{"id": 1}]
    assert {info.key for info in warehouse.storage.list("")} == before, "nothing is written"
    assert json.loads(document.text)["location"] != json.loads(served.lake_metadata().text)["location"]


def test_a_table_without_a_lake_is_waited_for(warehouse, held):
    warehouse.create_table("s.new", "id BIGINT").append([{"id": 3}])
    served, stand_ins = ServedTables(warehouse).table("s.new"), StaleFallback(0.05, ServerCounters())
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stand_ins.metadata, served)
        held.set()
        document, reason = asked.result(60)
    assert reason is None
    assert rows_of(warehouse.storage, document) == [{"id": 3}]


def test_the_error_of_a_table_without_a_lake_is_raised(warehouse, monkeypatch):
    warehouse.create_table("s.new", "id BIGINT")
    failing(monkeypatch, StorageError("away"))
    with pytest.raises(StorageError, match="away"):
        StaleFallback(1, ServerCounters()).metadata(ServedTables(warehouse).table("s.new"))


@pytest.mark.parametrize("error", [TableNotFoundError("it was dropped"), InvalidOptionError("a paimon lake")])
def test_what_an_engine_asked_wrongly_has_no_stand_in(warehouse, monkeypatch, error):
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        StaleFallback(1, ServerCounters()).metadata(ServedTables(warehouse).table("s.t"))


def test_many_that_ask_share_what_is_made(warehouse, held, monkeypatch):
    """One is made, one waits its turn; and who asks after a write gets it, although an older one was under way."""
    patched, calls = ServedTable.latest_metadata, []

    def counted(table):
        calls.append(1)
        return patched(table)

    monkeypatch.setattr(ServedTable, "latest_metadata", counted)
    served, stand_ins, asked = ServedTables(warehouse).table("s.t"), StaleFallback(60, ServerCounters()), []
    original = stand_ins._request_build

    def counted_asking(table):
        found = original(table)
        asked.append(found)
        return found

    monkeypatch.setattr(stand_ins, "_request_build", counted_asking)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(stand_ins.metadata, served)
        wait_for(lambda: len(calls) == 1, "the first making")
        warehouse.table("s.t").append([{"id": 3}])
        others = [pool.submit(stand_ins.metadata, served) for _ in range(19)]
        wait_for(lambda: len(asked) == 20, "the asking of the others")
        held.set()
        found = {other.result(60)[0].version for other in others}
        assert first.result(60)[1] is None
    assert found == {warehouse.table("s.t").refresh().version}
    assert len(calls) == 2


def test_a_reason_is_plain_text_in_a_header():
    value = _format_warning('a "quote"\r\nSet-Cookie: x=1 → \\ ' + "y" * 1000)
    assert value.isascii()
    assert value.isprintable()
    assert value.count('"') == 2
    assert len(value) < 400
