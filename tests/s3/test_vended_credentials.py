"""Credentials that `serve` gives for the files of one table, against a store that enforces policies."""

from __future__ import annotations

import json
import logging

import duckdb
import pytest
from botocore.exceptions import ClientError
from duckdb_extensions import import_extension
from pyiceberg.catalog import load_catalog

from kit.serving import http_client, served
from kit.tables import tier
from storage.s3_roles import ALL_OF_STS_AND_S3, document, guarded_s3
from streamhouse_spark import Warehouse
from streamhouse_spark.serve.acl import Access, Client, digest_of, parse_pattern
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.options import ServeOptions, VendOptions

pytestmark = pytest.mark.s3

TOKENS = {"shop": "token-of-the-shop", "board": "token-of-the-board"}
ACCESS = Access(
    {
        digest_of(TOKENS["shop"]): Client("shop", readable=(parse_pattern("sales.orders"),)),
        digest_of(TOKENS["board"]): Client("board", readable=(parse_pattern("*"),)),
    }
)
ASKS = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@pytest.fixture(scope="module")
def store():
    with guarded_s3() as found:
        yield found


@pytest.fixture(scope="module")
def warehouse(store):
    settings = store.user("server", document(ALL_OF_STS_AND_S3))
    store.client("s3", settings).create_bucket(Bucket="shop")
    warehouse = Warehouse("s3://shop/team/wh", settings)
    for name in ("sales.orders", "sales.orders_of_others"):
        table = warehouse.create_table(name, "id BIGINT NOT NULL, n INT", primary_key=["id"], buckets=2)
        table.upsert([{"id": n, "n": 0} for n in range(20)])
        tier(table)
        table.upsert([{"id": n, "n": 1} for n in range(15, 25)])
        table.delete([{"id": 3}])
    return warehouse


@pytest.fixture(scope="module")
def role(store):
    everything = [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]
    return store.role("readers", document(everything))


def options(store, role, **more):
    config = {"s3.endpoint": store.server.endpoint, "s3.region": "us-east-1", "s3.path-style-access": "true"}
    return ServeOptions(client_config=config, vend=VendOptions(role), **more)


def rows(table):
    return sorted((row["id"], row["n"]) for row in table.to_pylist())


def is_denied(request, **parameters):
    try:
        request(**parameters)
    except ClientError as error:
        return error.response["Error"]["Code"] in ("AccessDenied", "403")
    return False


