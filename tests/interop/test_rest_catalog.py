"""The lake in a REST catalog, over HTTP, also where commits are done and their answers are lost."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

from faults.share import few_of
from interop import catalog_cases as cases
from interop.lake_cases import PLAIN, lake_of, tier, written_files
from interop.rest_server import Fault, RestCatalog, running_rest_catalog
from kit.lake_rows import lake_rows
from streamhouse_spark import CommitConflictError, CommitStateUnknownError, OffsetRange, StorageError
from streamhouse_spark.storage.local import LocalStorage

DAY_S = 24 * 3600


@pytest.fixture
def rest(tmp_path):
    with running_rest_catalog(tmp_path, str(tmp_path / "lake")) as catalog:
        yield catalog


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.__name__)
def test_a_lake_table_lives_in_a_rest_catalog(case, rest, tmp_path, own_cache):
    case(tmp_path, rest.settings)
    assert ("GET", "/v1/config") in rest.calls
    assert sum(method == "POST" and "/tables/" in path for method, path in rest.calls) >= 2, "commits go over HTTP"


def commits(number: int, fault: Fault, rest: RestCatalog):
    """The fault meets the number-th commit from now on."""
    seen = 0

    def plan(method: str, path: str) -> Fault:
        nonlocal seen
        if method != "POST" or "/tables/" not in path:
            return Fault.NONE
        seen += 1
        return fault if seen == number + 1 else Fault.NONE

    rest.plan = plan
    rest.fired = 0


LOST = [f for f in Fault if f is not Fault.NONE]
KEYED = [Fault.ERROR_AFTER, Fault.LOST_ANSWER]


@pytest.mark.parametrize(
    ("key", "fault"),
    [*(((), fault) for fault in LOST), *((("id",), fault) for fault in KEYED)],
    ids=lambda value: value.name.lower() if isinstance(value, Fault) else "keyed" if value else "log",
)
def test_an_answer_that_is_lost_loses_and_doubles_nothing(rest, tmp_path, own_cache, key, fault):
    table = cases.opened(tmp_path, rest.settings).create_table(
        "sales.orders", "id BIGINT NOT NULL, text STRING", primary_key=list(key)
    )
    write = table.upsert if key else table.append
    for i in range(3):
        write(cases.rows(3 * i))
        commits(0, fault, rest)
        if fault is Fault.ERROR_BEFORE:
            with pytest.raises(CommitStateUnknownError):
                cases.tier(table)
        cases.tier(table)
        assert rest.fired == 1
        expected = list(range(3 * (i + 1)))
        assert cases.ids(table.lake.to_arrow()) == expected == cases.ids(table.to_arrow())
        assert len(cases.lake_table(rest.settings).snapshots()) == i + 1


@pytest.mark.parametrize("fault", few_of([Fault.LOST_ANSWER, Fault.ERROR_BEFORE], 1), ids=lambda f: f.name.lower())
def test_any_call_of_a_round_may_fail(rest, tmp_path, fault):
    """Whatever call it is, the table is right at once, its lake in the next round, and the error is typed."""
    table = cases.opened(tmp_path, rest.settings).create_table("sales.orders", "id BIGINT, text STRING")
    table.append(cases.rows(0))
    cases.tier(table)
    number = 0
    while True:
        table.append(cases.rows(table.state.num_rows))
        seen = 0

        def plan(_method: str, _path: str, at: int = number) -> Fault:
            nonlocal seen
            seen += 1
            return fault if seen == at + 1 else Fault.NONE

        rest.plan, rest.fired = plan, 0
        with suppress(StorageError, CommitStateUnknownError):
            cases.tier(table)
        rest.plan = lambda _method, _path: Fault.NONE
        expected = list(range(table.refresh().num_rows))
        assert cases.ids(table.to_arrow()) == expected
        if not rest.fired:
            break
        number += 1
    assert number > 5
    assert cases.ids(table.lake.to_arrow()) == expected
    assert table.lake.newest().offsets == {0: len(expected)}


@pytest.mark.parametrize("fault", few_of([Fault.LOST_ANSWER, Fault.ERROR_BEFORE], 1), ids=lambda f: f.name.lower())
def test_an_expiry_whose_answer_is_lost_deletes_nothing_that_is_needed(rest, tmp_path, fault):
    table = cases.opened(tmp_path, rest.settings).create_table("sales.orders", "id BIGINT, text STRING")
    for i in range(6):
        table.append(cases.rows(3 * i))
        cases.tier(table)
    table.lake.compact()
    commits(0, fault, rest)
    with pytest.raises(CommitStateUnknownError, match="expiring snapshots"):
        table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
    assert rest.fired == 1
    table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
    assert len(cases.lake_table(rest.settings).snapshots()) == 1
    assert (
        cases.ids(cases.lake_table(rest.settings).scan().to_arrow()) == list(range(18)) == cases.ids(table.to_arrow())
    )


def test_orphans_are_removed_and_a_round_that_slept_is_refused(rest, tmp_path):
    """The server does not know our requirement: the commit of a snapshot keeps rounds from before it out."""
    storage = LocalStorage(str(tmp_path / "wh"))
    lake = lake_of(storage, settings=rest.settings)
    ids = [pa.table({"id": range(i, i + 3), "name": ["x"] * 3}, schema=PLAIN.arrow) for i in (0, 3)]
    tier(lake, ids[0])
    context, slow = lake.write_context(), lake_of(storage, settings=rest.settings)
    (lost,) = written_files(lake, context, 0, OffsetRange(3, 6), ((3, b) for b in ids[1].to_batches()))
    old = time.time() - 2 * DAY_S
    os.utime(lost.location.removeprefix("file://"), (old, old))
    loaded = slow.binding.load()
    before = len(loaded.snapshots())
    assert len(lake.remove_orphans(dry_run=True)) == 1
    assert len(slow.binding.load().snapshots()) == before
    assert len(lake.remove_orphans()) == 1
    assert len(slow.binding.load().snapshots()) == before + 1
    assert lake.newest().offsets == {0: 3}
    with pytest.raises(CommitConflictError):
        lake.commit([lost], expected={0: 3}, new={0: 6}, context=context)
    validated = (
        AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": loaded.current_snapshot().snapshot_id}),
    )
    with pytest.raises(CommitFailedException):  # what a round has that was validated before the cleaning
        slow.binding.catalog.commit_table(loaded, validated, (SetPropertiesUpdate(updates={"late": "yes"}),))
    tier(lake, ids[1])
    assert lake_rows(lake, lake.plan_read()).num_rows == 6
