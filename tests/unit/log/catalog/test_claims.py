"""Claims: who has one, for how long, and that a long block keeps its own."""

from __future__ import annotations

import json
import logging

import pytest

from kit.waiting import wait_for
from streamhouse_spark import StorageError
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import refresh_claim_key, tiering_claim_key
from streamhouse_spark.log.catalog import claims
from streamhouse_spark.log.catalog.claims import CLAIM_MS, claim_work, release_claim, try_claim
from streamhouse_spark.storage.memory import MemoryStorage

UUID = "0" * 31 + "1"


@pytest.fixture
def storage(clock):
    return MemoryStorage(World(clock=clock))


def test_one_has_it_until_it_expires_or_is_given_back(storage, clock):
    assert try_claim(storage, UUID, "a")
    assert not try_claim(storage, UUID, "b")
    clock.advance(CLAIM_MS)
    assert try_claim(storage, UUID, "b")
    release_claim(storage, UUID, "a")
    assert not try_claim(storage, UUID, "a"), "it was no longer a's to give"
    release_claim(storage, UUID, "b")
    assert try_claim(storage, UUID, "a")


def test_kinds_of_work_have_claims_of_their_own(storage):
    assert try_claim(storage, UUID, "a")
    assert try_claim(storage, UUID, "b", work="refresh")
    assert not try_claim(storage, UUID, "a", work="refresh")
    assert {info.key for info in storage.list("")} == {tiering_claim_key(UUID), refresh_claim_key(UUID)}
    release_claim(storage, UUID, "b", work="refresh")
    assert not try_claim(storage, UUID, "b")


def test_a_block_keeps_its_claim_however_long_it_takes(storage, clock, monkeypatch):
    with claim_work(storage, UUID, "a", work="refresh") as is_ours:
        assert is_ours
        with claim_work(storage, UUID, "b", work="refresh") as too:
            assert not too
        assert not try_claim(storage, UUID, "c", work="refresh"), "b gives nothing back that it had not"
    assert try_claim(storage, UUID, "b", work="refresh")
    release_claim(storage, UUID, "b", work="refresh")

    monkeypatch.setattr(claims, "CLAIM_MS", 30)
    with claim_work(storage, UUID, "a", work="refresh"):
        clock.advance(2 * CLAIM_MS)
        held = lambda: json.loads(storage.read(refresh_claim_key(UUID)))  # noqa: E731
        wait_for(lambda: held()["until_ms"] > clock.now_ms(), "the claim is renewed")
        assert held()["service"] == "a"
    assert list(storage.list("")) == []


def test_a_renewal_that_fails_ends_no_work(storage, monkeypatch, caplog):
    monkeypatch.setattr(claims, "CLAIM_MS", 30)
    with caplog.at_level(logging.INFO), claim_work(storage, UUID, "a", work="refresh"):

        def fail(*_):
            raise StorageError("the store is away")

        monkeypatch.setattr(storage, "put", fail)
        wait_for(lambda: "cannot renew the claim" in caplog.text, "the line in the log")


def test_an_error_of_the_block_gives_the_claim_back(storage):
    with pytest.raises(ZeroDivisionError), claim_work(storage, UUID, "a", work="refresh"):
        _ = 1 // 0
    assert try_claim(storage, UUID, "b", work="refresh")
