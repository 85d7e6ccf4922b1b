"""One server of a kind for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stores.servers import KINDS, Server


@pytest.fixture(scope="session", params=list(KINDS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with KINDS[request.param](tmp_path_factory.mktemp("server")) as running:
        yield running
