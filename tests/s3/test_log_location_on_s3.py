"""Tables of a warehouse on a disk whose logs lie on S3, and the other way round."""

from __future__ import annotations

import pytest

from kit.rows import ids
from kit.tables import tier
from storage.s3_server import S3Server, settings_for
from streamhouse_spark import StreamhouseError, Warehouse, relocate

pytestmark = pytest.mark.s3
COLUMNS = "id BIGINT, text STRING"


@pytest.fixture
def location(s3_server: S3Server) -> str:
    return f"s3://{s3_server.new_bucket()}/logs"


@pytest.fixture
def own(s3_server: S3Server) -> dict[str, str]:
    return {f"log.{name}": value for name, value in settings_for(s3_server.endpoint).items()}


def live(wh: Warehouse, location: str) -> None:
    table = wh.create_table(
        "sales.orders", COLUMNS, primary_key=["id"], buckets=2, properties={"table.log.location": location}
    )
    table.upsert([{"id": i, "text": "a"} for i in range(50)])
    tier(table)
    table.upsert([{"id": 3, "text": "b"}, {"id": 50, "text": "b"}])
    table.delete([{"id": 0}])
    other = Warehouse(wh.url, wh.settings).table("sales.orders")
    assert ids(other) == list(range(1, 51))
    assert other.lookup([{"id": 3}])["text"].to_pylist() == ["b"]
    table.maintain()
    assert next(iter(other.tail(start="earliest"))).num_rows > 0
    wh.drop_table("sales.orders")
    assert wh.tables() == []
    assert ids(wh.undrop_table("sales.orders")) == list(range(1, 51))


def test_a_warehouse_on_a_disk_keeps_logs_on_s3(tmp_path, location, own):
    wh = Warehouse(tmp_path / "wh", own)
    live(wh, location)
    in_warehouse = [path.name for path in (tmp_path / "wh" / "tables").rglob("*") if path.is_file()]
    assert in_warehouse == ["location.json"]
    costs = wh.table("sales.orders").costs()
    assert costs.requests.puts > 0
    with pytest.raises(StreamhouseError):
        Warehouse(tmp_path / "wh", {"s3.endpoint": "http://127.0.0.1:1", "s3.connect-timeout": "1"}).table(
            "sales.orders"
        )


def test_a_copy_takes_its_log_from_s3_into_the_warehouse(tmp_path, location, own):
    live(Warehouse(tmp_path / "wh", own), location)
    (tmp_path / "wh").rename(tmp_path / "copy")
    relocate(tmp_path / "copy", own, copy=True)
    copied = Warehouse(tmp_path / "copy").table("sales.orders")
    copied.upsert([{"id": 99, "text": "c"}])
    assert ids(copied) == [*range(1, 51), 99]


def test_a_warehouse_on_s3_keeps_logs_on_a_disk(tmp_path, s3_server):
    wh = Warehouse(f"s3://{s3_server.new_bucket()}/wh", settings_for(s3_server.endpoint))
    live(wh, str(tmp_path / "logs"))
    assert list((tmp_path / "logs" / "tables").glob("*/commits/*.json"))
