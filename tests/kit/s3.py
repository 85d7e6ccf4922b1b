"""Fixtures of folders whose tests reach S3 through a proxy that fails on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.sim import SimClock
from storage.s3_proxy import S3Proxy, nothing, running_s3_proxy
from storage.s3_server import S3Server, ServerClock


@pytest.fixture(scope="module")
def proxy_of_module(s3_server: S3Server) -> Iterator[S3Proxy]:
    with running_s3_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def proxy(proxy_of_module: S3Proxy) -> Iterator[S3Proxy]:
    """The proxy of the module, which passes every request on until the test plans a fault."""
    proxy_of_module.plan = nothing
    yield proxy_of_module
    proxy_of_module.plan = nothing


@pytest.fixture
def clock() -> SimClock:
    return ServerClock()
