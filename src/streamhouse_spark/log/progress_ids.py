"""The ids of transactions that say how far the rows of one bucket of a source are stored, for a query in Spark's
real-time mode: ``<application id>/<uuid of the source>/<bucket>``. Pure.

The version of such a transaction is the offset behind the rows. Beside it stands the newest record of the source that
the rows came from, so that rows of another history of the source are not taken for those that are stored.
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


def places_of(app_ids: Collection[str], progress_ids: Iterable[str]) -> tuple[str, ...]:
    """Return those of the ``progress_ids`` ids that are places of rows of these applications."""
    return tuple(
        progress_id for progress_id in progress_ids if (match := _PLACE.fullmatch(progress_id)) and match[1] in app_ids
    )


def read_at(record: HistoryPoint | None) -> StreamBatch | None:
    """Return the note of the newest record of the source when rows were read, for their transaction."""
    return StreamBatch(f"{record.number} {record.attempt}") if record is not None else None


def record_of(batch: StreamBatch | None) -> HistoryPoint | None:
    """Return the record of such a note; None where older versions of this package left none."""
    if batch is None or batch.fingerprint is None:
        return None
    number, _, attempt = batch.fingerprint.partition(" ")
    return HistoryPoint(int(number), attempt)
