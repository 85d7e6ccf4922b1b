"""The ids of places of rows that a query in real-time mode wrote."""

from __future__ import annotations

from uuid import uuid4

from streamhouse_spark.core.types import StreamBatch
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.transactions import place_id, read_at, record_of, select_progress_ids


def test_places_are_found_by_their_application_alone():
    source = uuid4().hex
    own = [place_id(app, source, bucket) for app in ("a", "a/b\n", "ä") for bucket in (0, 17)]
    others = ["a", f"a/{source}", f"a/{source}/x", f"a/{source[1:]}/0", f"a/b/c/{source}/0", "a/epoch"]
    assert select_progress_ids({"a", "a/b\n", "ä"}, [*own, *others]) == tuple(own)
    assert select_progress_ids({"b"}, own) == ()


def test_the_note_of_a_record():
    record = HistoryPoint(12, "an attempt")
    assert record_of(read_at(record)) == record
    assert read_at(None) is None
    assert record_of(None) is None
    assert record_of(StreamBatch(None)) is None
