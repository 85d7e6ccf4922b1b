"""Each error that advises something: the table is broken, the error is met, what it says is done, the table is healthy.

A case is a generator. It makes and breaks a table, yields what meets the error, and goes on with what the text advises;
in the end the table takes rows, tiers and reads them. ``ADVICE`` says which words of which condition a case follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import StreamhouseError, Transaction
from streamhouse_spark.core.warehouse_layout import checkpoint_key, commit_key, name_key, parse_table_name, segment_key
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.checkpoint import list_checkpoints
from unit.advice.advice_place import HOUR_MS, Advice, Case, Place, each_lake, follow, lossy_at

# -- damage -----------------------------------------------------------------------------------------------------------


def a_damaged_record(place: Place) -> Case:
    whole = place.damaged(key := commit_key(place.uuid, 2))
    yield place.table
    place.memory.put(key, whole)


def a_missing_record(place: Place) -> Case:
    whole = place.memory.read(key := commit_key(place.uuid, 2))
    place.memory.delete(key)
    yield place.table
    place.memory.put(key, whole)


def a_missing_segment(place: Place) -> Case:
    table = place.table()
    table.log_writer.stager()._inline_bytes_max = 0
    table.append([{"id": 20}])
    uuid = next(s.uuid for s in table.state.live_segments() if s.uuid is not None)
    whole = place.memory.read(key := segment_key(place.uuid, uuid))
    place.memory.delete(key)
    yield lambda: place.table().to_arrow()
    place.memory.put(key, whole)


def a_damaged_segment(place: Place) -> Case:
    table = place.table()
    table.log_writer.stager()._inline_bytes_max = 0
    table.append([{"id": 20}])
    uuid = next(s.uuid for s in table.state.live_segments() if s.uuid is not None)
    whole = place.memory.read(key := segment_key(place.uuid, uuid))
    place.memory.put(key, bytes(len(whole)))
    yield lambda: place.table().to_arrow()
    place.memory.put(key, whole)


def a_damaged_name(place: Place) -> Case:
    whole = place.damaged(key := name_key(parse_table_name("t").path, 1))
    yield place.table
    place.memory.put(key, whole)


def a_checkpoint_of_another_record(place: Place) -> Case:
    table = place.table()
    table.log.checkpoint(table.refresh())
    table.append([{"id": 20}])
    (number,) = list_checkpoints(place.memory, place.uuid)
    other = checkpoint_key(place.uuid, table.state.version)
    place.memory.put(other, place.memory.read(checkpoint_key(place.uuid, number)))

    def write() -> None:
        from streamhouse_spark.log.checkpoint import write_checkpoint

        write_checkpoint(place.memory, table.state)

    yield write
    place.memory.delete(other)
    write()


def all_checkpoints_above_a_floor(place: Place) -> Case:
    table = place.table()
    for i in range(60):
        table.append([{"id": 100 + i}])
    table.log.checkpoint(table.refresh())
    table.append([{"id": 200}])
    for _ in range(3):
        table.maintain()
        place.clock.advance(25 * HOUR_MS)
    keys = [checkpoint_key(place.uuid, n) for n in list_checkpoints(place.memory, place.uuid)]
    whole = [place.damaged(key) for key in keys]
    yield place.table
    place.memory.put(keys[-1], whole[-1])  # one of them is enough


def a_newer_format(place: Place) -> Case:
    whole = place.memory.read(key := commit_key(place.uuid, 3))
    place.memory.put(key, whole.replace(b'"version":1', b'"version":9', 1))
    yield place.table
    place.memory.put(key, whole)  # a newer package would read it: the bytes are not its


# -- the lake ---------------------------------------------------------------------------------------------------------


def a_lake_that_was_deleted(place: Place) -> Case:
    place.delete_lake()
    yield lambda: tier(place.table())
    place.table().retier()


def maintaining_beside_a_lake_that_was_deleted(place: Place) -> Case:
    place.delete_lake()
    yield lambda: place.table().maintain()
    place.table().retier()


def reading_a_lake_that_was_deleted(place: Place) -> Case:
    """The text of a read says to tier, which says to build the lake anew."""
    place.delete_lake()
    yield lambda: place.table().to_arrow()
    with pytest.raises(StreamhouseError, match="streamhouse retier"):
        tier(place.table())
    place.table().retier()


def a_lost_lake_file(place: Place) -> Case:
    for key in place.lake_files(".parquet"):
        place.memory.delete(key)
    yield lambda: place.table().to_arrow()
    place.table().retier()


def a_damaged_lake_file(place: Place) -> Case:
    for key in place.lake_files(".parquet"):
        place.memory.put(key, place.memory.read(key)[:-9] + b"\0" * 9)
    yield lambda: place.table().to_arrow()
    place.table().retier()


def a_damaged_manifest(place: Place) -> Case:
    for key in place.lake_files():
        if key.rpartition("/")[2].startswith(("manifest", "snap-")) or key.endswith(".avro"):
            place.memory.put(key, b"Obj\x01" + bytes(60))
    yield lambda: place.table().to_arrow()
    place.table().retier()


def a_lost_manifest(place: Place) -> Case:
    for key in place.lake_files():
        if key.rpartition("/")[2].startswith(("manifest", "snap-")) or key.endswith(".avro"):
            place.memory.delete(key)
    yield lambda: place.table().to_arrow()
    place.table().retier()


def a_place_that_another_table_has(place: Place) -> Case:
    """A lake table of somebody else lies where this table's should."""
    warehouse = place.warehouse()
    warehouse.create_table("other", "id BIGINT, more STRING", properties={"table.datalake.format": place.lake})
    other = warehouse.table("other")
    other.append([{"id": 1}])
    tier(other)
    theirs = other.state.lake_location
    place.delete_lake()
    for info in place.memory.list(f"{theirs}/"):
        place.memory.put(place.location + info.key.removeprefix(theirs), place.memory.read(info.key))
    yield lambda: tier(place.table())
    place.table().retier()


