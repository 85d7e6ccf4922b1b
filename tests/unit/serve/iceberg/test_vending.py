"""When credentials are vended, cached and denied, and the policy that they carry."""

from __future__ import annotations

import json

import pytest

from kit.tables import tier
from storage.policies import allows
from streamhouse_spark import InvalidOptionError, LakeMismatchError, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.serve.iceberg import vending
from streamhouse_spark.serve.iceberg.vending import CredentialVendor, read_policy
from streamhouse_spark.serve.options import VendOptions
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.s3.sts import TemporaryCredentials

ROLE = "arn:aws:iam::123456789012:role/team/readers"


class S3Memory(MemoryStorage):
    @property
    def url(self):
        return "s3://shop/wh"


class Counted:
    def __init__(self):
        self.calls = []

    def assume(self, role_arn, session, policy, seconds):
        self.calls.append((role_arn, session, json.loads(policy), seconds))
        return TemporaryCredentials("id", f"secret-{len(self.calls)}", "token", 1_000_000)


@pytest.fixture
def warehouse(clock):
    world = World(clock=clock)
    found = Warehouse("s3://shop/wh", storage=S3Memory(world), world=world)
    found.create_table("s.t", "id BIGINT").append([{"id": 1}])
    return found


def test_they_are_given_again_until_half_of_their_life_is_over(warehouse, clock):
    roles, table = Counted(), warehouse.table("s.t")
    given = CredentialVendor(warehouse, VendOptions(ROLE, 900), roles)
    first = given.vend("a", table)
    clock.sleep_ms(449_000)
    assert given.vend("a", table) is first
    clock.sleep_ms(2_000)
    second = given.vend("a", table)
    assert second.credentials.secret_access_key == "secret-2"
    assert given.vend("b", table).credentials.secret_access_key == "secret-3"
    assert [(role, session, seconds) for role, session, _, seconds in roles.calls] == [
        (ROLE, "streamhouse-a", 900),
        (ROLE, "streamhouse-a", 900),
        (ROLE, "streamhouse-b", 900),
    ]


def test_few_vended_credentials_are_cached(warehouse, monkeypatch):
    monkeypatch.setattr(vending, "_CACHED_MAX", 2)
    roles, table = Counted(), warehouse.table("s.t")
    given = CredentialVendor(warehouse, VendOptions(ROLE), roles)
    for client in ("a", "b", "c", "c", "a"):
        given.vend(client, table)
    assert [session[-1] for _, session, _, _ in roles.calls] == ["a", "b", "c", "a"]


def test_they_open_what_a_document_names(warehouse):
    roles, table = Counted(), warehouse.table("s.t")
    given = CredentialVendor(warehouse, VendOptions(ROLE), roles)
    virtual = f"lake/.virtual/{table.state.table_uuid}-"
    assert given.vend("a", table).prefixes == ("s3://shop/wh/lake/s/t/", f"s3://shop/wh/{virtual}")
    assert given.vend("a", table, of="lake").prefixes == ("s3://shop/wh/lake/s/t/",)
    assert [policy["Statement"][0]["Resource"] for _, _, policy, _ in roles.calls] == [
        ["arn:aws:s3:::shop/wh/lake/s/t/*", f"arn:aws:s3:::shop/wh/{virtual}*"],
        ["arn:aws:s3:::shop/wh/lake/s/t/*"],
    ]


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path"])
def test_a_lake_that_puts_files_elsewhere_gets_none(warehouse, name):
    table = warehouse.table("s.t")
    tier(table)
    lake = table.open_lake().binding.require()
    with lake.transaction() as changes:
        changes.set_properties({name: "s3://shop/wh/lake/s/other"})
    roles = Counted()
    with pytest.raises(LakeMismatchError, match=r"lake/s/other, outside of lake/s/t .* your own credentials"):
        CredentialVendor(warehouse, VendOptions(ROLE), roles).vend("a", table, of="lake")
    assert not roles.calls


