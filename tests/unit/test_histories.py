"""Tables and lakes that are restored from a backup, or copied, while other processes know the other history."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from faults.sim import sim_world
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import CorruptDataError, DifferentHistoryError, Warehouse
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log import commit_log
from streamhouse_spark.log.history_index import HistoryPoint, HistoryRelation
from streamhouse_spark.read.snapshot_fallback import fall_back_to_lake_snapshot
from streamhouse_spark.storage.local import LocalStorage
from unit.restored_place import Place

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path, clock):
    return Place(request.param, tmp_path, clock)


def sums(table, keys=(1,)):
    return [table.lookup_one(key)["n"] for key in keys]


class TestRowsByKey:
    @pytest.fixture
    def table(self, place):
        options = {"primary_key": ["id"], "properties": {"table.merge-engine": "aggregation", "fields.n.agg": "sum"}}
        return place.open().create_table("d.t", "id BIGINT, n BIGINT", **options)

    @pytest.mark.parametrize("restarted", [True, False])
    def test_a_sum_goes_on_from_the_restored_rows(self, place, table, restarted):
        table.upsert([{"id": 1, "n": 2}])
        backup = place.backup()
        table.upsert([{"id": 1, "n": 300}])
        assert sums(table) == [302]
        place.restore(backup)
        if restarted:
            close_tablets()
        table = place.open().table("d.t")
        table.upsert([{"id": 1, "n": 3}])
        assert sums(table) == [5]
        assert place.open().table("d.t").to_arrow().to_pylist() == [{"id": 1, "n": 5}]

    def test_lookups_answer_from_the_restored_rows(self, place, table):
        table.upsert([{"id": key, "n": 2} for key in range(5)])
        backup = place.backup()
        table.upsert([{"id": key, "n": 300} for key in range(5)])
        assert sums(table, range(5)) == [302] * 5
        place.restore(backup)
        table = place.open().table("d.t")
        assert table.lookup([1])["n"].to_pylist() == [2]
        table.upsert([{"id": key, "n": 1} for key in range(5)])  # the log is as long as the other was
        assert sums(table, range(5)) == [3] * 5
        assert table.prefix_lookup(4)["n"].to_pylist() == [3]

    def test_the_log_has_grown_past_the_other(self, place, table):
        table.upsert([{"id": 1, "n": 2}])
        backup = place.backup()
        table.upsert([{"id": 1, "n": 300}])
        place.restore(backup)
        other_host = place.open().table("d.t")
        for _ in range(40):
            other_host.upsert([{"id": 2, "n": 1}])
        assert sums(place.open().table("d.t"), (1, 2)) == [2, 40]

    def test_a_process_that_saw_rows_ahead_of_its_log_reads_the_restored_ones(self, place, table):
        table.upsert([{"id": 1, "n": 2}])
        behind = place.open().table("d.t")
        backup = place.backup()
        table.upsert([{"id": 1, "n": 300}])
        assert behind.lookup_one(1, max_staleness_ms=10_000)["n"] == 302
        assert behind.state.version == table.state.version, "it read on, instead of asking for the record each time"
        place.restore(backup)
        table = place.open().table("d.t")
        table.upsert([{"id": 1, "n": 3}])
        assert sums(table) == [5]

    def test_a_restore_from_long_ago_is_noticed(self, place, table):
        for _ in range(30):
            table.upsert([{"id": 1, "n": 1}])
        backup = place.backup()
        table.upsert([{"id": 1, "n": 300}])
        place.restore(backup)
        table = place.open().table("d.t")
        for number in range(200):
            table.alter_properties({"table.log.ttl": f"{10 + number} d"})
        assert sums(place.open().table("d.t")) == [30]

    def test_a_copy_and_its_original_aggregate_apart(self, tmp_path, clock):
        options = {"primary_key": ["id"], "properties": {"table.merge-engine": "aggregation", "fields.n.agg": "sum"}}
        original = Place("local", tmp_path / "a", clock)
        table = original.open().create_table("d.t", "id BIGINT, n BIGINT", **options)
        table.upsert([{"id": 1, "n": 2}])
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        copy = Place("local", tmp_path / "b", clock, seed=5000)
        for number in range(3):
            original.open().table("d.t").upsert([{"id": 1, "n": 10}])
            copy.open().table("d.t").upsert([{"id": 1, "n": 100}])
            copy.open().table("d.t").upsert([{"id": 1, "n": 100}])
            assert sums(original.open().table("d.t")) == [12 + 10 * number]
            assert sums(copy.open().table("d.t")) == [202 + 200 * number]

    def test_rows_of_a_host_that_did_not_notice_are_not_mixed_in(self, place, table):
        """One process stands in the history from before; it applies to the tablet that others use."""
        table.upsert([{"id": 1, "n": 2}])
        backup = place.backup()
        table.upsert([{"id": 1, "n": 300}])
        place.restore(backup)
        newer = place.open().table("d.t")
        newer.upsert([{"id": 1, "n": 3}])
        assert sums(newer) == [5]
        assert table.keyed.keyed_schema().tablet_of(0) is newer.keyed.keyed_schema().tablet_of(0)
        table.log._history_checked_ms = 0
        with pytest.raises(DifferentHistoryError):
            table.upsert([{"id": 1, "n": 1}])
        assert sums(newer) == [5]


class TestTheLog:
    @pytest.fixture
    def table(self, place):
        return place.open().create_table("d.t", "id BIGINT")

    @staticmethod
    def ids(place):
        return place.open().table("d.t").to_arrow()["id"].to_pylist()

    def test_who_stands_in_the_other_history_writes_nothing(self, place, table, clock):
        table.append([{"id": 1}])
        backup = place.backup()
        for number in range(3):
            table.append([{"id": 10 + number}])
        place.restore(backup)
        clock.advance(2 * commit_log.WATERMARK_CHECK_MS)
        before = place.backup()
        for _ in range(2):
            with pytest.raises(DifferentHistoryError, match=r"restored from a backup.*Open the table again"):
                table.append([{"id": 99}])
        if isinstance(before, dict):
            assert set(place.backup()) - set(before) <= {k for k in place.backup() if "/segments/" in k}
        assert self.ids(place) == [1]
        place.open().table("d.t").append([{"id": 2}])
        assert self.ids(place) == [1, 2]

    def test_it_is_noticed_by_the_next_record(self, place, table):
        table.append([{"id": 1}])
        backup = place.backup()
        table.append([{"id": 10}])
        place.restore(backup)
        other = place.open().table("d.t")
        other.append([{"id": 2}])
        other.append([{"id": 3}])
        with pytest.raises(DifferentHistoryError, match="restored"):
            table.refresh()
        assert self.ids(place) == [1, 2, 3]

    def test_on_a_local_disk_before_every_commit(self, tmp_path, clock):
        place = Place("local", tmp_path, clock)
        table = place.open().create_table("d.t", "id BIGINT")
        table.append([{"id": 1}])
        backup = place.backup()
        table.append([{"id": 10}])
        place.restore(backup)
        with pytest.raises(DifferentHistoryError):
            table.append([{"id": 11}])
        assert self.ids(place) == [1]

    def test_another_record_of_the_same_length_and_time_is_noticed(self, tmp_path, clock):
        place = Place("local", tmp_path, clock)
        table = place.open().create_table("d.t", "id BIGINT")
        backup = place.backup()
        table.append([{"id": 10}])
        path = Path(table.storage.local_path(commit_key(table.uuid, table.state.version)))
        known = path.stat()
        place.restore(backup)
        place.open().table("d.t").append([{"id": 20}])
        os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
        assert path.stat().st_size == known.st_size
        with pytest.raises(DifferentHistoryError):
            table.append([{"id": 11}])
        assert self.ids(place) == [20]

    @pytest.mark.parametrize("writers", [1, 2], ids=["own record", "another's record"])
    def test_few_bytes_of_a_record_that_stands_are_read(self, tmp_path, clock, monkeypatch, writers):
        place = Place("local", tmp_path, clock)
        tables = [place.open().create_table("d.t", "id BIGINT, text STRING")]
        tables += [place.open().table("d.t") for _ in range(writers - 1)]
        for table in tables:
            table.append([{"id": 1, "text": "x" * 100_000}])
        tables[0].refresh()
        known, read, ranges = commit_key(table.uuid, table.state.version), [], []
        whole, parts = LocalStorage.read, LocalStorage.read_ranges
        monkeypatch.setattr(LocalStorage, "read", lambda s, key: read.append(key) or whole(s, key))
        monkeypatch.setattr(LocalStorage, "read_ranges", lambda s, *of: ranges.append(of) or parts(s, *of))
        tables[0].append([{"id": 2, "text": "y"}])
        assert known not in read
        assert ranges == [(known, [(0, 512)])]

    def test_elsewhere_once_it_was_idle_for_a_minute(self, tmp_path, clock):
        place = Place("memory", tmp_path, clock)
        table = place.open().create_table("d.t", "id BIGINT")
        table.append([{"id": 1}])
        backup = place.backup()
        table.append([{"id": 10}])
        place.restore(backup)
        clock.advance(commit_log.WATERMARK_CHECK_MS + 1)
        with pytest.raises(DifferentHistoryError):
            table.append([{"id": 11}])
        assert commit_log.WATERMARK_CHECK_MS == 60_000
        assert self.ids(place) == [1]

    def test_a_log_that_mixes_two_histories_is_damage(self, tmp_path, clock):
        """Within the minute, on a store where it costs a request to look."""
        place = Place("memory", tmp_path, clock)
        table = place.open().create_table("d.t", "id BIGINT")
        table.append([{"id": 1}])
        backup = place.backup()
        table.append([{"id": 10}])
        table.append([{"id": 11}])
        place.restore(backup)
        table.append([{"id": 12}])  # record 5 behind a hole
        other = place.open().table("d.t")
        other.append([{"id": 2}])
        other.append([{"id": 3}])
        with pytest.raises(CorruptDataError, match=r"mixes two histories.*stop all writers"):
            other.append([{"id": 4}])
        with pytest.raises(CorruptDataError, match="mixes two histories"):
            place.open().table("d.t").to_arrow()

    def test_what_a_position_is_to_a_log(self, place, table, clock):
        marks = []
        for number in range(60):
            table.append([{"id": number}])
            marks.append(table.state.anchors.newest)
        log = place.open().table("d.t").log
        assert {log.relation(mark) for mark in marks} == {HistoryRelation.SAME}, "records tell where anchors do not"
        assert log.relation(HistoryPoint(10, "other")) is HistoryRelation.OTHER
        assert log.relation(HistoryPoint(99, "other")) is HistoryRelation.OTHER, "the log never was that long"

    def test_a_record_that_was_cleaned_away_cannot_tell(self, place, table, clock):
        for number in range(60):
            table.append([{"id": number}])
        log = place.open().table("d.t").log
        known = {mark.number for mark in log.refresh().anchors.marks}
        number = next(n for n in range(2, 60) if n not in known)
        place.storage.delete(commit_key(table.uuid, number))
        assert log.relation(HistoryPoint(number, "other")) is HistoryRelation.UNKNOWN


def add(table, *keys):
    for key in keys:
        (table.upsert if table.state.primary_key else table.append)([{"id": key}])


def files(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def opened(tmp_path, clock):
    """The warehouse as a new process has it."""
    seeds = iter(range(100))

    def make():
        world = sim_world(next(seeds), clock)
        return Warehouse("wh", storage=LocalStorage(str(tmp_path / "wh"), fsync=False, world=world), world=world)

    return make


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("grown", [0, 2, 9])
def test_the_log_was_restored_and_its_lake_was_not(opened, tmp_path, lake_format, by_key, grown):
    options = {"primary_key": ["id"]} if by_key else {}
    properties = {"table.datalake.enabled": "true", "table.datalake.format": lake_format}
    table = opened().create_table("d.t", "id BIGINT NOT NULL", properties=properties, **options)
    add(table, 1, 2)
    tier(table)
    log = tmp_path / "wh" / "tables" / table.uuid
    shutil.copytree(log, tmp_path / "backup")
    add(table, *range(10, 15))
    tier(table)
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "backup", log)
    table = opened().table("d.t")
    add(table, *range(20, 20 + grown))
    before = files(tmp_path / "wh" / "lake")
    for _ in range(2):
        with pytest.raises(DifferentHistoryError, match=r"without the lake.*streamhouse retier d.t"):
            tier(opened().table("d.t"))
    assert files(tmp_path / "wh" / "lake") == before
    with pytest.raises(DifferentHistoryError):
        fall_back_to_lake_snapshot(table)
    assert ids(opened().table("d.t")) == [1, 2, *range(20, 20 + grown)], "the recorded snapshot is still right"


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
def test_rounds_say_which_record_they_are_of(opened, lake_format):
    properties = {"table.datalake.enabled": "true", "table.datalake.format": lake_format}
    table = opened().create_table("d.t", "id BIGINT NOT NULL", properties=properties)
    table.append([{"id": 1}])
    tier(table)
    assert table.open_lake().newest().history == table.refresh().anchors.rows
    table.append([{"id": 2}])
    tier(table)
    table.lake.compact()
    assert table.open_lake().newest().history == table.refresh().anchors.rows, "a compaction carries it on"
