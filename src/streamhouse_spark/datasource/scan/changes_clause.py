"""Scans of a table's changes for Spark's ``CHANGES`` clause (4.2 and newer)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource.scan.cache_validators import NO_LAKE
from streamhouse_spark.datasource.scan.query_snapshot import CHANGES, QuerySnapshot, cache_state
from streamhouse_spark.datasource.scan.scan import describe_scan, plan
from streamhouse_spark.errors import DifferentHistoryError, InvalidNameError, InvalidOptionError
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.segments.metadata_columns import CHANGES_FIELDS
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.change_feed.planning import commits_between, find_new_commits, require_full_changelog
from streamhouse_spark.schema.table_schema import require_distinct_names
from streamhouse_spark.table.incremental_scans import resolve_version_range
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection

_NET = "netChanges"


def load_changes(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Describe the changes of a table in the form of `load`, with the primary key as ``row_id``, and the ``first``
    commit.

    Raises `TableNotFoundError`, `InvalidNameError` for a name with a suffix, `InvalidOptionError` for unknown versions
    and for a table whose log does not contain full changes. Raises `OffsetsTrimmedError` for times whose commits are no
    longer retained.
    """
    name = parse_table_name(f"{args['database']}.{args['table']}")
    if name.suffix is not None:
        raise InvalidNameError(f"{name}: found a system table, expected a table for CHANGES; use {name.path}")
    table = connection.table(str(name.path))
    state = table.state
    require_full_changelog(state)
    require_distinct_names(state.schema.names, (field.name for field in CHANGES_FIELDS), f"{name} CHANGES")
    first, last = _resolve_range(table, state, args["range"])
    is_net = args["mode"] == _NET and not state.primary_key
    snapshot = QuerySnapshot(
        table.name,
        table.uuid,
        CHANGES,
        state.version,
        attempt=state.attempt,
        first=first,
        last=last,
        is_open=args["range"].get("end") is None,
        schema_id=state.schema_id,
        is_net=is_net,
    )
    cache_state(state)
    return {**describe_scan(connection, snapshot, NO_LAKE), "row_id": list(state.primary_key), "first": first}


def end_of_changes(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the latest commit, and the ``offset`` up to which a stream can read changes from ``start``. The offset is
    at most the commit ``until``, and null if there are no changes.

    An offset contains the last commit whose changes were read, and the displayed time of that commit. Displayed times
    increase from commit to commit. Raises `DifferentHistoryError` for an offset of another table or of another history.
    """
    snapshot = QuerySnapshot.from_text(args["snapshot"])
    table = connection.table_by_uuid(snapshot.table, snapshot.uuid)
    state = table.refresh()
    newest = state.version if snapshot.is_open else min(state.version, snapshot.last)
    if args["start"] is None:
        return {"newest": newest, "offset": None}
    start = _require_offset(table, snapshot, args["start"])
    last = newest if args["until"] is None else min(newest, args["until"])
    last_change = find_new_commits(table, state, start["commit"] + 1, last, start["time_us"])
    if last_change is None:
        return {"newest": newest, "offset": None}
    return {"newest": newest, "offset": {"uuid": snapshot.uuid, **last_change._asdict()}}


def plan_batch_of_changes(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plan a stream batch between two offsets, in the form of `plan`.

    Raises the errors of `plan` and `end_of_changes`, and `InvalidOptionError` if the columns changed since the stream
    started.
    """
    snapshot = QuerySnapshot.from_text(args["snapshot"])
    table = connection.table_by_uuid(snapshot.table, snapshot.uuid)
    state = table.refresh()
    start, end = (_require_offset(table, snapshot, args[name]) for name in ("start", "end"))
    if state.schemas.get(snapshot.schema_id or 0) != state.schema:  # constraints and partitioning may change
        raise InvalidOptionError(
            f"the columns of {snapshot.table} changed since its stream of CHANGES started; restart the query"
        )
    cache_state(state)
    batch = replace(
        snapshot,
        commit=state.version,
        attempt=state.attempt,
        first=start["commit"] + 1,
        last=end["commit"],
        after_us=start["time_us"],
    )
    return plan(connection, {**args, "snapshot": batch.to_text()})


def _require_offset(table: TableHandle, snapshot: QuerySnapshot, offset: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an offset after checking that it belongs to this table's history. Raises `DifferentHistoryError`."""
    if offset["uuid"] != snapshot.uuid:
        raise DifferentHistoryError(
            f"the checkpoint belongs to table {offset['uuid']}, but {snapshot.table} is now {snapshot.uuid}; start "
            "with a new checkpoint"
        )
    if offset["attempt"] is not None:
        table.log.require_history([HistoryPoint(offset["commit"], offset["attempt"])], "a stream of CHANGES went on")
    return offset


def _resolve_range(table: TableHandle, state: TableState, requested_range: Mapping[str, Any]) -> tuple[int, int]:
    """Return the first and last commit of a range. Raises `InvalidOptionError` or `OffsetsTrimmedError`."""
    if requested_range["by"] == "none":
        return 1, state.version
    start, end = requested_range["start"], requested_range["end"]
    includes = bool(requested_range["includes_start"]), bool(requested_range["includes_end"])
    if requested_range["by"] == "version":
        return resolve_version_range(state, start, end, includes=includes)
    if end is not None and end < start:
        raise InvalidOptionError(f"CHANGES of {state.name} end before they start; swap the two times")
    return commits_between(table.storage, state, start, end, includes=includes)
