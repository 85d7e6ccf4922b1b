"""Changes of a table without a primary key tell updates from deletions and insertions."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from faults.turns import in_turns
from kit.change_replay import changes, check_history
from kit.row_replacement import replace_rows
from kit.tables import tier
from property.stream_driver import Query
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.deletion_vectors import DeleteRows
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.staging import INLINE_BYTES_MAX
from streamhouse_spark.table.system_views import changelog_batches
from streamhouse_spark.write.auto_compaction import compact_inline_rows

HASHED = {"bucket.key": "id", "table.datalake.enabled": "false"}


@pytest.fixture(params=["inline", "objects"])
def inline_bytes_max(request):
    return INLINE_BYTES_MAX if request.param == "inline" else 0


@pytest.fixture
def table(wh):
    table = wh.create_table("d.t", "id BIGINT, n INT", buckets=3, properties=HASHED)
    table.append([{"id": number, "n": 0} for number in range(10)])
    return table


def merge(table, inline_bytes_max=INLINE_BYTES_MAX):
    """Update ids 0 to 2, delete 3 and 4, and insert 20 to 24."""
    replace_rows(
        table,
        lambda row: row["id"] < 5,
        lambda row: {**row, "n": 1} if row["id"] < 3 else None,
        added=[{"id": number, "n": 0} for number in range(20, 25)],
        inline_bytes_max=inline_bytes_max,
    )


def kinds(rows):
    return sorted((row["id"], row["n"], row["_change_type"]) for row in rows)


MERGED = sorted(
    [(number, n, kind) for number in range(3) for n, kind in enumerate(("update_preimage", "update_postimage"))]
    + [(number, 0, "delete") for number in (3, 4)]
    + [(number, 0, "insert") for number in range(20, 25)]
)
WORDS = {"update_preimage": "update_before", "update_postimage": "update_after"}
IN_CHANGELOG = [(*row, WORDS.get(kind, kind)) for *row, kind in MERGED]
INSERTED = [(number, 0, "insert") for number in range(10)]


def test_a_merge_is_updates_deletions_and_insertions(table, inline_bytes_max):
    merge(table, inline_bytes_max)
    assert kinds(changes(table, table.state.version, table.state.version)) == MERGED
    merge(table, inline_bytes_max)
    check_history(table)
    compact_inline_rows(table)
    check_history(table)


def test_the_changelog_has_the_changes_of_a_merge(table, inline_bytes_max):
    merge(table, inline_bytes_max)
    for _ in range(2):
        found = [row for batch in changelog_batches(table, table.refresh()) for row in batch.to_pylist()]
        assert kinds(found) == sorted([*INSERTED, *IN_CHANGELOG])
        compact_inline_rows(table)


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_stream_after_the_commit_sees_its_updates(wh, table, inline_bytes_max, is_merged):
    """Its rows are read by their offsets, and the segments tell which ones are behind an update."""
    query = Query("d.t$changelog")
    query.run(wh)
    merge(table, inline_bytes_max)
    table.append([{"id": 30, "n": 0}])
    if is_merged:
        compact_inline_rows(table)
        assert all(segment.inline is None for segment in table.refresh().live_segments())
    query.run(wh)
    assert kinds(query.rows) == sorted([*INSERTED, *IN_CHANGELOG, (30, 0, "insert")])


def test_new_rows_that_only_the_lake_has_are_inserts(wh):
    table = wh.create_table("d.old", "id BIGINT, n INT", buckets=1)
    table.append([{"id": number, "n": 0} for number in range(6)])
    tier(table)
    query = Query("d.old$changelog")
    query.run(wh)
    merge(table)
    tier(table)
    state = table.refresh()
    table.log.commit(lambda *_: (Trim({0: state.lake_offset(0)}),))
    query.run(wh)
    behind = Counter(row["_change_type"] for row in query.rows[6:])
    assert behind == {"update_before": 3, "delete": 2, "insert": 8}


def test_net_changes_know_no_updates(table):
    first = table.state.version
    merge(table)
    net = kinds(changes(table, first, table.state.version, is_net=True))
    assert Counter(kind for *_, kind in net) == {"insert": 13}
    later = kinds(changes(table, first + 1, table.state.version, is_net=True))
    assert Counter(kind for *_, kind in later) == {"insert": 8, "delete": 5}


def test_other_replacements_delete_and_insert(wh, table):
    before = table.state.version
    merge(table)
    table.rollback_to_version(before)
    table.create_branch("fix")
    branch = table.branch("fix")
    replace_rows(branch, lambda row: row["id"] == 7, lambda row: {**row, "n": 3})
    table.fast_forward("fix")
    table.overwrite([{"id": 8, "n": 5}], where=[("id", "=", 8)])
    table.refresh()
    found = changes(table, before + 2, table.state.version)
    assert {row["_change_type"] for row in found} == {"delete", "insert"}
    assert [row for row in kinds(found) if row[0] in (7, 8)] == [
        (7, 0, "delete"),
        (7, 3, "insert"),
        (8, 0, "delete"),
        (8, 5, "insert"),
    ]


def test_updates_are_told_in_a_table_without_a_bucket_key(wh, inline_bytes_max):
    table = wh.create_table("d.sticky", "id BIGINT, n INT", buckets=4)
    table.append([{"id": number, "n": 0} for number in range(10)])
    merge(table, inline_bytes_max)
    assert kinds(changes(table, table.state.version, table.state.version)) == MERGED


def test_writers_that_share_a_record(table):
    """The rows of each are insertions, and none is a change of another's."""
    first = table.state.version + 1
    in_turns([lambda n=n: table.append([{"id": 100 + n, "n": n}, {"id": 100, "n": n}]) for n in range(4)])
    last = table.refresh().version
    assert any(len(read_record(table.storage, table.uuid, n)[0].attempts) > 1 for n in range(first, last + 1))
    expected = sorted(row for n in range(4) for row in ((100 + n, n, "insert"), (100, n, "insert")))
    assert kinds(changes(table, first, last)) == expected
    check_history(table)


