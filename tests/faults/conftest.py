from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from faults.avro_readers import memoized_avro_readers
from faults.sequential import one_thing_at_a_time
from faults.sim import SimClock, sim_world
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.base import Storage

# The assertions of these histories say what they found.
pytest.register_assert_rewrite("faults.planted_bugs", "faults.real_time_sink")


@pytest.fixture(scope="session", autouse=True)
def _avro_readers() -> Iterator[None]:
    with memoized_avro_readers():
        yield


@pytest.fixture(autouse=True)
def _sequential() -> Iterator[None]:
    with one_thing_at_a_time():
        yield


@pytest.fixture
def on_host(tmp_path, monkeypatch, own_cache):
    """Opens the table on a new host, with an empty cache."""
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path))
    numbers = itertools.count()

    def new_host(storage: Storage, seed: int) -> Table:
        close_tablets()
        os.environ["STREAMHOUSE_CACHE_DIR"] = str(tmp_path / str(next(numbers)))
        return Warehouse("wh", storage=storage, world=World(SimClock(), sim_world(seed).ids)).table("t")

    return new_host
