from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.core import option_parsing as values


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("500ms", 500),
        ("0", 0),
        ("42", 42),
        ("30 s", 30_000),
        ("3min", 180_000),
        ("3 Minutes", 180_000),
        ("7d", 604_800_000),
    ],
)
def test_durations_are_parsed_in_each_unit(text, expected_ms):
    assert values.parse_duration_ms("x", text) == expected_ms


@pytest.mark.parametrize("text", ["", "min", "-1s", "1.5h", "3 weeks", "1e3", "99999999999999999d", "٣min"])
def test_durations_that_cannot_be(text):
    with pytest.raises(
        InvalidOptionError, match=r"^INVALID_OPTION: table.log.ttl is '.*', expected a duration such as"
    ):
        values.parse_duration_ms("table.log.ttl", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("1b", 1), ("64KB", 65_536), ("64 mb", 67_108_864), ("1g", 2**30), ("2TiB", 2**41)],
)
def test_sizes_are_parsed_in_each_unit(text, expected):
    assert values.parse_size_bytes("x", text) == expected


@pytest.mark.parametrize("text", ["0", "0mb", "", "-1", "1.5gb", "1pb"])
def test_sizes_that_cannot_be(text):
    with pytest.raises(InvalidOptionError, match="expected a size above zero"):
        values.parse_size_bytes("x", text)


@pytest.mark.parametrize(
    ("text", "up", "down"),
    [
        ("1700000000000", 1_700_000_000_000, 1_700_000_000_000),
        ("-5", -5, -5),
        ("2024-01-01T00:00:00Z", 1_704_067_200_000, 1_704_067_200_000),
        ("2024-01-01 02:00:00+02:00", 1_704_067_200_000, 1_704_067_200_000),
        ("2024-01-01T00:00:00.000500Z", 1_704_067_200_001, 1_704_067_200_000),
        ("1969-12-31T23:59:59.999500Z", 0, -1),
    ],
)
def test_timestamps_are_rounded_up_or_down(text, up, down):
    assert values.parse_timestamp_ms("x", text, round_up=True) == up
    assert values.parse_timestamp_ms("x", text, round_up=False) == down


@given(st.datetimes(timezones=st.just(dt.UTC)))
def test_a_moment_lies_between_its_neighbours(moment):
    up = values.parse_timestamp_ms("x", moment.isoformat(), round_up=True)
    down = values.parse_timestamp_ms("x", moment.isoformat(), round_up=False)
    micros = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    assert down * 1000 <= micros <= up * 1000
    assert up - down <= 1


@pytest.mark.parametrize("text", ["2024-01-01", "2024-01-01T00:00:00", "yesterday", "", "1.5", "2024-13-01T00:00:00Z"])
def test_timestamps_without_a_zone_are_rejected(text):
    with pytest.raises(InvalidOptionError, match=r"startingTimestamp is .* ISO-8601 with a zone"):
        values.parse_timestamp_ms("startingTimestamp", text, round_up=True)


@pytest.mark.parametrize(("text", "expected"), [("true", True), (" FALSE ", False)])
def test_booleans_are_parsed_in_each_spelling(text, expected):
    assert values.parse_bool("x", text) is expected


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_booleans_that_cannot_be(text):
    with pytest.raises(InvalidOptionError, match="expected true or false"):
        values.parse_bool("x", text)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("comment", "orders of the shop", False),
        ("comment", "AKIAIOSFODNN7EXAMPLE", True),
        ("comment", "postgres://user:hunter2@host/db", True),
        ("comment", "see https://example.org/a:b@c", False),
        ("comment", "password = hunter2", True),
        ("comment", "-----BEGIN RSA PRIVATE KEY-----", True),
        ("comment", "tokens per request", False),
        ("s3.secret-access-key", "abc", True),
        ("s3.secret-access-key", "env:MY_SECRET", False),
        ("s3.secret-access-key", "file:/run/secret", False),
        ("bucket.key", "order_id", False),
    ],
)
def test_what_looks_like_a_secret(name, value, secret):
    assert values.looks_like_secret(name, value) is secret


def test_a_rejected_secret_is_not_shown():
    with pytest.raises(InvalidOptionError) as error:
        values.reject("s3.secret-access-key", "hunter2", "something else")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [("startingofsets", "startingOffsets"), ("STARTINGOFFSETS", "startingOffsets"), ("zzz", None)],
)
def test_the_nearest_name_is_suggested(name, near):
    assert values.find_nearest(name, ["startingOffsets", "endingOffsets"]) == near


@pytest.mark.parametrize(
    "names", [["a"], ["a", "b"], ["a,b", "c"], ["a`b"], [" x "], ["`", "a, `b`"], ["ab `c` d"], [""]]
)
def test_joined_names_are_read_back(names):
    assert list(values.parse_names(values.join_names(names))) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [("a, b", ("a", "b")), (" ", ()), ("a,,b", ("a", "", "b")), ("`a", ("`a",)), ("x`y`", ("x`y`",)), ("`a`", ("a",))],
)
def test_names_are_read_with_and_without_backticks(text, names):
    assert values.parse_names(text) == names


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("read s3://bucket/wh, region eu-1", "read s3://bucket/wh, region eu-1"),
        ("https://ann:pw@host/a?b=1", "https://***@host/a?b=1"),
        ("https://token@host/a", "https://***@host/a"),
        ("https://h/a?X-Amz-Signature=0f&b=1&sig=x%3D", "https://h/a?***&b=1&***"),
        ("the key AKIAIOSFODNN7EXAMPLE is unknown", "the key *** is unknown"),
        ("password = a, Authorization: Bearer b.c", "*** Authorization: ***"),
        ("found -----BEGIN RSA PRIVATE KEY-----\nabc", "found ***"),
    ],
)
def test_secrets_are_removed_from_a_text(text, left):
    assert values.without_secrets(text) == left
