"""The policies of docs/operate/rights.md, on a store that enforces them: each role does its work, and no more."""

from __future__ import annotations

import json
import re

import pytest
from botocore.exceptions import ClientError

from doc_pages import PAGES
from kit.rows import ids
from kit.serving import http_client
from kit.tables import tier
from storage.s3_roles import guarded_s3
from streamhouse_spark import Warehouse
from streamhouse_spark.errors import StorageRefusedError
from streamhouse_spark.log.gc import garbage_collection
from streamhouse_spark.serve.app import make_app

pytestmark = pytest.mark.s3

POLICIES = {
    name.lower(): text
    for name, text in re.findall(
        r"^## (\w+)\n[^#]*?```json\n(.*?)^```", PAGES["docs/operate/rights.md"], re.MULTILINE | re.DOTALL
    )
}
URL, BUCKET, FOLDER = "s3://lakehouse/team/wh", "lakehouse", "team/wh/"
FOREIGN = "team/other/secret"


def test_the_page_has_a_policy_of_each_role():
    assert POLICIES.keys() == {"reader", "writer", "tierer", "server", "owner"}
    for policy in POLICIES.values():
        assert json.loads(policy)["Version"] == "2012-10-17"


@pytest.fixture(scope="module")
def store():
    with guarded_s3() as found:
        everything = json.dumps(
            {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        )
        s3 = found.client("s3", found.user("root", everything))
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key=FOREIGN, Body=b"x")
        yield found


@pytest.fixture(scope="module")
def settings_of(store):
    return {name: store.user(name, policy) for name, policy in POLICIES.items()}


@pytest.fixture(scope="module")
def opened(settings_of):
    """The warehouse, with rows in log and lake, as each role opens it."""
    owner = Warehouse(URL, settings_of["owner"])
    owner.create_table("sales.clicks", "id BIGINT, n INT")
    owner.create_table("sales.orders", "id BIGINT NOT NULL, n INT", primary_key=["id"])
    for name in ("clicks", "orders"):
        table = owner.table(f"sales.{name}")
        write(table, range(10))
        tier(table)
        write(table, range(10, 15))
    return {name: Warehouse(URL, settings) for name, settings in settings_of.items()}


def write(table, numbers, n=0):
    rows = [{"id": number, "n": n} for number in numbers]
    (table.upsert if table.state.primary_key else table.append)(rows)


def allowed(store, settings, key):
    """What a role may do with an object, asked of the store itself."""
    s3 = store.client("s3", settings)
    found = ""
    for name, request, more in (
        ("r", s3.get_object, {}),
        ("w", s3.put_object, {"Body": b"x"}),
        ("d", s3.delete_object, {}),
    ):
        try:
            request(Bucket=BUCKET, Key=key, **more)
            found += name
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                found += name
    return found


MAY = {
    "reader": {"root": "r", "name": "r", "commit": "r", "claim": "r", "failures": "r", "lake": "r", "virtual": "r"},
    "writer": {"root": "r", "name": "r", "commit": "rw", "claim": "r", "failures": "r", "lake": "r", "virtual": "r"},
    "tierer": {
        "root": "r",
        "name": "r",
        "commit": "rwd",
        "claim": "rwd",
        "failures": "rwd",
        "lake": "rwd",
        "virtual": "rwd",
    },
    "server": {"root": "r", "name": "r", "commit": "rw", "claim": "r", "failures": "r", "lake": "r", "virtual": "rwd"},
    "owner": {
        "root": "rwd",
        "name": "rwd",
        "commit": "rwd",
        "claim": "rwd",
        "failures": "rwd",
        "lake": "rwd",
        "virtual": "rwd",
    },
}
"""Read, write, delete."""
KEYS = {
    "root": "try.json",
    "name": "sales/try/names/00000001.json",
    "commit": "tables/try/commits/00000000000000000001.json",
    "claim": "tables/try/tiering-claim.json",
    "failures": "tables/try/tiering-failures.json",
    "lake": "lake/sales/try/data/a.parquet",
    "virtual": "lake/.virtual/try-1-a/data/a.parquet",
}


@pytest.mark.long
@pytest.mark.parametrize("role", POLICIES)
def test_each_role_reaches_exactly_its_folders(store, settings_of, role):
    assert {kind: allowed(store, settings_of[role], f"{FOLDER}{key}") for kind, key in KEYS.items()} == MAY[role]
    assert allowed(store, settings_of[role], FOREIGN) == ""