def rows_that_are_in_a_lost_lake_alone(place: Place) -> Case:
    place.table().log.commit(lambda *_: [Trim({0: 5})])
    place.delete_lake()
    yield lambda: place.table().retier()
    place.table().retier(allow_loss=True)


def rows_that_are_in_neither(place: Place) -> Case:
    table = place.table()
    table.log.commit(lambda *_: [Trim({0: 5})])
    place.delete_lake()
    table.retier(allow_loss=True)
    table.log.commit(lambda *_: [Trim({0: 8})])  # nothing trims beyond a lake but damage, or an older version
    yield lambda: tier(place.table())
    place.table().retier(allow_loss=True)


def tiering_a_lake_that_is_disabled(place: Place) -> Case:
    place.table().alter(set_properties={"table.datalake.enabled": "false"})
    yield lambda: tier(place.table())
    place.table().alter(set_properties={"table.datalake.enabled": "true"})


def the_lake_of_a_table_without_one(place: Place) -> Case:
    table = place.warehouse().create_table("n", "id BIGINT", properties={"table.datalake.enabled": "false"})
    table.append([{"id": 1}])
    yield lambda: table.lake
    table.alter(set_properties={"table.datalake.enabled": "true"})
    tier(table)
    assert ids(table.lake.to_arrow()) == [1]


def a_lake_commit_whose_outcome_is_unknown(place: Place) -> Case:
    """The metadata's or snapshot's file is stored, the answer is lost, and it cannot be read back."""
    lossy = lossy_at(r"/metadata/v\d+\.metadata\.json$|/snapshot/snapshot-\d+$", place.memory)
    yield lambda: tier(place.table(lossy))
    tier(place.table())
    table = place.table()
    assert ids(table.lake.to_arrow()) == list(range(20)), "it repeats nothing that happened"


# -- commits and transactions -----------------------------------------------------------------------------------------


def a_commit_whose_outcome_is_unknown(place: Place) -> Case:
    """The record is stored, the answer is lost, and it cannot be read back: ``$commits`` shows its attempt."""
    told: list[str] = []
    lossy = lossy_at(r"/commits/\d+\.json$", place.memory)

    def send() -> None:
        try:
            place.table(lossy).append([{"id": 21}])
        except StreamhouseError as error:
            told.append(str(error))
            raise

    yield send
    (attempt,) = re.findall(r"attempt ([0-9a-f]{32})", told[0])
    assert attempt in place.warehouse().view("t$commits").to_arrow()["attempt"].to_pylist(), "so nothing is sent again"
    assert ids(place.table().to_arrow())[-1] == 21


def a_transaction_of_another_query(place: Place) -> Case:
    place.table().append([{"id": 20}], transaction=Transaction("app", 1, "first"))
    yield lambda: place.table().append([{"id": 21}], transaction=Transaction("app", 1, "second"))
    place.table().append([{"id": 21}], transaction=Transaction("another app", 1, "second"))
    place.table().forget_transactions("app")
    place.table().append([{"id": 22}], transaction=Transaction("app", 1, "second"))
    assert ids(place.table().to_arrow())[-3:] == [20, 21, 22]


# -- what is no longer kept -------------------------------------------------------------------------------------------


def changes_that_were_trimmed(place: Place) -> Case:
    table = place.table()
    table.log.commit(lambda *_: [Trim({0: 12})])  # nothing trims beyond a lake but damage, or an older version
    yield lambda: place.warehouse().view("t$changelog").to_arrow()
    assert ids(next(iter(place.table().tail(start="earliest"))))[0] == 12
    place.table().retier(allow_loss=True)


def a_time_before_the_log(place: Place) -> Case:
    first_ms = place.table().state.time_ms
    place.clock.advance(HOUR_MS)
    table = place.table()
    table.append([{"id": 20}])
    table.truncate()
    yield lambda: place.table().to_arrow(as_of_timestamp_ms=first_ms)
    assert ids(place.table().lake.to_arrow(as_of_timestamp_ms=first_ms)) == list(range(10))


