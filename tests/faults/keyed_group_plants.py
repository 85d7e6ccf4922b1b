"""Mistakes about writes by key that wait together, and the tests that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from faults import keyed_groups
from faults.plants import patched, plant
from streamhouse_spark.kv import keyed_writer
from streamhouse_spark.kv.overlay import Overlay
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.waiting import Plan


@plant
def rows_of_neighbours_are_not_seen() -> Iterator[None]:
    def over(_self: Overlay, _bucket: int, _end: int, _keys: Sequence[bytes], found: Any) -> Any:
        return found

    with patched((Overlay, "over", over)):
        yield


@plant
def changes_behind_other_neighbours_are_kept() -> Iterator[None]:
    original = keyed_writer._Write.follow

    def follow(self: Any, before: TableState, earlier: Sequence[Plan]) -> None:
        staged = self.staged
        original(self, before, earlier)
        self.staged = staged

    with patched((keyed_writer._Write, "follow", follow)):
        yield


@plant
def changes_in_doubt_are_applied() -> Iterator[None]:
    with patched((keyed_writer._Write, "is_in_doubt", False)):
        yield


FINDERS: dict[str, Callable[[], object]] = {
    "rows_of_neighbours_are_not_seen": keyed_groups.writes_together,
    "changes_behind_other_neighbours_are_kept": keyed_groups.other_neighbours_behind_a_refusal,
    "changes_in_doubt_are_applied": keyed_groups.a_record_that_lands_late,
}
