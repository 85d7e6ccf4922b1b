"""The promises of every `Storage`, asked of real servers of each protocol."""

from __future__ import annotations

import pytest

from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.factory import open_storage
from unit.storage.test_contract import TestCreating, TestListing, TestReading, TestTheRest, TestWriting

__all__ = ["TestCreating", "TestListing", "TestReading", "TestTheRest", "TestWriting"]

pytestmark = pytest.mark.stores


@pytest.fixture
def store(server) -> Storage:
    return open_storage(server.new_url(), server.settings)


@pytest.fixture
def shared_store(store: Storage) -> Storage:
    return store