@pytest.mark.parametrize(
    ("role", "url"),
    [
        ("readers", "s3://shop/wh"),
        ("arn:aws:iam::12:user/x", "s3://shop/wh"),
        ("arn:aws:iam::12:role/x y", "s3://shop/wh"),
        ("arn:aws:iam::12:role/", "s3://shop/wh"),
        (ROLE, "/tmp/wh"),
        (ROLE, "gs://shop/wh"),
    ],
)
def test_options_that_cannot_be(role, url):
    with pytest.raises(InvalidOptionError):
        VendOptions(role).require_usable(url)
    VendOptions(ROLE).require_usable("s3a://shop/wh")


def test_no_text_shows_them():
    found = TemporaryCredentials("the-id", "the-secret", "the-token", 5)
    assert str(found) == repr(found) == "TemporaryCredentials(ends_ms=5)"
    assert "the-" not in repr(vending.VendedCredentials(found, ("s3://b/",)))


PREFIXES = ["team/wh/lake/sales/orders/", "team/wh/lake/.virtual/0f0e-"]


def test_the_policy_of_a_client_is_this_document():
    assert json.loads(read_policy("aws", "shop", PREFIXES)) == {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": "s3:GetObject",
                "Resource": [
                    "arn:aws:s3:::shop/team/wh/lake/sales/orders/*",
                    "arn:aws:s3:::shop/team/wh/lake/.virtual/0f0e-*",
                ],
            },
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": "arn:aws:s3:::shop",
                "Condition": {
                    "StringLike": {"s3:prefix": ["team/wh/lake/sales/orders/*", "team/wh/lake/.virtual/0f0e-*"]}
                },
            },
        ],
    }


@pytest.mark.parametrize(
    ("action", "key", "allowed"),
    [
        ("s3:GetObject", "team/wh/lake/sales/orders/data/a.parquet", True),
        ("s3:GetObject", "team/wh/lake/.virtual/0f0e-7-a-0/data/a.parquet", True),
        ("s3:GetObject", "team/wh/lake/.virtual/0f0f-7-a-0/data/a.parquet", False),
        ("s3:GetObject", "team/wh/lake/sales/orders-0f0e/data/a.parquet", False),
        ("s3:GetObject", "team/wh/lake/sales/orders", False),
        ("s3:GetObject", "team/wh/tables/0f0e/commits/1.json", False),
        ("s3:GetObject", "lake/sales/orders/data/a.parquet", False),
        ("s3:PutObject", "team/wh/lake/sales/orders/data/a.parquet", False),
        ("s3:DeleteObject", "team/wh/lake/sales/orders/data/a.parquet", False),
        ("s3:GetObjectAcl", "team/wh/lake/sales/orders/data/a.parquet", False),
    ],
)
def test_the_policy_allows_objects_below_its_prefixes(action, key, allowed):
    policy = read_policy("aws", "shop", PREFIXES)
    assert allows(policy, action, f"arn:aws:s3:::shop/{key}", {}) == allowed
    assert not allows(policy, action, f"arn:aws:s3:::another/{key}", {})


@pytest.mark.parametrize(
    ("prefix", "allowed"),
    [
        ("team/wh/lake/sales/orders/", True),
        ("team/wh/lake/sales/orders/metadata/", True),
        ("team/wh/lake/.virtual/0f0e-7", True),
        ("team/wh/lake/sales/orders", False),
        ("team/wh/lake/.virtual/", False),
        ("team/wh/lake/sales/", False),
        ("", False),
        (None, False),
    ],
)
def test_the_policy_allows_listings_below_its_prefixes(prefix, allowed):
    context = {} if prefix is None else {"s3:prefix": prefix}
    assert allows(read_policy("aws", "shop", PREFIXES), "s3:ListBucket", "arn:aws:s3:::shop", context) == allowed


@pytest.mark.parametrize("prefix", ["", "a*/", "a?/", "a/${aws:username}/", "a\n/", "x" * 2_000])
def test_what_a_policy_cannot_say_gets_no_credentials(prefix):
    with pytest.raises(InvalidOptionError, match="your own credentials"):
        read_policy("aws", "shop", [prefix])


def test_the_policy_names_the_aws_partition():
    assert '"Resource":"arn:aws-cn:s3:::shop"' in read_policy("aws-cn", "shop", PREFIXES)
