"""The policy of vended credentials, to the letter."""

from __future__ import annotations

import json

import pytest

from storage.policies import allows
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.serve.iceberg.vending import read_policy

PREFIXES = ["team/wh/lake/sales/orders/", "team/wh/lake/.virtual/0f0e-"]


def test_the_document():
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
def test_objects(action, key, allowed):
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
def test_listings(prefix, allowed):
    context = {} if prefix is None else {"s3:prefix": prefix}
    assert allows(read_policy("aws", "shop", PREFIXES), "s3:ListBucket", "arn:aws:s3:::shop", context) == allowed


@pytest.mark.parametrize("prefix", ["", "a*/", "a?/", "a/${aws:username}/", "a\n/", "x" * 2_000])
def test_what_a_policy_cannot_say_gets_no_credentials(prefix):
    with pytest.raises(InvalidOptionError, match="your own credentials"):
        read_policy("aws", "shop", [prefix])


def test_other_partitions():
    assert '"Resource":"arn:aws-cn:s3:::shop"' in read_policy("aws-cn", "shop", PREFIXES)
