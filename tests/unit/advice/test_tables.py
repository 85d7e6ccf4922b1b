"""Properties, columns, partitions, streams and copies: what the error advises is done, and the table is healthy."""

from __future__ import annotations

import json
from collections.abc import Callable
from unittest import mock

import pyarrow as pa
import pytest

from kit.rows import ids
from kit.tables import tier
from property.stream_driver import Query
from streamhouse_spark import StreamhouseError, Transaction
from streamhouse_spark.core.types import StreamBatch
from streamhouse_spark.datasource.write.sink_transactions import is_first_batch_of_recreated_table
from streamhouse_spark.lake.tiering import record_snapshot
from streamhouse_spark.log.actions import Trim
from unit.advice.advice_place import HOUR_MS, Advice, Case, Place, each_lake, follow

pytestmark = pytest.mark.usefixtures("own_cache")


def dictionary(name: str, table: pa.Table) -> dict[object, object]:
    return dict(zip(table["id"].to_pylist(), table[name].to_pylist(), strict=True))


# -- properties and columns -------------------------------------------------------------------------------------------


def a_sum_that_does_not_fit(place: Place) -> Case:
    table = place.keyed(**{"table.merge-engine": "aggregation", "fields.n.agg": "sum"})
    more = [{"id": 1, "p": "a", "n": 2**31 - 1}]
    yield lambda: table.upsert(more)
    table.alter(widen_columns={"n": "BIGINT"})
    table.upsert(more)
    assert dictionary("n", place.warehouse().table("k").to_arrow()) == {1: 2**31, 2: 1}
    place.require_healthy("k")


def a_sum_that_fits_no_type(place: Place) -> Case:
    """Where there is no wider type, it is a new table's."""
    table = place.keyed(**{"table.merge-engine": "aggregation", "fields.n.agg": "sum"})
    table.alter(widen_columns={"n": "BIGINT"})
    more = [{"id": 1, "p": "a", "n": 2**63 - 1}]
    yield lambda: table.upsert(more)
    properties = {"table.merge-engine": "aggregation", "fields.n.agg": "sum"}
    made = place.warehouse().create_table(
        "w", "id BIGINT, p STRING, n DECIMAL(38,0)", primary_key=["id"], properties=properties
    )
    made.upsert(table.to_arrow())
    made.upsert(more)
    assert int(made.lookup_one(1)["n"]) == 2**63


def a_narrower_column(place: Place) -> Case:
    table = place.keyed()
    yield lambda: table.alter(widen_columns={"n": "STRING"})
    table.alter(add_columns="text STRING")
    table.upsert([{"id": 1, "p": "a", "text": "1"}, {"id": 2, "p": "b", "text": "1"}])
    table.alter(drop_columns=["n"])
    assert dictionary("text", place.warehouse().table("k").to_arrow()) == {1: "1", 2: "1"}


def a_narrower_column_of_a_log(place: Place) -> Case:
    table = place.partitioned()
    yield lambda: table.alter(widen_columns={"n": "STRING"})
    made = place.warehouse().create_table("q", "id BIGINT, p STRING, n STRING")
    rows = table.to_arrow()
    made.append(rows.set_column(rows.column_names.index("n"), "n", rows["n"].cast(pa.string())))
    assert dictionary("n", made.to_arrow()) == {1: "1", 2: "1"}


def a_fixed_property(place: Place) -> Case:
    table = place.table()
    yield lambda: table.alter(set_properties={"bucket.num": "4"})
    made = place.warehouse().create_table("u", "id BIGINT", buckets=4)
    made.append(table.to_arrow())
    assert ids(made.to_arrow()) == list(range(20))


def the_last_columns(place: Place) -> Case:
    yield lambda: place.table().alter(drop_columns=["id"])
    place.table().alter(add_columns="other BIGINT")
    place.table().alter(drop_columns=["id"])
    place.table().alter(rename_columns={"other": "id"})
    place.table().append([{"id": 1}])
    assert place.table().to_arrow()["id"].to_pylist().count(None) == 20
    place.warehouse().drop_table("t")
    place.create()


def deletions_that_a_table_takes_not(place: Place) -> Case:
    table = place.keyed(**{"table.delete.behavior": "disable"})
    yield lambda: table.drop_partition({"p": "a"})
    table.alter(set_properties={"table.delete.behavior": "allow"})
    table.drop_partition({"p": "a"})
    assert ids(place.warehouse().table("k").to_arrow()) == [2]
    place.require_healthy("k")


