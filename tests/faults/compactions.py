"""Compactions of a lake that need few files."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from streamhouse_spark.lake.iceberg import compaction as iceberg_maintain


@contextmanager
def compacting_early(files_min: int = 2) -> Iterator[None]:
    """Each lake whose library is there compacts as soon as it has so many small files."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(iceberg_maintain, "COMPACT_FILES_MIN", files_min))
        if importlib.util.find_spec("pypaimon") is not None:
            from streamhouse_spark.lake.paimon import compaction as paimon_maintain

            stack.enter_context(mock.patch.object(paimon_maintain, "COMPACT_FILES_MIN", files_min))
        yield
