"""Transaction ids that record the progress of a real-time query: ``<application id>/<uuid of the source>/<bucket>``.
Pure.

There is one per bucket of a source. The version of the transaction is the offset after the stored rows. It also names
the last record of the source when the rows were read, so that a source of another history is detected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from streamhouse_spark.core.types import StreamBatch
from streamhouse_spark.log.commits.history_epochs import HistoryPoint

_PLACE: Final = re.compile(r"(.+)/[0-9a-f]{32}/[0-9]+", re.DOTALL)


def place_id(app_id: str, source: str, bucket: int) -> str:
    return f"{app_id}/{source}/{bucket}"


def select_progress_ids(app_ids: Collection[str], progress_ids: Iterable[str]) -> tuple[str, ...]:
    """Return those of the ``progress_ids`` that belong to these applications."""
    return tuple(
        progress_id for progress_id in progress_ids if (match := _PLACE.fullmatch(progress_id)) and match[1] in app_ids
    )


def read_at(record: HistoryPoint | None) -> StreamBatch | None:
    """Return the batch of a progress transaction: it names the last record of the source when rows were read."""
    return StreamBatch(f"{record.number} {record.attempt}") if record is not None else None


def record_of(batch: StreamBatch | None) -> HistoryPoint | None:
    """Return the record that such a batch names; None if an older version of this package wrote it."""
    if batch is None or batch.fingerprint is None:
        return None
    number, _, attempt = batch.fingerprint.partition(" ")
    return HistoryPoint(int(number), attempt)