def deletions_that_a_table_with_an_engine_takes_not(place: Place) -> Case:
    table = place.keyed(**{"table.merge-engine": "aggregation", "fields.n.agg": "sum"})
    table.alter(set_properties={"table.delete.behavior": "ignore"})
    yield lambda: table.drop_partition({"p": "a"})
    table.alter(set_properties={"table.delete.behavior": "allow"})
    table.drop_partition({"p": "a"})
    assert ids(place.warehouse().table("k").to_arrow()) == [2]


def deleting_rows_that_a_table_keeps(place: Place) -> Case:
    table = place.keyed(**{"table.delete.behavior": "disable"})
    yield lambda: table.delete([(1, "a")])
    table.alter(set_properties={"table.delete.behavior": "ignore"})
    table.delete([(1, "a")])
    assert ids(table.to_arrow()) == [1, 2]
    table.alter(set_properties={"table.delete.behavior": "allow"})
    table.delete([(1, "a")])
    assert ids(place.warehouse().table("k").to_arrow()) == [2]


def appending_by_key(place: Place) -> Case:
    table = place.keyed()
    yield lambda: table.append([{"id": 3, "p": "a", "n": 1}])
    table.upsert([{"id": 3, "p": "a", "n": 1}])
    assert ids(table.to_arrow()) == [1, 2, 3]


# -- partitions and lakes ---------------------------------------------------------------------------------------------


def a_partition_of_a_table_without_a_lake(place: Place) -> Case:
    table = place.partitioned(**{"table.datalake.enabled": "false"})
    yield lambda: table.drop_partition({"p": "a"})
    table.alter(set_properties={"table.datalake.enabled": "true"})
    table.drop_partition({"p": "a"})
    assert ids(place.warehouse().table("p").to_arrow()) == [2]
    place.require_healthy("p")


def partitions_that_expire_without_a_lake(place: Place) -> Case:
    expiring = {"table.auto-partition.enabled": "true", "table.auto-partition.time-unit": "day"}
    table = place.partitioned(**{"table.datalake.enabled": "false"})
    yield lambda: table.alter(set_properties=expiring)
    table.alter(set_properties={**expiring, "table.datalake.enabled": "true"})
    place.require_healthy("p")


def partitions_of_a_table_without(place: Place) -> Case:
    yield lambda: place.table().drop_partition({"id": 1})
    made = place.partitioned()
    made.drop_partition({"p": "a"})
    place.table().truncate()
    assert (ids(made.to_arrow()), ids(place.table().to_arrow())) == ([2], [])


def a_partition_that_is_lost_with_its_lake(place: Place) -> Case:
    table = place.partitioned()
    tier(table)
    for info in list(place.memory.list(f"{table.state.lake_location}/")):
        place.memory.delete(info.key)
    yield lambda: table.drop_partition({"p": "a"})
    place.warehouse().table("p").retier()
    place.warehouse().table("p").drop_partition({"p": "a"})
    assert ids(place.warehouse().table("p").to_arrow()) == [2]


def dropped_rows_that_a_new_lake_would_bring_back(place: Place) -> Case:
    table = place.partitioned()
    with mock.patch.object(
        record_snapshot, "find_partition_drops", return_value=[]
    ):  # as an older version of the package dropped it
        table.drop_partition({"p": "a"})
    yield lambda: place.warehouse().table("p").retier()
    place.warehouse().table("p").retier(allow_loss=True)
    place.warehouse().table("p").drop_partition({"p": "a"})
    assert ids(place.warehouse().table("p").to_arrow()) == [2]
    place.require_healthy("p")


def retiering_where_the_lake_is_disabled(place: Place) -> Case:
    place.delete_lake()
    place.table().alter(set_properties={"table.datalake.enabled": "false"})
    yield lambda: place.table().retier()
    place.table().alter(set_properties={"table.datalake.enabled": "true"})
    place.table().retier()


# -- names ------------------------------------------------------------------------------------------------------------


def a_table_that_was_dropped_meanwhile(place: Place) -> Case:
    table = place.table()
    place.warehouse().drop_table("t")
    place.create()
    yield lambda: table.append([{"id": 1}])
    place.table().append([{"id": 1}])
    assert ids(place.table().to_arrow()) == [1]


def a_name_that_is_taken(place: Place) -> Case:
    yield place.create
    assert ids(place.warehouse().create_table("t", "id BIGINT", if_not_exists=True).to_arrow()) == list(range(20))
    place.warehouse().drop_table("t")
    place.create()


def renaming_to_a_name_that_is_taken(place: Place) -> Case:
    place.warehouse().create_table("n", "id BIGINT")
    yield lambda: place.warehouse().rename_table("t", "n")
    place.warehouse().drop_table("n")
    place.warehouse().rename_table("t", "n")
    place.warehouse().rename_table("n", "t")


