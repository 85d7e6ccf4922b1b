from __future__ import annotations

import pickle

import pytest

from streamhouse_spark import InvalidOptionError, Transaction
from streamhouse_spark.config.spark_options import (
    EARLIEST,
    FULL,
    LATEST,
    OPTIONS,
    OffsetSpec,
    ReadOptions,
    StreamReadOptions,
    StreamWriteOptions,
    WriteOptions,
    parse_read_options,
    parse_stream_read_options,
    parse_stream_write_options,
    parse_write_options,
    resolve_warehouse,
    table_option,
    warehouse_settings,
)

PARSERS = {
    "read": parse_read_options,
    "readStream": parse_stream_read_options,
    "write": parse_write_options,
    "writeStream": parse_stream_write_options,
}


def refused(mode, options):
    with pytest.raises(InvalidOptionError) as error:
        PARSERS[mode](options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_options_that_are_left_out_have_defaults():
    assert parse_read_options({"warehouse": "/w", "path": "a.b"}) == ReadOptions(FULL, None, LATEST)
    assert parse_stream_read_options({}) == StreamReadOptions(FULL)
    assert parse_write_options({}) == WriteOptions(None)
    assert parse_stream_write_options({"checkpointlocation": "/c", "queryname": "q"}) == StreamWriteOptions(None)


def test_every_read_option_in_the_case_that_spark_hands_over():
    options = {
        "startingoffsets": '{"0": 5, "12": -2, "3": -1}',
        "startingtimestamp": "2024-01-01T00:00:00Z",
        "endingoffsets": '{"0": 9}',
        "endingtimestamp": "1704067200001",
        "readchangefeed": "true",
        "includemetadata": "true",
        "failondataloss": "false",
    }
    assert parse_read_options(options) == ReadOptions(
        starting_offsets=OffsetSpec("offsets", {0: 5, 12: -2, 3: -1}),
        starting_timestamp_ms=1_704_067_200_000,
        ending_offsets=OffsetSpec("offsets", {0: 9}),
        ending_timestamp_ms=1_704_067_200_001,
        read_change_feed=True,
        include_metadata=True,
        fail_on_data_loss=False,
    )
    assert parse_read_options({"asoflakesnapshot": "7512"}).as_of_lake_snapshot == 7512
    assert parse_read_options({"asoftimestamp": "2024-01-01T00:00:00.0009Z"}).as_of_timestamp_ms == 1_704_067_200_000


def test_every_stream_read_option():
    options = {
        "startingOffsets": "Earliest",
        "startingTimestamp": "5",
        "maxOffsetsPerTrigger": "1000",
        "maxBytesPerTrigger": "64mb",
        "failOnDataLoss": "false",
        "readChangeFeed": "true",
        "includeMetadata": "true",
        "consumerId": "billing",
    }
    assert parse_stream_read_options(options) == StreamReadOptions(
        starting_offsets=EARLIEST,
        starting_timestamp_ms=5,
        max_offsets_per_trigger=1000,
        max_bytes_per_trigger=2**26,
        read_change_feed=True,
        include_metadata=True,
        fail_on_data_loss=False,
        consumer_id="billing",
    )
    assert parse_stream_read_options({"startingOffsets": "latest"}).starting_offsets == LATEST


def test_write_options_name_the_transaction():
    options = {"txnappid": "nightly", "txnversion": "20240101"}
    assert parse_write_options(options) == WriteOptions(Transaction("nightly", 20240101))
    assert parse_stream_write_options({"txnAppId": "nightly"}) == StreamWriteOptions("nightly")


def test_options_travel_to_executors():
    parsed = parse_read_options({"startingOffsets": '{"0": 5}'})
    assert pickle.loads(pickle.dumps(parsed)) == parsed


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("read", {"startingOfsets": "full"}, "unknown option 'startingOfsets'; did you mean startingOffsets?"),
        ("read", {"zzz": "1"}, "unknown option 'zzz'; supported in read are warehouse, path"),
        ("read", {"startingOffsets": "latest"}, "startingOffsets is 'latest', expected full, earliest, or JSON"),
        ("read", {"startingOffsets": "[1]"}, "expected full, earliest, or JSON such as"),
        ("read", {"startingOffsets": "{}"}, "expected full, earliest, or JSON"),
        ("read", {"startingOffsets": '{"a": 1}'}, "a bucket in startingOffsets is 'a', expected a whole number"),
        ("read", {"startingOffsets": '{"-1": 1}'}, "a bucket in startingOffsets is '-1'"),
        ("read", {"startingOffsets": '{"0": -3}'}, "with whole offsets of at least -2"),
        ("read", {"startingOffsets": '{"0": 1.5}'}, "with whole offsets"),
        ("read", {"startingOffsets": '{"0": true}'}, "with whole offsets"),
        ("read", {"startingOffsets": '{"0": 1, "0": 2}'}, "startingOffsets is"),
        ("read", {"endingOffsets": '{"0": -2}'}, "with whole offsets of at least -1"),
        ("read", {"endingOffsets": "earliest"}, "endingOffsets is 'earliest', expected latest, or JSON"),
        ("read", {"startingTimestamp": "2024-01-01"}, "ISO-8601 with a zone"),
        ("read", {"startingTimestamp": "5", "endingTimestamp": "4"}, "startingTimestamp 5 is after endingTimestamp 4"),
        ("read", {"asOfLakeSnapshot": "latest"}, "asOfLakeSnapshot is 'latest', expected a whole number"),
        (
            "read",
            {"asOfLakeSnapshot": "1", "asOfTimestamp": "1"},
            "asOfLakeSnapshot and asOfTimestamp cannot be combined",
        ),
        (
            "read",
            {"asOfTimestamp": "1", "endingOffsets": "latest"},
            "asOfTimestamp and endingOffsets cannot be combined",
        ),
        ("read", {"failOnDataLoss": "no"}, "failOnDataLoss is 'no', expected true or false"),
        (
            "read",
            {"maxOffsetsPerTrigger": "5"},
            "option maxOffsetsPerTrigger is not supported in read, only in readStream",
        ),
        ("readStream", {"endingOffsets": "latest"}, "is not supported in readStream, only in read"),
        ("readStream", {"maxOffsetsPerTrigger": "0"}, "expected a whole number of at least 1"),
        ("readStream", {"maxBytesPerTrigger": "many"}, "expected a size above zero"),
        ("readStream", {"consumerId": " "}, "consumerId is ' ', expected 1 to 256 printable characters"),
        ("write", {"txnAppId": "streamhouse.identity.1", "txnVersion": "9"}, "choose another id"),
        ("write", {"txnAppId": "a"}, "found option txnAppId without txnVersion"),
        ("write", {"txnVersion": "1"}, "found option txnVersion without txnAppId"),
        ("write", {"txnAppId": "a", "txnVersion": "-1"}, "txnVersion is '-1', expected a whole number of at least 0"),
        ("write", {"startingOffsets": "full"}, "is not supported in write, only in read and readStream"),
        ("write", {"overwriteSchema": "true"}, "mergeSchema to add columns"),
        ("write", {"mergeSchema": "maybe"}, "mergeSchema is 'maybe', expected true or false"),
        ("writeStream", {"txnVersion": "1"}, "option txnVersion is not supported in writeStream"),
    ],
)
def test_says_which_option_is_wrong(mode, options, message):
    assert message in refused(mode, options)


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        ("versionAsOf", "asOfLakeSnapshot"),
        ("timestampAsOf", "asOfTimestamp"),
        ("readChangeData", "readChangeFeed"),
        ("startingVersion", "startingOffsets"),
        ("scan.startup.mode", "startingOffsets"),
        ("maxFilesPerTrigger", "maxBytesPerTrigger"),
        ("kafka.bootstrap.servers", "warehouse, because there is no server"),
        ("subscribe", "the table name in load"),
    ],
)
@pytest.mark.parametrize("mode", list(PARSERS))
def test_options_of_other_connectors_name_ours(mode, foreign, ours):
    message = refused(mode, {foreign: "1"})
    assert f"option {foreign} belongs to another connector; use {ours}" in message


