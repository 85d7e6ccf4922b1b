"""Changes that one process prepares and another one commits: when they count, and what happens where they do not."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from faults.faulty_storage import Fault, FaultyStorage
from faults.sim import sim_world
from kit.tables import TableCase
from streamhouse_spark import CommitConflictError, InvalidOptionError, SchemaMismatchError, Transaction, Warehouse
from streamhouse_spark.core.warehouse_layout import commit_key, segment_key
from streamhouse_spark.kv import change_staging
from streamhouse_spark.log.actions import MarkOrphans
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.write.upsert_intents import BucketIntents, IntentWrite, commit_prepared, prepare_changes

NAME = "sales.orders"
COLUMNS = "id BIGINT, name STRING, n BIGINT"
SUMS = {"table.merge-engine": "aggregation", "fields.n.agg": "sum", "table.delete.behavior": "allow"}
BUCKETS = 3
HOUR_MS = 3600 * 1000

pytestmark = pytest.mark.usefixtures("own_cache")
TABLE = TableCase(NAME, COLUMNS, primary_key=["id"], buckets=BUCKETS)


@pytest.fixture
def sums(wh):
    return wh.create_table(NAME, COLUMNS, primary_key=["id"], buckets=BUCKETS, properties=SUMS)


def row(key, name=None, n=None):
    return {"id": key, "name": name, "n": n}


def found(table):
    table.refresh()
    return {r["id"]: (r["name"], r["n"]) for r in table.to_arrow().to_pylist()}


class Intents:
    """Rows by bucket, and which buckets somebody read."""

    def __init__(self, table, *changes):
        """``changes``: rows, and whether they delete, or what an UPDATE, DELETE or MERGE does with them."""
        self.read = []
        shape = table.keyed.keyed_schema(table.refresh())
        keys = [
            pa.array([change[0][column.name] for change in changes], column.type) for column in shape.schema.columns
        ]
        self._changes = {b: [changes[i] for i in places] for b, places in shape.buckets(keys)}

    def readers(self):
        return {bucket: self._reader(bucket) for bucket in self._changes}

    def _reader(self, bucket):
        def read(schema):
            self.read.append(bucket)
            columns = {
                c.name: pa.array([change[0].get(c.name) for change in self._changes[bucket]], c.type)
                for c in schema.columns
            }
            kinds = [change[1] for change in self._changes[bucket]]
            inserted = np.array([kind == "insert" for kind in kinds])
            deleted = np.array([kind in (True, "delete") for kind in kinds])
            return BucketIntents(pa.table(columns), deleted, inserted if "insert" in kinds else None)

        return read

    def prepared(self, table, write=None):
        made = prepare_changes(table.keyed, write or IntentWrite(), self.readers())
        self.read.clear()
        return made


def upserts(*rows):
    return [(r, False) for r in rows]


NINE = [row(key, "new", 1) for key in range(9)]


class TestPrepared:
    @pytest.mark.parametrize("inline", [True, False], ids=["inline", "objects"])
    def test_they_are_committed_as_they_are(self, table, other_process, on_host, monkeypatch, inline):
        """The committing host reads no row: neither what is written nor what was there."""
        if not inline:
            monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
        table.upsert([row(key, "old", key) for key in range(12)])
        intents = Intents(table, *upserts(*NINE), (row(10), True))
        on_host("task")
        prepared = intents.prepared(table)
        assert {p.bucket for p in prepared} == set(range(BUCKETS))
        driver = other_process().table(NAME)
        folder = on_host("driver")
        offsets = commit_prepared(driver.keyed, IntentWrite(), intents.readers(), prepared)
        assert intents.read == []
        assert not folder.exists()
        uuids = {s.uuid for s in driver.state.live_segments()}
        assert {p.segment.segment.uuid for p in prepared} <= uuids
        assert None in uuids or not inline
        assert offsets.num_rows == 9 * 2 + 1
        on_host("reader")
        expected = dict.fromkeys(range(9), ("new", 1)) | {9: ("old", 9), 11: ("old", 11)}
        assert found(driver) == found(table) == expected
        assert table.lookup([4, 10, 11])["name"].to_pylist() == ["new", None, "old"]

    def test_the_host_that_prepared_goes_on_with_them(self, sums):
        for n in range(3):
            intents = Intents(sums, *upserts(row(1, n=1), row(2, n=10)))
            commit_prepared(sums.keyed, IntentWrite(), intents.readers(), intents.prepared(sums))
            assert intents.read == []
            assert found(sums) == {1: (None, n + 1), 2: (None, 10 * (n + 1))}

    def test_where_nothing_changes_nothing_is_committed(self, table):
        table.upsert(NINE)
        version = table.refresh().version
        intents = Intents(table, *upserts(*NINE[:5]), (row(77), True))
        prepared = intents.prepared(table)
        assert {p.segment for p in prepared} == {None}
        assert commit_prepared(table.keyed, IntentWrite(), intents.readers(), prepared) == {}
        assert table.refresh().version == version
        assert intents.read == []

    def test_prepared_partial_updates_read_no_rows_again(self, table):
        table.upsert([row(1, "a", 1)])
        write = IntentWrite(columns=("n",))
        intents = Intents(table, *upserts(row(1, None, 5), row(2, None, 6)))
        commit_prepared(table.keyed, write, intents.readers(), intents.prepared(table, write))
        assert intents.read == []
        assert found(table) == {1: ("a", 5), 2: (None, 6)}

    def test_a_transaction_counts_once(self, sums, on_host):
        """Also where each attempt of it prepared the same."""
        outcomes = []
        for attempt in ("first", "second"):
            on_host(attempt)
            intents = Intents(sums, *upserts(*NINE))
            prepared = intents.prepared(sums)
            outcomes.append(
                commit_prepared(
                    sums.keyed, IntentWrite(), intents.readers(), prepared, transaction=Transaction("query", 7)
                )
            )
            assert intents.read == []
        assert outcomes[0] == outcomes[1]
        assert found(sums) == dict.fromkeys(range(9), ("new", 1))

    def test_an_empty_transaction_is_remembered(self, table):
        commit_prepared(table.keyed, IntentWrite(), {}, transaction=Transaction("query", 3))
        assert table.refresh().transactions["query"].version == 3


class TestMoved:
    def test_a_bucket_that_moved_is_worked_out_again_and_no_other(self, sums, other_process):
        intents = Intents(sums, *upserts(*NINE))
        prepared = intents.prepared(sums)
        other_process().table(NAME).upsert([row(0, "rival", 100)])
        commit_prepared(sums.keyed, IntentWrite(), intents.readers(), prepared)
        (moved,) = intents.read
        assert found(sums) == {key: ("new", 101 if key == 0 else 1) for key in range(9)}
        assert moved in {0, 1, 2}

    def test_changes_are_prepared_again_after_a_lost_race(self, wh, sums, store, clock, other_process):
        """The first attempt had prepared changes of all buckets; another record took its number."""
        rival = other_process().table(NAME)
        number = sums.refresh().version + 1
        taken = []

        def plan(_number, method, key):
            if method == "put_if_absent" and key == commit_key(sums.uuid, number) and not taken:
                taken.append(rival.upsert([row(0, "rival", 100)]))

        driver = Warehouse("wh", storage=FaultyStorage(store, plan), world=sim_world(50, clock)).table(NAME)
        intents = Intents(sums, *upserts(*NINE))
        prepared = intents.prepared(sums)
        commit_prepared(driver.keyed, IntentWrite(), intents.readers(), prepared)
        assert taken
        assert intents.read == list(taken[0])
        assert found(sums) == {key: ("new", 101 if key == 0 else 1) for key in range(9)}

    def test_of_two_prepared_writes_the_later_reads_again(self, sums, on_host):
        parts = []
        for host in "ab":
            on_host(host)
            intents = Intents(sums, *upserts(*NINE))
            parts.append((intents, intents.prepared(sums)))
        on_host("driver")
        for intents, prepared in parts:
            commit_prepared(sums.keyed, IntentWrite(), intents.readers(), prepared)
        assert parts[0][0].read == []
        assert sorted(parts[1][0].read) == [0, 1, 2]
        assert found(sums) == dict.fromkeys(range(9), ("new", 2))

    def test_prepared_changes_are_stale_after_a_truncation(self, sums):
        """The buckets end where they ended."""
        sums.upsert(NINE)
        intents = Intents(sums, *upserts(*NINE))
        prepared = intents.prepared(sums)
        sums.truncate()
        commit_prepared(sums.keyed, IntentWrite(), intents.readers(), prepared)
        assert sorted(intents.read) == [0, 1, 2]
        assert found(sums) == dict.fromkeys(range(9), ("new", 1))

    def test_what_was_empty_and_is_empty_again_has_not_changed(self, sums):
        intents = Intents(sums, *upserts(*NINE))
        prepared = intents.prepared(sums)
        sums.upsert(NINE)
        sums.truncate()
        commit_prepared(sums.keyed, IntentWrite(), intents.readers(), prepared)
        assert intents.read == []
        assert found(sums) == dict.fromkeys(range(9), ("new", 1))

    def test_columns_added_meanwhile_make_prepared_changes_stale(self, sums):
        intents = Intents(sums, *upserts(*NINE))
        prepared = intents.prepared(sums)
        sums.add_columns("note STRING")
        commit_prepared(sums.keyed, IntentWrite(), intents.readers(), prepared)
        assert sorted(intents.read) == [0, 1, 2]
        assert found(sums) == dict.fromkeys(range(9), ("new", 1))
        assert sums.to_arrow()["note"].null_count == 9

    def test_columns_added_while_it_is_committed(self, wh, sums, store, clock, other_process):
        """Whoever prepared, and by which schema: the record is not one of an older schema."""
        rival = other_process().table(NAME)
        number = sums.refresh().version + 1

        def plan(_number, method, key):
            if method == "put_if_absent" and key == commit_key(sums.uuid, number) and rival.refresh().schema_id == 1:
                rival.add_columns("note STRING")

        driver = Warehouse("wh", storage=FaultyStorage(store, plan), world=sim_world(50, clock)).table(NAME)
        intents = Intents(sums, *upserts(*NINE))
        prepared = intents.prepared(sums)
        with pytest.raises(CommitConflictError, match="altered"):
            commit_prepared(driver.keyed, IntentWrite(), intents.readers(), prepared)
        assert found(sums) == {}
        driver.refresh()
        commit_prepared(driver.keyed, IntentWrite(), intents.readers(), prepared)
        assert found(sums) == dict.fromkeys(range(9), ("new", 1))

    @pytest.mark.parametrize(("before", "after"), [("allow", "ignore"), ("ignore", "allow")])
    def test_a_changed_delete_behavior_makes_prepared_deletions_stale(self, table, before, after):
        table.upsert(NINE)
        table.alter_properties({"table.delete.behavior": before})
        intents = Intents(table, (row(4), True))
        prepared = intents.prepared(table)
        table.alter_properties({"table.delete.behavior": after})
        commit_prepared(table.keyed, IntentWrite(), intents.readers(), prepared)
        assert len(intents.read) == 1
        assert (4 in found(table)) == (after == "ignore")

    def test_another_property_is_no_reason(self, table):
        intents = Intents(table, *upserts(*NINE))
        prepared = intents.prepared(table)
        table.alter_properties({"comment": "new"})
        commit_prepared(table.keyed, IntentWrite(), intents.readers(), prepared)
        assert intents.read == []
        assert len(found(table)) == 9


class TestFiles:
    @pytest.fixture
    def store(self, memory):
        """Its files have the times of the simulated clock."""
        return memory

    @pytest.fixture(autouse=True)
    def objects(self, monkeypatch):
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)

    def test_files_that_cleaning_may_have_are_not_committed(self, table, clock):
        intents = Intents(table, *upserts(*NINE))
        prepared = intents.prepared(table)
        clock.advance(13 * HOUR_MS)
        commit_prepared(table.keyed, IntentWrite(), intents.readers(), prepared)
        assert sorted(intents.read) == [0, 1, 2]
        assert not {p.segment.segment.uuid for p in prepared} & {s.uuid for s in table.state.live_segments()}
        assert len(found(table)) == 9

    def test_condemned_files_are_not_committed(self, table):
        intents = Intents(table, *upserts(*NINE))
        prepared = intents.prepared(table)
        lost = prepared[1]
        key = segment_key(table.uuid, lost.segment.segment.uuid)
        table.log.commit(lambda _state, _ms: (MarkOrphans((key,)),))
        table.storage.delete(key)
        commit_prepared(table.keyed, IntentWrite(), intents.readers(), prepared)
        assert intents.read == [lost.bucket]
        assert found(table) == dict.fromkeys(range(9), ("new", 1))

    def test_files_that_are_condemned_between_plan_and_record(self, table, memory, clock, other_process):
        """The bucket is where it was, and the first attempt had taken them."""
        rival = other_process().table(NAME)
        number = table.refresh().version + 1
        intents = Intents(table, *upserts(*NINE))
        prepared = intents.prepared(table)
        lost = prepared[1]
        key = segment_key(table.uuid, lost.segment.segment.uuid)

        def plan(_number, method, put):
            if method == "put_if_absent" and put == commit_key(table.uuid, number) and rival.refresh().version < number:
                rival.log.commit(lambda _state, _ms: (MarkOrphans((key,)),))

        driver = Warehouse("wh", storage=FaultyStorage(memory, plan), world=sim_world(50, clock)).table(NAME)
        commit_prepared(driver.keyed, IntentWrite(), intents.readers(), prepared)
        assert driver.state.version == number + 1
        assert intents.read == [lost.bucket]
        memory.delete(key)
        assert found(table) == dict.fromkeys(range(9), ("new", 1))

    def test_what_lost_is_an_orphan_that_cleaning_takes(self, sums, clock, other_process):
        intents = Intents(sums, *upserts(*NINE))
        prepared = intents.prepared(sums)
        other_process().table(NAME).upsert([row(0, "rival", 100)])
        commit_prepared(sums.keyed, IntentWrite(), intents.readers(), prepared)
        keys = defaultdict(set)
        live = {s.uuid for s in sums.state.live_segments()}
        for p in prepared:
            uuid = p.segment.segment.uuid
            keys[uuid in live].add(segment_key(sums.uuid, uuid))
        assert (len(keys[True]), len(keys[False])) == (2, 1)
        for _ in range(2):
            clock.advance(30 * HOUR_MS)
            sums.maintain()
        stored = {entry.key for entry in sums.storage.list(f"tables/{sums.uuid}/segments/")}
        assert not keys[False] & stored
        assert keys[True] <= stored


class TestOverwriting:
    def test_they_are_right_wherever_the_table_is(self, table, other_process, on_host):
        table.upsert([row(key, "old", 0) for key in range(20)])
        write = IntentWrite(overwrites=True)
        intents = Intents(table, *upserts(*NINE, row(3, "last", 3)))
        folder = on_host("task")
        prepared = intents.prepared(table, write)
        assert not folder.exists()  # rows that were there count for nothing
        other_process().table(NAME).upsert([row(key, "rival", 100) for key in range(30)])
        folder = on_host("driver")
        commit_prepared(table.keyed, write, intents.readers(), prepared)
        assert intents.read == []
        assert not folder.exists()
        assert found(table) == dict.fromkeys(range(9), ("new", 1)) | {3: ("last", 3)}
        assert table.lookup([3, 25])["name"].to_pylist() == ["last", None]

    def test_an_overwrite_without_rows_empties_the_table(self, table):
        table.upsert(NINE)
        commit_prepared(table.keyed, IntentWrite(overwrites=True), {})
        assert found(table) == {}


class TestRewriting:
    WRITE = IntentWrite(rewrites=True)

    def test_what_did_not_change_is_rewritten(self, table, on_host):
        table.upsert(NINE)
        read = ReadVersion.of(table.refresh())
        intents = Intents(table, (row(1, "set", 2), False), (row(2), True), (row(2, "again", 0), False), (row(3), True))
        on_host("task")
        prepared = intents.prepared(table, self.WRITE)
        folder = on_host("driver")
        commit_prepared(table.keyed, self.WRITE, intents.readers(), prepared, read=read)
        assert intents.read == []
        assert not folder.exists()
        expected = {key: ("new", 1) for key in range(9) if key != 3} | {1: ("set", 2), 2: ("again", 0)}
        assert found(table) == expected

    def test_any_bucket_that_moved_since_it_was_read_is_a_conflict(self, table, other_process):
        """Also one that nothing is written to, and also where changes were prepared after it had moved."""
        table.upsert(NINE)
        read = ReadVersion.of(table.refresh())
        other_process().table(NAME).upsert([row(0, "rival", 100)])
        intents = Intents(table, *upserts(row(0, "set", 2)))
        prepared = intents.prepared(table, self.WRITE)
        assert len(prepared) == 1
        with pytest.raises(CommitConflictError, match="run the statement again"):
            commit_prepared(table.keyed, self.WRITE, intents.readers(), prepared, read=read)
        assert found(table)[0] == ("rival", 100)

    def test_two_rows_of_one_key_are_refused_by_who_commits(self, table, caplog):
        intents = Intents(table, *upserts(row(7, "x"), row(7, "y")))
        prepared = intents.prepared(table, self.WRITE)
        assert prepared == ()
        assert "is not prepared before the commit" in caplog.text
        read = ReadVersion.of(table.state)
        with pytest.raises(SchemaMismatchError, match=r"2 rows with the primary key \(id = 7\)"):
            commit_prepared(table.keyed, self.WRITE, intents.readers(), prepared, read=read)


class TestLeftOut:
    def test_deletions_that_the_table_refuses(self, table):
        table.upsert(NINE)
        table.alter_properties({"table.delete.behavior": "disable"})
        intents = Intents(table, (row(4), True))
        prepared = intents.prepared(table)
        assert prepared == ()
        with pytest.raises(InvalidOptionError, match="does not support deletes"):
            commit_prepared(table.keyed, IntentWrite(), intents.readers(), prepared)
        assert len(found(table)) == 9

    def test_unprepared_buckets_are_read_by_the_committer(self, sums):
        intents = Intents(sums, *upserts(*NINE))
        first, *_ = intents.prepared(sums)
        commit_prepared(sums.keyed, IntentWrite(), intents.readers(), [first])
        assert sorted([*intents.read, first.bucket]) == [0, 1, 2]
        assert found(sums) == dict.fromkeys(range(9), ("new", 1))

    def test_a_store_that_fails_while_changes_are_prepared(self, wh, sums, store, clock, monkeypatch):
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
        failures = []

        def plan(_number, method, key):
            if method.startswith("create") and not failures:
                failures.append(key)
                return Fault.ERROR_BEFORE
            return None

        task = Warehouse("wh", storage=FaultyStorage(store, plan), world=sim_world(50, clock)).table(NAME)
        intents = Intents(sums, *upserts(*NINE))
        prepared = intents.prepared(task)
        assert failures
        assert len(prepared) == 2
        commit_prepared(sums.keyed, IntentWrite(), intents.readers(), prepared)
        assert len(intents.read) == 1
        assert found(sums) == dict.fromkeys(range(9), ("new", 1))

    def test_a_process_beside_it_that_is_always_ahead(self, sums, monkeypatch):
        """Its tablets are newer than what is known of the log, each time; then somebody else has to do it."""
        real, behind = change_staging.bucket_position, []

        def bucket_position(state, bucket):
            behind.append(bucket)
            return (0, -1) if len(behind) <= 1000 else real(state, bucket)

        sums.upsert(NINE)
        intents = Intents(sums, *upserts(row(1, n=1)))
        monkeypatch.setattr(change_staging, "bucket_position", bucket_position)
        assert intents.prepared(sums) == ()
        assert len(behind) == 3


class TestMerge:
    """What a MERGE inserts is new: the statement says what becomes of rows that are there."""

    WRITE = IntentWrite(rewrites=True)

    def test_a_key_that_is_there_is_named_and_nothing_is_written(self, table, on_host):
        table.upsert([row(key, "old", key) for key in range(9)])
        before = found(table)
        read = ReadVersion.of(table.refresh())
        intents = Intents(table, (row(20, "new", 1), "insert"), (row(7, "new", 1), "insert"), (row(3, "set"), "update"))
        on_host("task")
        prepared = intents.prepared(table, self.WRITE)
        on_host("driver")
        for ready in (prepared, ()):
            with pytest.raises(SchemaMismatchError, match=r"id = 7.*insert-existing to upsert"):
                commit_prepared(table.keyed, self.WRITE, intents.readers(), ready, read=read)
        assert found(table) == before

    def test_a_key_that_it_deletes_may_be_inserted(self, table):
        table.upsert([row(1, "old", 1), row(2, "old", 2)])
        intents = Intents(table, (row(1, "new", 7), "insert"), (row(1), "delete"), (row(3, "new", 3), "insert"))
        prepared = intents.prepared(table, self.WRITE)
        commit_prepared(table.keyed, self.WRITE, intents.readers(), prepared, read=ReadVersion.of(table.state))
        assert found(table) == {1: ("new", 7), 2: ("old", 2), 3: ("new", 3)}

    def test_a_property_makes_an_upsert_of_it(self, table):
        table.alter(set_properties={"table.merge-into.insert-existing": "upsert"})
        table.upsert([row(1, "old", 1)])
        intents = Intents(table, (row(1, "new", 7), "insert"))
        prepared = intents.prepared(table, self.WRITE)
        commit_prepared(table.keyed, self.WRITE, intents.readers(), prepared, read=ReadVersion.of(table.state))
        assert found(table) == {1: ("new", 7)}
