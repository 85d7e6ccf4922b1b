"""Mistakes to plant in what lets an UPDATE, DELETE or MERGE pass beside other writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from faults.plants import patched, plant
from faults.row_level import Write, beside_a_writer, merge, side_by_side, update
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.rebase import Rebase
from streamhouse_spark.log import compaction as merging
from streamhouse_spark.log.commits.state import CHANGE_COLUMN, TableState
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import LogSplit, read_split


@plant
def written_keys_are_not_looked_for_among_the_changes() -> Iterator[None]:
    with patched((Rebase, "_require_unwritten", lambda *_: None)):
        yield


@plant
def inserted_keys_are_not_looked_for_among_the_changes() -> Iterator[None]:
    original = Rebase._require_unwritten

    def unwritten(self: Rebase, state: TableState, split: LogSplit, batch: KeyedBatch, records: InlineRecords) -> None:
        schema = state.written_schema(self.layout.schema_id)
        found = read_split(self.storage, split, schema, [CHANGE_COLUMN.name], records=records)
        if any(set(rows.batch.column(0).to_pylist()) != {int(ChangeType.INSERT)} for rows in found):
            original(self, state, split, batch, records)

    with patched((Rebase, "_require_unwritten", unwritten)):
        yield


@plant
def changes_of_others_are_judged_once() -> Iterator[None]:
    """So what is committed has old images from before what came later."""
    original = Rebase.judge
    judged: list[Rebase] = []

    def judge(self: Rebase, state: TableState, batches: Mapping[int, KeyedBatch]) -> None:
        if not any(one is self for one in judged):
            judged.append(self)
            original(self, state, batches)

    with patched((Rebase, "judge", judge)):
        yield


@plant
def statements_do_not_look_at_each_other() -> Iterator[None]:
    with patched((Rebase, "_require_unread", lambda *_: None)):
        yield


@plant
def merged_segments_forget_statements() -> Iterator[None]:
    original = merging._merged

    def merged(*args: Any) -> Any:
        return replace(original(*args), rewrites=False)

    with patched((merging, "_merged", merged)):
        yield


# -- what finds them ---------------------------------------------------------------------------------------------------

ROWS = {1: 10, 2: 20, 3: 30}


def an_update_beside_an_upsert() -> None:
    assert all(beside_a_writer(ROWS, update(10, 10, 5), Write({1: 0})))


def a_merge_beside_an_insert() -> None:
    assert all(beside_a_writer(ROWS, merge({7: 1}), Write({7: 5})))


def two_updates_about_each_others_rows() -> None:
    assert side_by_side(ROWS, update(10, 10, 10), update(20, 20, -10))


def two_updates_and_a_merge_of_segments() -> None:
    assert side_by_side(ROWS, update(10, 10, 10), update(20, 20, -10), lambda table: table.merge_inline())


FINDERS: dict[str, Callable[[], object]] = {
    "written_keys_are_not_looked_for_among_the_changes": an_update_beside_an_upsert,
    "inserted_keys_are_not_looked_for_among_the_changes": a_merge_beside_an_insert,
    "changes_of_others_are_judged_once": an_update_beside_an_upsert,
    "statements_do_not_look_at_each_other": two_updates_about_each_others_rows,
    "merged_segments_forget_statements": two_updates_and_a_merge_of_segments,
}
