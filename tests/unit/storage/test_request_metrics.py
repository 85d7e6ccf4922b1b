"""Requests are counted by store and folder."""

from __future__ import annotations

import os

import pytest

from streamhouse_spark.storage.request_metrics import METER, NO_REQUESTS, RequestCounts

URL = "s3://test-requests/wh"


@pytest.fixture(autouse=True)
def fresh_counts(monkeypatch):
    monkeypatch.setattr(METER, "_counts", {})


def test_request_counts_are_added_and_subtracted():
    one = RequestCounts(gets=2, puts=1, received_bytes=10)
    both = one + RequestCounts(lists=3, deletes=4, heads=5, puts=1, sent_bytes=7)
    assert both == RequestCounts(gets=2, heads=5, puts=2, lists=3, deletes=4, sent_bytes=7, received_bytes=10)
    assert both.total == 16
    assert both - one == RequestCounts(lists=3, deletes=4, heads=5, puts=1, sent_bytes=7)


def test_folders_and_stores_are_apart():
    METER.note(URL, "tables/aa/commits/0001.json", RequestCounts(puts=1))
    METER.note(URL, "tables/aa/segments/x.arrow", RequestCounts(gets=1))
    METER.note(URL, "tables/ab/commits/0001.json", RequestCounts(gets=10))
    METER.note(URL, "lake/db/t/data/p=1/bucket=0/x.parquet", RequestCounts(gets=100))
    METER.note(URL, "lake/db/t2/metadata/v1.json", RequestCounts(gets=1000))
    METER.note("s3://other/wh", "tables/aa/commits/0001.json", RequestCounts(gets=10_000))
    assert METER.of(URL, ["tables/aa/"]) == RequestCounts(gets=1, puts=1)
    assert METER.of(URL, ["tables/aa/", "lake/db/t/"]) == RequestCounts(gets=101, puts=1)
    assert METER.of(URL).gets == 1111
    assert METER.of("s3://nowhere") == NO_REQUESTS


def test_a_listing_counts_for_the_folder_that_it_lists():
    METER.note(URL, "tables/aa/", RequestCounts(lists=1))
    METER.note(URL, "tables/", RequestCounts(lists=10))
    METER.note(URL, "", RequestCounts(lists=100))
    assert METER.of(URL, ["tables/aa/"]).lists == 1
    assert METER.of(URL).lists == 111


def test_folders_beyond_the_bound_count_for_the_store_alone(monkeypatch):
    monkeypatch.setattr("streamhouse_spark.storage.request_metrics._FOLDERS_MAX", 2)
    for number in range(5):
        METER.note(URL, f"tables/{number}/x", RequestCounts(gets=1))
    assert METER.of(URL).gets == 5
    assert METER.of(URL, ["tables/0/"]).gets == METER.of(URL, ["tables/1/"]).gets == 1


def test_a_child_begins_at_zero():
    METER.note(URL, "tables/aa/x", RequestCounts(gets=3))
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, str(METER.of(URL).gets).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"0"
    os.close(read)
    os.close(write)
    assert METER.of(URL).gets == 3
