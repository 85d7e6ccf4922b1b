"""A writer of Paimon's own renames its snapshot over ours: whatever the moment, no row is lost and none is doubled."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from interop.lake_cases import PLAIN
from streamhouse_spark import CommitConflictError, LakeRolledBackError, OffsetsTrimmedError
from streamhouse_spark.lake.parquet.file_writer import parse_file_end
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.lake.types import COMMIT_USER

pytestmark = pytest.mark.paimon

HOUR_MS = 3_600_000


def _rows(first: int) -> pa.Table:
    ids = range(first, first + 3)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


def _tier(table):
    job = TieringJob(table.log, table.open_lake(), world=table.world)
    return job.run(run_tasks_locally(table.storage, table.settings, table.world))


def _ids(table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def _in_lake(table) -> list[int]:
    return sorted(table.lake.to_arrow()["id"].to_pylist())


@pytest.fixture
def table(wh):
    properties = {"table.datalake.format": "paimon", "table.log.ttl": "1h"}
    table = wh.create_table("sales.orders", PLAIN.arrow, properties=properties)
    for first in (0, 3):
        table.append(_rows(first))
        _tier(table)
    return table


class Renaming:
    """A stock writer that looked for the number of a snapshot, found none, and sleeps before it renames."""

    def __init__(self, table, number: int) -> None:
        self._storage, self._folder = table.storage, f"{table.state.lake_location}/snapshot"
        base = json.loads(self._storage.read(f"{self._folder}/snapshot-{number - 1}"))
        made = {**base, "id": number, "commitUser": "stock", "commitKind": "APPEND", "uuid": f"stock-{number}"}
        made.pop("properties", None)
        self._key, self._data = f"{self._folder}/snapshot-{number}", json.dumps(made).encode()

    def __call__(self) -> None:
        self._storage.put(self._key, self._data)
        self._storage.put(f"{self._folder}/LATEST", self._key.rpartition("-")[2].encode())


def test_a_snapshot_that_is_replaced_as_it_is_committed_is_tiered_again(table, monkeypatch):
    rename = Renaming(table, 3)
    put = table.storage.put_if_absent

    def overtaken(key, data):
        put(key, data)
        if key.endswith("/snapshot-3"):
            monkeypatch.undo()
            rename()

    table.append(_rows(6))
    monkeypatch.setattr(table.storage, "put_if_absent", overtaken)
    report = _tier(table)
    assert (report.conflicts, report.snapshots) == (1, (4,))
    assert _ids(table) == _in_lake(table) == list(range(9))


def test_a_newest_snapshot_that_is_replaced_later_is_noticed_and_tiered_again(table, caplog):
    rename = Renaming(table, 3)
    table.append(_rows(6))
    _tier(table)
    rename()
    assert _ids(table) == list(range(9)), "reads take the rows from the log"
    assert _in_lake(table) == list(range(6))
    with pytest.raises(CommitConflictError, match="replaced lake snapshot 3"):
        table.maintain()
    table.append(_rows(9))
    report = _tier(table)
    assert "replaced lake snapshot 3" in caplog.text
    assert (report.snapshots, report.conflicts) == ((4,), 0)
    assert _ids(table) == _in_lake(table) == list(range(12))
    table.maintain()


@pytest.mark.parametrize("replaced_first", [False, True])
def test_a_snapshot_with_a_successor_loses_nothing(table, replaced_first):
    """Whoever commits above planned on what is there: on ours, or on theirs, which then lacks our rows."""
    rename = Renaming(table, 3)
    table.append(_rows(6))
    _tier(table)
    if replaced_first:
        rename()
        rename = Renaming(table, 4)  # plans on the one that took our place
        rename()
    table.append(_rows(9))
    _tier(table)
    rename()
    table.append(_rows(12))
    _tier(table)
    assert _ids(table) == _in_lake(table) == list(range(15))


@pytest.mark.parametrize("asleep", [(3,), (4,), (3, 4)], ids=str)
def test_the_log_is_trimmed_only_of_rows_that_no_rename_can_take_out_of_the_lake(table, asleep):
    """Writers that looked before our round had its number, or before the empty snapshot that settles it had its own."""
    table.append(_rows(6))
    renames = {3: Renaming(table, 3)}
    _tier(table)
    renames[4] = Renaming(table, 4)
    table.world.clock.advance(2 * HOUR_MS)
    assert table.maintain().trimmed_to == {0: 9}
    newest = table.open_lake().newest()
    assert (newest.id, newest.offsets) == (4, {0: 9}), "an empty snapshot stands above the one with the rows"
    for number in asleep:
        renames[number]()
    assert _in_lake(table) == list(range(9))
    table.append(_rows(9))
    if len(asleep) == 1:
        assert _ids(table) == list(range(12))
        _tier(table)
        assert _ids(table) == _in_lake(table) == list(range(12))
    else:  # nothing says any more which rows of the log the lake holds
        for use in (lambda: _ids(table), lambda: _tier(table)):
            with pytest.raises((LakeRolledBackError, OffsetsTrimmedError)):
                use()


def test_a_settled_lake_is_not_settled_again(table):
    lake = table.open_lake()
    held = lake.find_durable()
    assert (held.id, held.offsets, lake.newest().id) == (2, {0: 6}, 3)
    assert (lake.find_durable(), lake.newest().id) == (held, 3)
    assert table.open_lake().binding.snapshots.newest().commit_kind == "COMPACT"


def test_nothing_is_settled_where_there_is_nothing_to_trim(table):
    table.maintain()
    assert table.open_lake().newest().id == 2


def test_rows_that_the_lake_holds_under_other_snapshots_are_not_tiered_again(table):
    """Two writers at once: ours is built upon, and then both snapshots that say our offsets are replaced."""
    first = Renaming(table, 3)
    table.append(_rows(6))
    _tier(table)
    second = Renaming(table, 4)
    table.append(_rows(9))
    _tier(table)
    first()
    second()
    assert _in_lake(table) == list(range(9))
    table.append(_rows(12))
    with pytest.raises(LakeRolledBackError, match="bucket 0 up to offset 6, expected 12"):
        _tier(table)
    with pytest.raises(LakeRolledBackError):
        table.maintain()


def test_a_lake_that_was_rolled_back_is_not_tiered_again(table):
    table.storage.put(f"{table.state.lake_location}/snapshot/LATEST", b"1")
    table.storage.delete(f"{table.state.lake_location}/snapshot/snapshot-2")
    table.storage.delete(f"{table.state.lake_location}/tag/tag-{COMMIT_USER}")
    assert not table.open_lake().is_replaced(2)
    with pytest.raises(LakeRolledBackError):
        _tier(table)


def test_names_of_files_say_how_far_they_were_written():
    uuid = "0" * 32
    assert parse_file_end(f"/a/b=1/data-00003-{5:020d}-{9:020d}-{uuid}.parquet") == (3, 9)
    assert parse_file_end(f"/a/data-00003-{9:020d}-{uuid}.parquet") == (3, 9)
    for other in ("data-1.parquet", f"data-{uuid}.parquet", "part-0-1-2.parquet", f"data-0-1-2-3-{uuid}.parquet"):
        assert parse_file_end(f"/a/{other}") is None
