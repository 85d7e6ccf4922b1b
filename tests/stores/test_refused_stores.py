"""Stores that only look and then write are refused before anything is written."""

from __future__ import annotations

import pytest

from stores.servers import versitygw
from streamhouse_spark import StorageError
from streamhouse_spark.storage.factory import open_storage

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("all_races")]


def test_a_gateway_that_looks_before_the_body_is_refused_each_time(tmp_path):
    with versitygw(tmp_path) as server:
        storage = open_storage(server.new_url(), server.settings)
        for _ in range(20):
            with pytest.raises(StorageError, match="does not support atomic conditional writes"):
                storage.check_writable()
        assert storage.list("") == []
