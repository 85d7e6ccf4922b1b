"""Streams from a table that is restored from a backup while they sleep, or run."""

import json

import pytest

from kit.tables import TableCase
from property.stream_driver import Query
from streamhouse_spark import DifferentHistoryError
from streamhouse_spark.datasource.stream.stream_offset import StreamOffset

TABLE = TableCase("d.t", "id BIGINT", buckets=2)


def ids(query):
    return sorted(row["id"] for row in query.rows)


def append(wh, *numbers):
    for number in numbers:
        wh.table("d.t").append([{"id": number}])


@pytest.fixture
def backup(memory):
    return lambda: dict(memory._objects)


@pytest.fixture
def restore(memory):
    def restored(objects):
        memory._objects = dict(objects)

    return restored


pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)


class TestARestoredSource:
    @pytest.mark.parametrize("grown", [0, 1, 3, 12])
    def test_the_stream_fails_however_far_the_log_has_grown(self, wh, table, other_process, backup, restore, grown):
        append(wh, 1, 2)
        saved = backup()
        append(wh, 3, 4, 5)
        query = Query("d.t")
        query.run(wh)
        assert ids(query) == [1, 2, 3, 4, 5]
        restore(saved)
        other = other_process()
        append(other, *range(10, 10 + grown))
        with pytest.raises(DifferentHistoryError, match=r"restored from a backup.*checkpointLocation.*onDifferentHist"):
            query.run(other)
        assert ids(query) == [1, 2, 3, 4, 5]

    def test_a_stream_that_had_not_read_further_goes_on(self, wh, table, other_process, backup, restore):
        append(wh, 1, 2)
        query = Query("d.t")
        query.run(wh)
        saved = backup()
        append(wh, 3, 4, 5)
        restore(saved)
        other = other_process()
        append(other, 10, 11)
        query.run(other)
        assert ids(query) == [1, 2, 10, 11]

    def test_it_goes_on_when_it_is_told_to(self, wh, table, other_process, backup, restore, caplog):
        append(wh, 1, 2)
        saved = backup()
        append(wh, 3, 4, 5, 6)
        query = Query("d.t", onDifferentHistory="continue")
        query.run(wh)
        restore(saved)
        other = other_process()
        append(other, 10)
        query.run(other)
        assert "continuing at" in caplog.text
        assert {1, 2, 3, 4, 5, 6} <= set(ids(query))
        append(other, 11, 12)
        query.run(other)
        append(other, 13)
        query.run(other)
        assert {11, 12, 13} <= set(ids(query)), "from the log's end on nothing is left out"
        assert caplog.text.count("continuing at") == 1

    def test_rows_that_come_while_it_finds_its_place_are_read(self, wh, table, other_process, backup, restore):
        append(wh, 1)
        saved = backup()
        append(wh, 3, 4, 5, 6)
        query = Query("d.t", onDifferentHistory="continue")
        query.run(wh, unfinished=True, batches=1)  # its end is in the checkpoint, of the other history
        restore(saved)
        other = other_process()
        query.batches.clear()
        reader = query.reader(other)
        start, end = reader.initialOffset(), json.loads(query.offsets[0])
        reader.partitions(start, end)
        append(other, 11, 12, 13)
        newest = reader.latestOffset(end, reader.getDefaultReadLimit())
        found = query._rows(reader, end, newest)
        assert sorted(row["id"] for row in found) == [11, 12, 13]

    def test_a_running_stream_notices_a_restored_source(self, wh, table, other_process, backup, restore):
        append(wh, 1)
        saved = backup()
        query = Query("d.t")
        append(wh, 2)
        reader = query.reader(wh)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        restore(saved)
        append(other_process(), 10, 11)
        with pytest.raises(DifferentHistoryError):
            reader.partitions(start, end)
        with pytest.raises(DifferentHistoryError):
            reader.latestOffset(end, reader.getDefaultReadLimit())

    def test_offsets_from_before_they_named_a_record_are_read_on(self, wh, table):
        append(wh, 1, 2)
        query = Query("d.t")
        query.run(wh)
        old = [json.loads(text) for text in query.offsets]
        query.offsets = [json.dumps({k: v for k, v in found.items() if k != "history"}) for found in old]
        append(wh, 3)
        query.run(wh)
        assert ids(query) == [1, 2, 3]
        assert StreamOffset.from_json(old[-1], "d.t", table.uuid).history == table.refresh().anchors.marks[-2]

    def test_records_without_rows_make_no_batch(self, wh, table):
        append(wh, 1)
        query = Query("d.t")
        query.run(wh)
        table.alter_properties({"table.log.ttl": "9 d"})
        before = list(query.offsets)
        query.run(wh)
        assert query.offsets == before
