from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.sequential import one_thing_at_a_time


@pytest.fixture(autouse=True)
def _sequential() -> Iterator[None]:
    with one_thing_at_a_time():
        yield