def test_the_value_of_an_unknown_option_is_not_shown():
    assert "hunter2" not in refused("read", {"pasword": "hunter2"})


@pytest.mark.parametrize("mode", list(PARSERS))
def test_settings_of_stores_pass_through_options(mode):
    options = {"s3.endpoint": "http://h", "S3.Region": "eu", "lake.iceberg.catalog.type": "rest", "path": "a.b"}
    options |= {"gcs.project-id": "p", "adls.tenant-id": "t"}
    PARSERS[mode](options)
    assert warehouse_settings(options) == {
        "s3.endpoint": "http://h",
        "s3.region": "eu",
        "lake.iceberg.catalog.type": "rest",
        "gcs.project-id": "p",
        "adls.tenant-id": "t",
    }


def test_the_warehouse_comes_from_the_option_then_from_the_environment():
    environ = {"STREAMHOUSE_WAREHOUSE": "/env"}
    assert resolve_warehouse({"Warehouse": "/option"}, environ) == "/option"
    assert resolve_warehouse({}, environ) == "/env"
    with pytest.raises(InvalidOptionError, match=r"option\(\"warehouse\".* STREAMHOUSE_WAREHOUSE"):
        resolve_warehouse({}, {})
    with pytest.raises(InvalidOptionError, match="found no warehouse"):
        resolve_warehouse({"warehouse": " "}, environ)


@pytest.mark.parametrize(
    ("mode", "call"),
    [("read", ".load("), ("readStream", ".load("), ("write", ".save("), ("writeStream", ".start(")],
)
def test_a_missing_table_name_says_what_to_call(mode, call):
    assert table_option({"PATH": " sales.orders "}, mode) == "sales.orders"
    with pytest.raises(InvalidOptionError) as error:
        table_option({}, mode)
    assert call in str(error.value)


def test_every_option_has_a_meaning_and_one_spelling():
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    assert all(option.meaning and option.modes for option in OPTIONS)
