"""Each case runs over both lake formats on a local disk; eleven of them also on S3, and all of them there when
``STREAMHOUSE_TEST_CONTRACT=s3`` says so, or on a real server of a store when it names one of `stores.servers.KINDS`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from contract.house import House
from faults.sim import SimClock, sim_world
from storage.s3_server import settings_for
from stores.servers import KINDS, Server
from streamhouse_spark import Warehouse
from streamhouse_spark.storage.local import LocalStorage

FORMATS = ("iceberg", "paimon")
_MARKS = {"disk": [], "s3": [pytest.mark.s3, pytest.mark.long]}
_PLACE = os.environ.get("STREAMHOUSE_TEST_CONTRACT", "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "house" not in metafunc.fixturenames:
        return
    on_disk = not _PLACE or metafunc.definition.get_closest_marker("only_on_disk") is not None
    marker = metafunc.definition.get_closest_marker("also_on_s3")
    on_s3 = marker.args or FORMATS if marker is not None else ()
    if _PLACE:
        on_s3 = () if on_disk else FORMATS
    cases = [("disk", name) for name in FORMATS if on_disk] + [(_PLACE or "s3", name) for name in on_s3]
    metafunc.parametrize(
        "house",
        [
            pytest.param(
                (name, place),
                id=f"{name} on {place}",
                marks=_MARKS.get(place, [pytest.mark.stores]),
            )
            for place, name in cases
        ],
        indirect=True,
    )


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with KINDS[_PLACE](tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def house(request: pytest.FixtureRequest, warehouse_path: str, own_cache: object) -> House:
    lake_format, place = request.param
    if place == "s3":
        server = request.getfixturevalue("s3_server")
        url, settings = f"s3://{server.new_bucket()}/wh", settings_for(server.endpoint)
        return House(Warehouse(url, settings), lake_format, lambda: Warehouse(url, settings), settings=settings)
    if place != "disk":
        server = request.getfixturevalue("store_server")
        url, given = server.new_url(), server.settings
        return House(Warehouse(url, given), lake_format, lambda: Warehouse(url, given), None, given, server.readers)
    clock = SimClock()
    seeds = iter(range(1, 1000))

    def process(seed: int) -> Warehouse:
        world = sim_world(seed, clock)
        return Warehouse(warehouse_path, storage=LocalStorage(warehouse_path, fsync=False, world=world), world=world)

    return House(process(0), lake_format, lambda: process(next(seeds)), clock)