@pytest.mark.long
def test_a_reader_reads_and_writes_nothing(opened):
    reader = opened["reader"]
    assert reader.tables() == ["sales.clicks", "sales.orders"]
    for name in reader.tables():
        table = reader.table(name)
        assert ids(table) == list(range(15))
        assert len(table.lake.to_arrow()) == 10
        with pytest.raises(StorageRefusedError):
            write(table, [99])
        with pytest.raises(StorageRefusedError):
            tier(table)
    assert reader.table("sales.orders").lookup([{"id": 3}])["n"].to_pylist() == [0]
    with pytest.raises(StorageRefusedError):
        reader.create_table("sales.made", "id BIGINT")


@pytest.mark.long
def test_a_writer_writes_rows_and_nothing_else(opened):
    writer = opened["writer"]
    for name in ("sales.clicks", "sales.orders"):
        table = writer.table(name)
        for number in range(45):  # checkpoints and compaction of the log are among it
            write(table, [100 + number])
        write(table, range(1_000, 9_000))
        table.delete([{"id": 100}]) if table.state.primary_key else table.delete(where=[("id", "=", 100)])
        assert ids(table) == [*range(15), *range(101, 145), *range(1_000, 9_000)]
        with pytest.raises(StorageRefusedError):
            tier(table)
        with pytest.raises(StorageRefusedError):
            writer.rename_table(name, "sales.renamed")
        many = [{"id": n} for n in (*range(100, 145), *range(1_000, 9_000))]
        table.delete(many) if table.state.primary_key else table.delete(where=[("id", ">=", 100)])
        assert ids(table) == list(range(15))
    with pytest.raises(StorageRefusedError):
        writer.create_table("sales.made", "id BIGINT")


@pytest.mark.long
def test_a_reader_names_no_consumer_and_a_writer_does(opened):
    with pytest.raises(StorageRefusedError):
        opened["reader"].table("sales.clicks").move_consumer("board", {0: 1})
    opened["writer"].table("sales.clicks").move_consumer("board", {0: 1})
    opened["writer"].table("sales.clicks").move_consumer("board", None)


@pytest.mark.long
def test_a_tierer_tiers_and_cleans(opened, monkeypatch):
    monkeypatch.setattr(garbage_collection, "GRACE_MS_MIN", 0)
    tierer = opened["tierer"]
    for name in ("sales.clicks", "sales.orders"):
        table = tierer.table(name)
        assert tier(table).rows > 0
        table.maintain()
        assert ids(table) == sorted(table.lake.to_arrow()["id"].to_pylist()) == list(range(15))
        table.truncate()
        deleted = garbage_collection.clean(table.log, table.storage, grace_ms=0).deleted
        deleted += garbage_collection.clean(table.log, table.storage, grace_ms=0).deleted
        assert deleted
        with pytest.raises(StorageRefusedError):
            tierer.rename_table(name, "sales.renamed")
    with pytest.raises(StorageRefusedError):
        tierer.create_table("sales.made", "id BIGINT")


@pytest.mark.long
def test_a_server_takes_rows_and_shows_fresh_ones(opened):
    app = make_app(opened["server"])
    client = http_client(app)
    rows = "/api/v1/tables/sales.clicks/rows"
    assert client.post(rows, json=[{"id": 200, "n": 1}]).status_code == 200
    assert client.get("/iceberg/v1/namespaces/sales/tables/clicks").status_code == 200
    app.state.tables.clean()
    with pytest.raises(StorageRefusedError):
        tier(opened["server"].table("sales.clicks"))
    reading = http_client(make_app(opened["reader"]))
    answer = reading.post(rows, json=[{"id": 201, "n": 1}])
    assert answer.status_code == 403
    assert answer.json()["error"]["kind"] == "invalid"
    opened["owner"].table("sales.clicks").delete(where=[("id", ">=", 200)])


@pytest.mark.long
def test_an_owner_makes_renames_and_drops(opened):
    owner = opened["owner"]
    owner.create_table("sales.made", "id BIGINT").append([{"id": 1}])
    owner.rename_table("sales.made", "sales.renamed")
    owner.drop_table("sales.renamed")
    assert owner.tables() == ["sales.clicks", "sales.orders"]


@pytest.mark.long
def test_a_list_that_is_limited_to_the_folder_is_too_little(store, opened):
    """Absent records would be denied, so nobody could commit."""
    policy = json.loads(POLICIES["writer"])
    policy["Statement"][0]["Condition"] = {"StringLike": {"s3:prefix": f"{FOLDER}*"}}
    poor = Warehouse(URL, store.user("poor", json.dumps(policy)))
    with pytest.raises(StorageRefusedError, match="without s3:ListBucket the store reports denied access"):
        write(poor.table("sales.clicks"), [1])