def test_a_client_reads_with_vended_credentials_alone(store, warehouse, role, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with served(warehouse, options(store, role)) as url:
        catalog = load_catalog("sh", type="rest", uri=f"{url}/iceberg")
        assert rows(catalog.load_table("sales.orders").scan().to_arrow()) == rows(
            warehouse.table("sales.orders").to_arrow()
        )
        history = catalog.load_table("sales.orders$history").scan().to_arrow()
        assert history.num_rows == warehouse.table("sales.orders").refresh().version
        assert rows(catalog.load_table("sales.orders$lake").scan().to_arrow()) == [(n, 0) for n in range(20)]
        lakes = load_catalog("lakes", type="rest", uri=f"{url}/iceberg", warehouse="lake")
        assert rows(lakes.load_table("sales.orders").scan().to_arrow()) == [(n, 0) for n in range(20)]
        duck = duckdb.connect()
        for name in ("avro", "iceberg", "httpfs"):
            import_extension(name)
            duck.load_extension(name)
        duck.execute(f"ATTACH '' AS sh (TYPE iceberg, ENDPOINT '{url}/iceberg', AUTHORIZATION_TYPE 'none')")
        assert sorted(duck.execute("SELECT id, n FROM sh.sales.orders").fetchall()) == rows(
            warehouse.table("sales.orders").to_arrow()
        )
        given = catalog.load_credentials("sales.orders", catalog.load_table("sales.orders").metadata_location)
        assert given["s3.session-token"]
        without = load_catalog("none", type="rest", uri=f"{url}/iceberg", **{"header.X-Iceberg-Access-Delegation": ""})
        with pytest.raises(OSError, match=r"(?i)denied|credential|forbidden"):
            without.load_table("sales.orders").scan().to_arrow()


def vended(app, path="orders", **headers):
    answer = http_client(app, headers={**ASKS, **headers}).get(f"/iceberg/v1/namespaces/sales/tables/{path}")
    assert answer.status_code == 200, answer.text
    return answer


def test_the_credentials_open_the_files_of_their_table_and_nothing_else(store, warehouse, role):
    app = make_app(warehouse, options(store, role))
    uuid, storage = warehouse.table("sales.orders").state.table_uuid, warehouse.storage
    others = [
        "streamhouse.json",
        next(iter(storage.list(f"tables/{uuid}/commits/"))).key,
        next(iter(storage.list("lake/sales/orders_of_others/metadata/"))).key,
    ]
    vended(app, "orders_of_others")
    virtual = {info.key: info.key.split("/")[2].startswith(uuid) for info in storage.list("lake/.virtual/")}
    own = [info.key for info in storage.list("lake/sales/orders/")]
    for path, opened in (("orders", [*own, *(k for k, is_own in virtual.items() if is_own)]), ("orders$lake", own)):
        s3 = store.client("s3", vended(app, path).json()["config"])
        for key in opened:
            s3.head_object(Bucket="shop", Key=f"team/wh/{key}")
        for key in [*others, *(k for k in virtual if k not in opened)]:
            assert is_denied(s3.get_object, Bucket="shop", Key=f"team/wh/{key}"), key
        assert s3.list_objects_v2(Bucket="shop", Prefix="team/wh/lake/sales/orders/")["KeyCount"] == len(own)
        for prefix in ("", "team/wh/", "team/wh/lake/sales/orders", "team/wh/lake/sales/orders_of_others/"):
            assert is_denied(s3.list_objects_v2, Bucket="shop", Prefix=prefix), prefix
        key = f"team/wh/{own[0]}"
        assert is_denied(s3.put_object, Bucket="shop", Key=key, Body=b"x")
        assert is_denied(s3.delete_object, Bucket="shop", Key=key)


def test_a_role_whose_own_policy_is_the_document(store, warehouse):
    """As moto itself evaluates it, by action and key."""
    granted = []

    class Noted:
        def assume(self, role_arn, session, policy, seconds):
            granted.append(policy)
            raise StopIteration

    from streamhouse_spark.serve.iceberg.vending import CredentialVendor

    vending = CredentialVendor(warehouse, VendOptions("arn:aws:iam::123456789012:role/x"), Noted())
    with pytest.raises(StopIteration):
        vending.vend("anybody", warehouse.table("sales.orders"), of="lake")
    arn = store.role("narrow", granted[0])
    key = store.client("sts", warehouse.settings).assume_role(RoleArn=arn, RoleSessionName="reader")["Credentials"]
    config = {
        "s3.access-key-id": key["AccessKeyId"],
        "s3.secret-access-key": key["SecretAccessKey"],
        "s3.session-token": key["SessionToken"],
    }
    s3 = store.client("s3", config)
    for name, denied in (("orders", False), ("orders_of_others", True)):
        for info in warehouse.storage.list(f"lake/sales/{name}/"):
            assert is_denied(s3.get_object, Bucket="shop", Key=f"team/wh/{info.key}") == denied, info.key


def test_only_who_may_read_a_table_gets_any(store, warehouse, role, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    audit = AuditLog(str(tmp_path / "audit.log"), warehouse.world.clock)
    app = make_app(warehouse, options(store, role, access=lambda: ACCESS, audit=audit))
    shop, board = ({"Authorization": f"Bearer {token}"} for token in TOKENS.values())
    first = vended(app, **shop)
    assert first.headers["cache-control"] == "no-store"
    assert vended(app, **shop).json()["config"] == first.json()["config"], "given again, without a request"
    assert vended(app, **board).json()["config"] != first.json()["config"], "each client has its own"
    by_route = vended(app, "orders/credentials", **shop).json()["storage-credentials"]
    assert by_route == first.json()["storage-credentials"]
    client = http_client(app, headers={**ASKS, **shop})
    for path in ("orders_of_others", "orders_of_others/credentials", "absent/credentials"):
        assert client.get(f"/iceberg/v1/namespaces/sales/tables/{path}").status_code == 404
    audit.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert ["credentials_until" in line for line in lines] == [True] * 4 + [False] * 3
    secrets = [first.json()["config"][f"s3.{name}"] for name in ("secret-access-key", "session-token")]
    for text in ("\n".join(map(str, lines)), caplog.text, repr(app.state.__dict__)):
        assert not any(secret in text for secret in secrets)
    assert "AssumeRole" in caplog.text, "the client's own log is looked at too"


def test_an_answer_that_is_still_right_is_given_again_with_its_credentials_only(store, warehouse, role):
    app = make_app(warehouse, options(store, role))
    loaded = vended(app)
    again = http_client(app).get(
        "/iceberg/v1/namespaces/sales/tables/orders", headers={**ASKS, "If-None-Match": loaded.headers["etag"]}
    )
    assert again.status_code == 304
    without = http_client(app).get(
        "/iceberg/v1/namespaces/sales/tables/orders", headers={"If-None-Match": loaded.headers["etag"]}
    )
    assert without.status_code == 200
    assert not any("key" in name or "token" in name for name in without.json()["config"])
    assert "storage-credentials" not in without.json()


def test_a_server_that_may_not_assume_the_role_says_so_without_naming_it(store, warehouse, role, caplog):
    settings = store.user("poor", document([{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]))
    app = make_app(Warehouse(warehouse.url, settings), options(store, role))
    client = http_client(app, headers=ASKS)
    answer = client.get("/iceberg/v1/namespaces/sales/tables/orders")
    assert answer.status_code == 403
    assert "credentials for readers" in answer.json()["error"]["message"]
    assert "role/readers" not in answer.text
    assert "role/readers" in caplog.text
    assert client.get("/iceberg/v1/namespaces/sales/tables/orders", headers=dict.fromkeys(ASKS, "")).status_code == 200
