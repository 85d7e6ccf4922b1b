"""Mistakes about which changes of a table without a primary key are updates, and the stories that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from faults.plants import patched, plant
from faults.sim import sim_world
from kit.change_replay import changes
from kit.row_replacement import replace_rows
from property.stream_driver import Query
from streamhouse_spark.log import append, compaction
from streamhouse_spark.log.commits.deletions import DeleteRows
from streamhouse_spark.read.change_feed import commit_parts
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse


@plant
def merged_segments_forget_which_rows_are_behind_an_update() -> Iterator[None]:
    with patched((compaction, "_updated", lambda *_: ())):
        yield


@plant
def updated_rows_of_merged_segments_are_one_off() -> Iterator[None]:
    right = compaction._updated
    with patched((compaction, "_updated", lambda parts, start: right(parts, start + 1))):
        yield


@plant
def all_rows_of_a_statement_are_behind_an_update() -> Iterator[None]:
    def every(staged: Any, _counts: Any) -> list[Any]:
        whole = (replace(piece.segment, updated=((0, piece.segment.num_rows),)) for piece in staged)
        return [replace(piece, segment=segment) for piece, segment in zip(staged, whole, strict=True)]

    with patched((append, "_with_updated", every)):
        yield


@plant
def deleted_rows_are_told_as_updated() -> Iterator[None]:
    def every(deletion: DeleteRows, _rows: Any, _files: Any) -> DeleteRows:
        return replace(deletion, updated=deletion.rows, updated_files=deletion.files)

    with patched((DeleteRows, "with_updated", every)):
        yield


@plant
def net_changes_tell_updates_of_rows_that_came_meanwhile() -> Iterator[None]:
    right = commit_parts._without

    def marked(parts: Any, others: Any) -> Any:
        found = right(parts, others)
        ours = {part.version: part.is_updated for of_bucket in parts.values() for part in of_bucket}
        return {b: [p._replace(is_updated=ours[p.version]) for p in of_bucket] for b, of_bucket in found.items()}

    with patched((commit_parts, "_without", marked)):
        yield


def new_table() -> tuple[Warehouse, Table]:
    wh = Warehouse("wh", storage=MemoryStorage(sim_world()), world=sim_world(1))
    table = wh.create_table("d.t", "id BIGINT", properties={"table.datalake.enabled": "false"})
    table.append([{"id": number} for number in range(5)])
    return wh, table


def merged(table: Table) -> None:
    """Update row 1, delete row 2, insert row 20."""
    replace_rows(
        table, lambda row: row["id"] in (1, 2), lambda row: {"id": 11} if row["id"] == 1 else None, added=[{"id": 20}]
    )


def kinds(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return sorted((row["id"], row["_change_type"]) for row in rows)


def a_merge() -> None:
    _, table = new_table()
    merged(table)
    found = kinds(changes(table, table.state.version, table.state.version))
    assert found == [(1, "update_preimage"), (2, "delete"), (11, "update_postimage"), (20, "insert")]


def a_stream_behind_merged_segments() -> None:
    wh, table = new_table()
    query = Query("d.t$changelog")
    query.run(wh)
    merged(table)
    table.merge_inline()
    query.run(wh)
    found = [row for row in kinds(query.rows) if row[1] != "insert"]
    assert found == [(1, "update_before"), (2, "delete"), (11, "update_after")]


def net_changes() -> None:
    _, table = new_table()
    first = table.state.version
    merged(table)
    found = kinds(changes(table, first, table.state.version, is_net=True))
    assert found == [(number, "insert") for number in (0, 3, 4, 11, 20)]


FINDERS: dict[str, Callable[[], Any]] = {
    "merged_segments_forget_which_rows_are_behind_an_update": a_stream_behind_merged_segments,
    "updated_rows_of_merged_segments_are_one_off": a_stream_behind_merged_segments,
    "all_rows_of_a_statement_are_behind_an_update": a_merge,
    "deleted_rows_are_told_as_updated": a_merge,
    "net_changes_tell_updates_of_rows_that_came_meanwhile": net_changes,
}