def a_lake_snapshot_that_is_not_there(place: Place) -> Case:
    yield lambda: place.table().lake.to_arrow(as_of_snapshot=12345)
    newest = place.table().lake.newest()
    assert ids(place.table().lake.to_arrow(as_of_snapshot=newest.id)) == list(range(10))


ADVICE: dict[Callable[[Place], Case], Advice] = {
    a_damaged_record: Advice("CORRUPT_DATA", r"/commits/\d+\.json .*restore this file", "restore this file"),
    a_missing_record: Advice(
        "CORRUPT_DATA",
        r"/commits/\d+\.json is missing .*restore this file",
        "is missing although records follow it; restore this file",
    ),
    a_missing_segment: Advice(
        "CORRUPT_DATA",
        r"/segments/.* is missing .*restore this file",
        "is missing although the table names it; restore this file",
    ),
    a_damaged_segment: Advice("CORRUPT_DATA", r"/segments/.*restore this file", "restore this file"),
    a_damaged_name: Advice("CORRUPT_DATA", r"/names/00000001\.json .*restore this file", "restore this file"),
    a_checkpoint_of_another_record: Advice("CORRUPT_DATA", r"/checkpoints/\d+ .*delete this file", "delete this file"),
    all_checkpoints_above_a_floor: Advice(
        "CORRUPT_DATA", r"/checkpoints/\d+ .*restore one of these files", "restore one of these files"
    ),
    a_newer_format: Advice("FORMAT_VERSION", r"upgrade streamhouse-spark", "upgrade streamhouse-spark"),
    **dict.fromkeys(
        (a_lake_that_was_deleted, maintaining_beside_a_lake_that_was_deleted, reading_a_lake_that_was_deleted),
        Advice(
            "CORRUPT_DATA",
            r"is missing, .*rebuild the lake from the log \(streamhouse retier\)",
            "rebuild the lake from the log (streamhouse retier)",
        ),
    ),
    a_lost_lake_file: Advice(
        "SNAPSHOT_EXPIRED",
        r"it was lost: .*rebuild the lake from the log \(streamhouse retier\)",
        "it was lost: restore it, or rebuild the lake from the log (streamhouse retier)",
    ),
    a_damaged_lake_file: Advice(
        "CORRUPT_DATA",
        r"rebuild the lake from the log \(streamhouse retier\)",
        "rebuild the lake from the log (streamhouse retier)",
    ),
    a_damaged_manifest: Advice(
        "CORRUPT_DATA",
        r"rebuild the lake from the log \(streamhouse retier\)",
        "rebuild the lake from the log (streamhouse retier)",
    ),
    a_lost_manifest: Advice(
        "SNAPSHOT_EXPIRED", r"retry the query. If the error persists, .*retier", "If the error persists"
    ),
    a_place_that_another_table_has: Advice(
        "LAKE_MISMATCH",
        r"rebuild the lake at another location \(streamhouse retier\)",
        "rebuild the lake at another location (streamhouse retier)",
    ),
    rows_that_are_in_a_lost_lake_alone: Advice(
        "OFFSETS_TRIMMED",
        r"accept the loss with ",
        "accept the loss with ",
    ),
    rows_that_are_in_neither: Advice(
        "LAKE_ROLLED_BACK",
        r"accept the loss \(streamhouse retier --allow-loss\)",
        "or accept the loss (streamhouse retier --allow-loss)",
    ),
    tiering_a_lake_that_is_disabled: Advice(
        "INVALID_OPTION", r"set it to true", "table.datalake.enabled is false; set it to true"
    ),
    the_lake_of_a_table_without_one: Advice(
        "INVALID_OPTION", r"set it to true, then tier the table", "set it to true, then tier the table"
    ),
    a_lake_commit_whose_outcome_is_unknown: Advice("COMMIT_STATE_UNKNOWN", r"retry the round", "retry the round"),
    a_commit_whose_outcome_is_unknown: Advice(
        "COMMIT_STATE_UNKNOWN", r"\$commits for attempt [0-9a-f]{32}", "$commits"
    ),
    a_transaction_of_another_query: Advice(
        "TRANSACTION_CONFLICT",
        r"another txnAppId\. .*forget_transactions\('app'\)",
        "Choose another txnAppId",
    ),
    changes_that_were_trimmed: Advice(
        "OFFSETS_TRIMMED", r"table\.tail\(start='earliest'\)", "table.tail(start='earliest')"
    ),
    a_time_before_the_log: Advice("OFFSETS_TRIMMED", r"read the lake as of that time", "read the lake as of that time"),
    a_lake_snapshot_that_is_not_there: Advice(
        "SNAPSHOT_EXPIRED", "choose a retained snapshot", "choose a retained snapshot"
    ),
}


@pytest.mark.parametrize(("case", "lake"), each_lake(ADVICE))
def test_what_it_says_works(case, lake, memory, clock):
    follow(case, ADVICE[case], Place(memory, clock, lake))