def test_a_record_tells_which_rows_were_replaced():
    rows, files = {0: OffsetSet.dense(3, 4), 2: OffsetSet.dense(0, 1)}, {"data/a.parquet": OffsetSet.dense(7, 2)}
    plain = DeleteRows(rows, files, 5)
    every = plain.with_updated(rows, files)
    some = plain.with_updated({0: OffsetSet.dense(5, 9), 1: OffsetSet.dense(0, 1)}, {})
    assert some.updated == {0: OffsetSet.dense(5, 2)}
    files_alone = plain.with_updated({}, files)
    for action in (plain, every, some, files_alone, DeleteRows(rows), DeleteRows(rows).with_updated(rows, {})):
        assert DeleteRows.from_json(action.to_json()) == action
    assert every.to_json()["updated"] is True
    assert "updated" not in plain.to_json()


def test_a_segment_tells_which_rows_are_behind_an_update(table):
    merge(table)
    found = [segment for segment in table.refresh().live_segments() if segment.updated]
    assert sum(segment.updated_rows.num_rows for segment in found) == 3
    for segment in found:
        assert Segment.from_json(segment.to_json(), segment.index_bytes) == segment
    compact_inline_rows(table)
    stored = as_stored(table.refresh()).live_segments()
    assert sum(segment.updated_rows.num_rows for segment in stored) == 3


def test_rows_of_several_batches_are_marked_from_the_first_on(table):
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "n": pa.array([0] * 1000, pa.int32())})
    for num_updated in (0, 1, 999, 1000):
        staged = table.log_writer.stager().stage(rows, num_updated=num_updated)
        assert sum(piece.segment.updated_rows.num_rows for piece in staged.segments) == num_updated
