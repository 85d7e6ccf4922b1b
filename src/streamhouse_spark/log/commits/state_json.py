"""JSON encoding of a table's state, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.config.partition_specs import FormerPartitioning
from streamhouse_spark.log.commits import actions as act
from streamhouse_spark.log.commits import transactions as writers
from streamhouse_spark.log.commits.actions import Payload
from streamhouse_spark.log.commits.archive_metadata import NO_ARCHIVE, Archive
from streamhouse_spark.log.commits.delete_vectors import (
    NO_DROPPED_ROWS,
    Deletion,
    Deletions,
    DroppedPartitionRows,
    Truncation,
)
from streamhouse_spark.log.commits.history_epochs import ConsumerPosition, HistoryIndex, HistoryPoint
from streamhouse_spark.log.commits.request_keys import RequestKeys
from streamhouse_spark.log.commits.state import BucketLog, TableState, with_lake
from streamhouse_spark.log.commits.tags import tags_from_json, tags_to_json
from streamhouse_spark.log.commits.tombstone import TombstonedFile
from streamhouse_spark.schema.schema_log import SchemaChange
from streamhouse_spark.schema.table_schema import TableSchema


def state_to_json(state: TableState, payload: Payload) -> dict[str, Any]:
    """Return the state as the header of a checkpoint."""
    out = {
        "table": state.table_uuid,
        "version": state.version,
        "name": state.name,
        "created_ms": state.created_ms,
        "time_ms": state.time_ms,
        "schema_id": state.schema_id,
        "schemas": {str(i): s.to_json() for i, s in state.schemas.items()},
        "partition_by": list(state.partition_by),
        "num_buckets": state.num_buckets,
        "properties": dict(state.properties),
        "lake_location": state.lake_location,
        "buckets": [
            {
                "bucket": bucket,
                "range": [log.start, log.end],
                "segments": [act.segment_to_json(s, payload) for s in log.segments],
            }
            for bucket, log in state.buckets.items()
        ],
        "lake": [act.lake_to_json(pair) for pair in state.lake_history],
        **writers.entries_to_json(state.transactions, state.time_ms),
        "condemned": [[key, c.commit, c.time_ms, c.orphan] for key, c in state.condemned.items()],
        "manifests": [[number, uuid] for number, uuid in state.manifests.items()],
        "consumers": [
            [name, c.time_ms, {str(b): o for b, o in sorted(c.offsets.items())}] for name, c in state.consumers.items()
        ],
        "dropped": state.dropped,
    }
    if marks := {name: list(c.history) for name, c in state.consumers.items() if c.history is not None}:
        out["consumer_histories"] = marks
    if state.successor is not None:
        out["successor"] = state.successor
    if state.buried:
        out["buried"] = True
    if state.past_transactions:
        out["past_transactions"] = list(payload.add(writers.past_to_bytes(state.past_transactions)))
    if state.request_keys:
        out["request_keys"] = list(payload.add(state.request_keys.to_bytes()))
    if state.named != 1:
        out["named"] = state.named
    if state.anchors.marks:
        out["anchors"] = state.anchors.to_json()
    if state.former_uuids:
        out["former_uuids"] = list(state.former_uuids)
    out.update(_lake_to_json(state))
    out.update(_schemas_to_json(state))
    if state.snapshots:
        out["snapshots"] = [act.snapshot_to_json(s, payload) for s in state.snapshots.values()]
    out.update(_absent_rows(state))
    out.update(tags_to_json(state.tags))
    if state.archive:
        out["archive"] = state.archive.to_json()
    if state.truncation is not None:
        out["truncation"] = _truncation_to_json(state.truncation)
    return out


def _lake_to_json(state: TableState) -> dict[str, Any]:
    former = {"former_lakes": list(state.former_lakes)} if state.former_lakes else {}
    return {**former, "expiring": sorted(state.expiring)} if state.expiring else former


def _schemas_to_json(state: TableState) -> dict[str, Any]:
    former = [entry.to_json() for entry in state.former_partitionings]
    changes = [entry.to_json() for entry in state.schema_changes]
    return {
        name: entries for name, entries in (("former_partitionings", former), ("schema_changes", changes)) if entries
    }


def _absent_rows(state: TableState) -> dict[str, Any]:
    deletions = {"deletions": [deletion.to_json() for deletion in state.deletions]} if state.deletions else {}
    dropped = {"dropped_rows": state.dropped_rows.to_json()} if state.dropped_rows != NO_DROPPED_ROWS else {}
    return {**deletions, **dropped}


def _truncation_to_json(truncation: Truncation) -> dict[str, Any]:
    offsets = {str(bucket): offset for bucket, offset in sorted(truncation.offsets.items())}
    return {"commit": truncation.commit, "time_ms": truncation.time_ms, "offsets": offsets}


def _truncation_from_json(data: Mapping[str, Any] | None) -> Truncation | None:
    if data is None:
        return None
    return Truncation(data["commit"], data["time_ms"], {int(b): o for b, o in data["offsets"].items()})


def _consumers_from_json(data: Mapping[str, Any]) -> dict[str, ConsumerPosition]:
    marks = {name: HistoryPoint.from_json(mark) for name, mark in data.get("consumer_histories", {}).items()}
    return {
        name: ConsumerPosition({int(b): o for b, o in offsets.items()}, ms, marks.get(name))
        for name, ms, offsets in data["consumers"]
    }


def state_from_json(data: Mapping[str, Any], payload: memoryview) -> TableState:
    history = tuple(act.lake_from_json(pair) for pair in data["lake"])
    buckets = {
        b["bucket"]: BucketLog(
            start=b["range"][0],
            end=b["range"][1],
            segments=tuple(act.segment_from_json(s, payload) for s in b["segments"]),
        )
        for b in data["buckets"]
    }
    state = TableState(
        table_uuid=data["table"],
        version=data["version"],
        name=data["name"],
        created_ms=data["created_ms"],
        time_ms=data["time_ms"],
        schema_id=data["schema_id"],
        schemas={int(i): TableSchema.from_json(s) for i, s in data["schemas"].items()},
        partition_by=tuple(data["partition_by"]),
        num_buckets=data["num_buckets"],
        properties=data["properties"],
        lake_location=data["lake_location"],
        buckets=buckets,
        lake_history=history,
        truncation=_truncation_from_json(data.get("truncation")),
        transactions=writers.entries_from_json(data),
        past_transactions=writers.past_from_bytes(payload[slice(*data.get("past_transactions", (0, 0)))]),
        request_keys=RequestKeys.from_bytes(payload[slice(*data.get("request_keys", (0, 0)))]),
        condemned={key: TombstonedFile(commit, ms, orphan) for key, commit, ms, orphan in data["condemned"]},
        manifests=dict(data["manifests"]),
        consumers=_consumers_from_json(data),
        snapshots={s["bucket"]: act.snapshot_from_json(s, payload) for s in data.get("snapshots", [])},
        deletions=Deletions(Deletion.from_json(entry) for entry in data.get("deletions", ())),
        dropped_rows=DroppedPartitionRows.from_json(data["dropped_rows"])
        if "dropped_rows" in data
        else NO_DROPPED_ROWS,
        tags=tags_from_json(data.get("tags", {})),
        archive=Archive.from_json(data["archive"]) if "archive" in data else NO_ARCHIVE,
        expiring=frozenset(data.get("expiring", ())),
        former_lakes=tuple(data.get("former_lakes", ())),
        schema_changes=tuple(SchemaChange.from_json(entry) for entry in data.get("schema_changes", ())),
        former_partitionings=tuple(map(FormerPartitioning.from_json, data.get("former_partitionings", ()))),
        named=data.get("named", 1),
        former_uuids=tuple(data.get("former_uuids", ())),
        dropped=data["dropped"],
        successor=data.get("successor"),
        buried=data.get("buried", False),
        anchors=HistoryIndex.from_json(data.get("anchors")),
    )
    return with_lake(state)