def a_database_with_tables(place: Place) -> Case:
    place.warehouse().create_table("d.n", "id BIGINT")
    yield lambda: place.warehouse().drop_database("d")
    place.warehouse().drop_database("d", cascade=True)
    assert "d" not in place.warehouse().databases()


# -- time travel ------------------------------------------------------------------------------------------------------


def a_time_before_the_table(place: Place) -> Case:
    before_ms = place.table().state.created_ms - HOUR_MS
    yield lambda: place.table().to_arrow(as_of_timestamp_ms=before_ms)
    assert place.table().to_arrow(as_of_timestamp_ms=place.table().state.time_ms).num_rows == 20


def a_lake_without_snapshots(place: Place) -> Case:
    table = place.partitioned()
    yield lambda: table.lake.to_arrow(as_of_timestamp_ms=place.clock.now_ms())
    tier(table)
    assert table.lake.to_arrow(as_of_timestamp_ms=table.lake.newest().timestamp_ms).num_rows == 2


def a_time_before_the_lake(place: Place) -> Case:
    yield lambda: place.table().lake.to_arrow(as_of_timestamp_ms=1)
    newest = place.table().lake.newest()
    assert place.table().lake.to_arrow(as_of_timestamp_ms=newest.timestamp_ms).num_rows == 10


# -- streams ----------------------------------------------------------------------------------------------------------


def stream(place: Place, *runs: Callable[[], object], **options: str) -> Query:
    """A query that ran before each of these, and will again."""
    query = Query("t", startingOffsets="earliest", **options)
    for act in runs:
        query.run(place.warehouse())
        act()
    return query


def again(place: Place, query: Query, **options: str) -> Query:
    """With its checkpoint, and these options."""
    query.options = {**query.options, **options}
    query.run(place.warehouse())
    return query


def read(query: Query) -> list[int]:
    return sorted(row["id"] for row in query.rows)


def a_stream_from_a_restored_table(place: Place) -> Case:
    backup = dict(place.memory._objects)
    query = stream(place, lambda: place.table().append([{"id": 20}]), lambda: None)
    place.memory._objects = backup
    place.table().append([{"id": 21}])
    yield lambda: again(place, query)
    assert read(again(place, query, onDifferentHistory="continue"))[-1] in (20, 21)
    assert read(again(place, stream(place)))[-1] == 21


def a_stream_of_an_older_version_from_a_restored_table(place: Place) -> Case:
    """Its offsets do not say of which history they are."""
    backup = dict(place.memory._objects)
    query = stream(place, lambda: place.table().append([{"id": 20}]))
    query.run(place.warehouse(), batches=1, unfinished=True)
    place.memory._objects = backup
    told = [json.loads(text) for text in query.offsets]
    query.offsets = [json.dumps({name: value for name, value in data.items() if name != "history"}) for data in told]
    yield lambda: again(place, query)
    assert read(again(place, stream(place))) == list(range(20))


def a_stream_from_a_truncated_table(place: Place) -> Case:
    query = stream(place, lambda: place.table().truncate())
    place.table().append([{"id": 21}])
    yield lambda: again(place, query)
    assert read(again(place, query, failOnDataLoss="false")) == [*range(20), 21]
    assert read(again(place, stream(place))) == [21]


def a_stream_whose_rows_were_trimmed(place: Place) -> Case:
    query = stream(place, lambda: place.table().append([{"id": i} for i in range(20, 30)]))
    place.table().log.commit(lambda *_: [Trim({0: 25})])
    yield lambda: again(place, query)
    assert read(again(place, query, failOnDataLoss="false")) == [*range(20), *range(25, 30)]
    place.table().retier(allow_loss=True)


def a_stream_from_offsets_that_were_trimmed(place: Place) -> Case:
    place.table().log.commit(lambda *_: [Trim({0: 15})])
    start = '{"0": 12}'
    yield lambda: again(place, Query("t", startingOffsets=start))
    assert read(again(place, Query("t", startingOffsets='{"0": 16}'))) == [16, 17, 18, 19]
    assert read(again(place, Query("t", startingOffsets=start, failOnDataLoss="false"))) == [15, 16, 17, 18, 19]
    assert 15 in read(again(place, Query("t", startingOffsets="earliest")))
    place.table().retier(allow_loss=True)


