"""The changes of a table between two versions, laid over the rows of the first, as a check of both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from streamhouse_spark import OffsetsTrimmedError, Table
from streamhouse_spark.log.segments.metadata_columns import CHANGES_FIELDS
from streamhouse_spark.read.change_feed.planning import plan_changes
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.read.scan_tasks import ScanPlan

ADDS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
Row = tuple[Any, ...]


def changes(table: Table, first: int, last: int, *, is_net: bool = False) -> list[dict[str, Any]]:
    """Read the changes of the commits from ``first`` to ``last``."""
    state = table.refresh()
    found = plan_changes(table, state, first, last, Pruning(), is_net=is_net)
    plan = ScanPlan(table.name, table.uuid, state.schema, found.tasks)
    return [row for batch in read_batches(table, plan, CHANGES_FIELDS) for row in batch.to_pylist()]


def row_of(change: Mapping[str, Any]) -> Row:
    names = {field.name for field in CHANGES_FIELDS}
    return tuple(repr(value) for name, value in change.items() if name not in names)


def version(table: Table, number: int) -> Counter[Row]:
    """Return the rows VERSION AS OF ``number``, with how often each is there."""
    return Counter(row_of(row) for row in table.read_version(number).to_pylist()) if number else Counter()


def replayed(rows: Counter[Row], found: Iterable[Mapping[str, Any]]) -> Counter[Row]:
    """Lay changes over rows, whatever their order within a commit."""
    rows = Counter(rows)
    for change in found:
        rows[row_of(change)] += ADDS[change["_change_type"]]
    assert min(rows.values(), default=0) >= 0, rows
    return +rows


def check_history(table: Table) -> None:
    """Each commit's changes are the difference of the versions around it, and those of all lead to the newest."""
    newest = table.refresh().version
    first = first_there(table)
    found = changes(table, first, newest)
    assert replayed(version(table, first - 1), found) == version(table, newest)
    assert replayed(version(table, first - 1), changes(table, first, newest, is_net=True)) == version(table, newest)
    shown = {(change["_commit_version"], change["_commit_timestamp"]) for change in found}
    times = [time for _, time in sorted(shown)]
    assert times == sorted(set(times))
    for number in range(first, newest + 1):
        own = [change for change in found if change["_commit_version"] == number]
        assert replayed(version(table, number - 1), own) == version(table, number), number
        alone, together = ([row_of(c) for c in found] for found in (changes(table, number, number), own))
        if not table.state.primary_key:  # old rows are of one lake snapshot or another
            alone, together = sorted(alone), sorted(together)
        assert alone == together
        kinds = Counter(change["_change_type"] for change in own)
        assert kinds["update_preimage"] == kinds["update_postimage"], kinds
        if key := table.state.primary_key:
            of_key = Counter((ADDS[change["_change_type"]], *(change[name] for name in key)) for change in own)
            assert set(of_key.values()) <= {1}, own


def first_there(table: Table) -> int:
    """Return the first version whose changes are there, which the error of those before it names."""
    newest = table.refresh().version
    text = _refusal(table, 0, newest)
    if not text:
        return 1
    if "no version is available until" in text:
        return newest + 1
    found = re.search(r"the first available version is (\d+)$", text)
    assert found is not None, text
    first = int(found.group(1))
    assert _refusal(table, first - 1, newest)
    return first


def _refusal(table: Table, first: int, last: int) -> str:
    """Return the text of the error that the rows are no longer there; empty if they are."""
    try:
        changes(table, first, last)
    except OffsetsTrimmedError as error:
        return str(error)
    return ""
