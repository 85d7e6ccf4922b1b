"""Let the product do one thing at a time, so that a run is decided by its seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from streamhouse_spark.core import concurrency
from streamhouse_spark.log import staging


@contextmanager
def one_thing_at_a_time() -> Iterator[None]:
    with (
        mock.patch.object(concurrency, "THREADS_MAX", 1),
        mock.patch.object(staging, "WRITERS", 1),
        mock.patch.object(staging, "FEW_BUCKETS", range(0)),
    ):
        yield