def a_stream_from_a_time_that_was_trimmed(place: Place) -> Case:
    place.clock.advance(HOUR_MS)
    place.table().append([{"id": i} for i in range(20, 30)])
    then_ms = place.table().state.time_ms
    place.clock.advance(HOUR_MS)
    place.table().append([{"id": 30}])
    place.table().log.commit(lambda *_: [Trim({0: 25})])
    yield lambda: again(place, Query("t", startingTimestamp=str(then_ms)))
    options = {"startingTimestamp": str(then_ms), "failOnDataLoss": "false"}
    assert read(again(place, Query("t", **options))) == list(range(25, 31))
    assert read(again(place, Query("t", startingTimestamp=str(then_ms + HOUR_MS)))) == [30]
    assert read(again(place, Query("t", startingOffsets='{"0": 26}'))) == list(range(26, 31))
    place.table().retier(allow_loss=True)


def a_stream_from_a_table_that_was_made_anew(place: Place) -> Case:
    def anew() -> None:
        place.warehouse().drop_table("t")
        place.create().append([{"id": 1}])

    query = stream(place, anew)
    yield lambda: again(place, query)
    assert read(again(place, stream(place))) == [1]


def an_offset_that_cannot_be_read(place: Place) -> Case:
    query = stream(place, lambda: None)
    whole = query.offsets[-1]
    query.offsets[-1] = whole.replace('"offsets"', '"offset"')
    place.table().append([{"id": 20}])
    yield lambda: again(place, query)
    query.offsets[-1] = whole
    assert read(again(place, query)) == list(range(21))
    assert read(again(place, stream(place))) == list(range(21))


def an_offset_of_another_version(place: Place) -> Case:
    query = stream(place, lambda: None)
    query.offsets[-1] = query.offsets[-1].replace('"version": 1', '"version": 99')
    place.table().append([{"id": 20}])
    yield lambda: again(place, query)
    assert read(again(place, stream(place))) == list(range(21))


def a_sink_whose_table_was_restored(place: Place) -> Case:
    def batch(number: int) -> Transaction:
        return Transaction("app", number, "q", StreamBatch(None, is_each_recorded=True))

    place.table().append([{"id": 20}], transaction=batch(0))
    told: list[str] = []

    def send() -> None:
        try:
            place.table().append([{"id": 23}], transaction=batch(3))
        except StreamhouseError as error:
            told.append(str(error))
            raise

    yield send
    advised = told[0].partition("first run ")[2]
    assert advised == "Table.append([], transaction=Transaction('app', 2, 'q'))"
    place.table().append([], transaction=Transaction("app", 2, "q"))
    place.table().append([{"id": 23}], transaction=batch(3))
    assert ids(place.table().to_arrow())[-2:] == [20, 23]


def a_sink_whose_checkpoint_is_older(place: Place) -> Case:
    batches = [Transaction("app", number, "q", StreamBatch(str(number))) for number in range(3)]
    for number, batch in enumerate(batches):
        place.table().append([{"id": 20 + number}], transaction=batch)
    yield lambda: place.table().append([{"id": 21}], transaction=batches[1])
    place.table().forget_transactions("app")
    place.table().append([{"id": 21}], transaction=batches[1])
    assert ids(place.table().to_arrow())[-4:] == [20, 21, 21, 22]


def a_sink_whose_table_was_made_anew(place: Place) -> Case:
    place.warehouse().drop_table("t")
    place.create()
    batch = Transaction("app", 4, "q")
    yield lambda: is_first_batch_of_recreated_table(place.table(), batch)
    place.table().append([], transaction=Transaction("app", 3, "q"))
    assert not is_first_batch_of_recreated_table(place.table(), batch)
    place.table().append([{"id": 1}], transaction=batch)


ADVICE: dict[Callable[[Place], Case], Advice] = {
    a_sum_that_does_not_fit: Advice(
        "AGGREGATE_OVERFLOW", "change the column to a wider type", "change the column to a wider type"
    ),
    a_sum_that_fits_no_type: Advice(
        "AGGREGATE_OVERFLOW", "copy the rows to a table", "or copy the rows to a table with a wider type"
    ),
    a_narrower_column: Advice("SCHEMA_MISMATCH", "add a column of that type, fill it", "fill it"),
    a_narrower_column_of_a_log: Advice("SCHEMA_MISMATCH", "copy the rows", "fill it"),
    a_fixed_property: Advice("INVALID_OPTION", "create a new table and copy", "create a new table and copy the rows"),
    the_last_columns: Advice("SCHEMA_MISMATCH", "or add a column first", "drop the table, or add a column first"),
    deletions_that_a_table_takes_not: Advice(
        "INVALID_OPTION", "set the property to allow", "set the property to allow"
    ),
    deletions_that_a_table_with_an_engine_takes_not: Advice(
        "INVALID_OPTION", "set the property to allow", "set the property to allow if"
    ),
    deleting_rows_that_a_table_keeps: Advice(
        "INVALID_OPTION", "to ignore", "or set the property to ignore, or to allow"
    ),
    appending_by_key: Advice("INVALID_OPTION", "use upsert", "use upsert(rows)"),
    a_partition_of_a_table_without_a_lake: Advice(
        "INVALID_OPTION",
        "set table.datalake.enabled to true and drop the partition",
        "set table.datalake.enabled to true and drop",
    ),
    partitions_that_expire_without_a_lake: Advice(
        "INVALID_OPTION", "set table.datalake.enabled to true", "set table.datalake.enabled to true, or use"
    ),
    partitions_of_a_table_without: Advice(
        "INVALID_OPTION", "remove all rows with truncate", "or partition a new table"
    ),
    a_partition_that_is_lost_with_its_lake: Advice("CORRUPT_DATA", "retier", "rebuild the lake"),
    dropped_rows_that_a_new_lake_would_bring_back: Advice(
        "OFFSETS_TRIMMED", "then drop the partitions again", "then drop the partitions again"
    ),
    retiering_where_the_lake_is_disabled: Advice("INVALID_OPTION", "set it to true first", "set it to true first"),
    a_table_that_was_dropped_meanwhile: Advice("TABLE_NOT_FOUND", "open it again", "open it again by its name"),
    a_name_that_is_taken: Advice("TABLE_EXISTS", "drop it first", "drop it first"),
    renaming_to_a_name_that_is_taken: Advice("TABLE_EXISTS", "drop or rename it", "drop or rename it first"),
    a_database_with_tables: Advice(
        "DATABASE_NOT_EMPTY", "cascade=True", "or drop them too with CASCADE (cascade=True)"
    ),
    a_time_before_the_table: Advice("OFFSETS_TRIMMED", "choose a later time", "choose a later time"),
    a_lake_without_snapshots: Advice("SNAPSHOT_EXPIRED", "tier it first", "tier it first"),
    a_time_before_the_lake: Advice("SNAPSHOT_EXPIRED", "choose a later time", "choose a later time"),
    a_stream_from_a_restored_table: Advice(
        "DIFFERENT_HISTORY", "onDifferentHistory=continue", "with onDifferentHistory=continue"
    ),
    a_stream_of_an_older_version_from_a_restored_table: Advice(
        "OFFSETS_TRIMMED", "start with a new", "the table was restored from an older copy; start with a new"
    ),
    a_stream_from_a_truncated_table: Advice(
        "OFFSETS_TRIMMED", "failOnDataLoss=false", "or continue after the truncation with failOnDataLoss=false"
    ),
    a_stream_whose_rows_were_trimmed: Advice(
        "OFFSETS_TRIMMED", "failOnDataLoss=false", "skip them with failOnDataLoss=false"
    ),
    a_stream_from_offsets_that_were_trimmed: Advice(
        "OFFSETS_TRIMMED", "begin at startingOffsets=earliest", "begin at startingOffsets=earliest, or skip them"
    ),
    a_stream_from_a_time_that_was_trimmed: Advice(
        "OFFSETS_TRIMMED", "failOnDataLoss=false", "set offsets, a later time, or failOnDataLoss=false to start at"
    ),
    a_stream_from_a_table_that_was_made_anew: Advice(
        "TABLE_NOT_FOUND",
        "new checkpointLocation",
        "start the query with a new checkpointLocation to read the new table",
    ),
    an_offset_that_cannot_be_read: Advice(
        "CORRUPT_DATA", "start with a new checkpoint", "or start with a new checkpoint"
    ),
    an_offset_of_another_version: Advice(
        "FORMAT_VERSION", "upgrade, or start with a new", "or start with a new checkpointLocation"
    ),
    a_sink_whose_table_was_restored: Advice(
        "DIFFERENT_HISTORY", "first run", "to skip the rows of the missing batches, first run"
    ),
    a_sink_whose_checkpoint_is_older: Advice(
        "DIFFERENT_HISTORY",
        r"forget_transactions\('app'\)",
        "if rows may be written twice, run Table.forget_transactions",
    ),
    a_sink_whose_table_was_made_anew: Advice("TABLE_NOT_FOUND", "first run", "the rows of earlier batches, first run"),
}


@pytest.mark.parametrize(("case", "lake"), each_lake(ADVICE))
def test_what_it_says_works(case, lake, memory, clock):
    follow(case, ADVICE[case], Place(memory, clock, lake))
