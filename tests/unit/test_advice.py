"""Each error that advises something: the table is broken, the error is met, what it says is done, the table is healthy.

A case is a generator. It makes and breaks a table, yields what meets the error, and goes on with what the text advises;
in the end the table takes rows, tiers and reads them. ``ADVICE`` says which words of which condition a case follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from streamhouse_spark.errors import StorageError, StreamhouseError
from streamhouse_spark.lake.tiering import TieringJob, run_tasks_locally
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.checkpoint import list_checkpoints
from streamhouse_spark.model import Transaction
from streamhouse_spark.paths import checkpoint_key, commit_key, name_key, parse_table_name, segment_key
from streamhouse_spark.table import Table
from streamhouse_spark.warehouse import Warehouse

Case = Iterator[Callable[[], object]]
HOUR_MS = 3_600_000


def tier(table: Table) -> None:
    tasks = run_tasks_locally(table.storage, table.settings, table.world)
    TieringJob(table.log, table.open_lake(), world=table.world).run(tasks)


def ids_of(rows: Any) -> list[int]:
    return sorted(rows["id"].to_pylist())


class Place:
    """A warehouse in memory, its clock, and a table ``t`` with the rows 0 to 9, tiered, and 10 to 19, hot."""

    def __init__(self, memory: Any, clock: Any, lake: str) -> None:
        self.memory, self.clock, self.lake = memory, clock, lake
        self.seed = 100
        table = self.warehouse().create_table("t", "id BIGINT", properties={"table.datalake.format": lake})
        table.append([{"id": i} for i in range(10)])
        tier(table)
        table.append([{"id": i} for i in range(10, 20)])
        self.uuid, self.location = table.uuid, table.state.lake_location

    def warehouse(self, storage: Any = None) -> Warehouse:
        self.seed += 1
        world = sim_world(self.seed, self.clock)
        return Warehouse("wh", storage=storage if storage is not None else self.memory, world=world)

    def table(self, storage: Any = None) -> Table:
        return self.warehouse(storage).table("t")

    def damaged(self, key: str) -> bytes:
        """Flip a bit of the file; returns what it was."""
        whole = self.memory.read(key)
        self.memory.put(key, whole[:-2] + bytes([whole[-2] ^ 4]) + whole[-1:])
        return whole

    def lake_files(self, ending: str = "") -> list[str]:
        return sorted(i.key for i in self.memory.list(f"{self.location}/") if i.key.endswith(ending))

    def delete_lake(self) -> None:
        for key in self.lake_files():
            self.memory.delete(key)


def lossy_at(pattern: str, memory: Any) -> FaultyStorage:
    """A store that keeps objects of such names, says that it did not, and cannot read them back."""
    lost: list[str] = []

    class Lossy(FaultyStorage):
        def put_if_absent(self, key: str, data: Any) -> None:
            super().put_if_absent(key, data)
            if re.search(pattern, key):
                lost.append(key)
                raise StorageError("lost")

        def read(self, key: str) -> bytes:
            if key in lost:
                raise StorageError("unreachable")
            return super().read(key)

    return Lossy(memory)


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
    table.stager()._inline_bytes_max = 0
    table.append([{"id": 20}])
    uuid = next(s.uuid for s in table.state.live_segments() if s.uuid is not None)
    whole = place.memory.read(key := segment_key(place.uuid, uuid))
    place.memory.delete(key)
    yield lambda: place.table().to_arrow()
    place.memory.put(key, whole)


def a_damaged_segment(place: Place) -> Case:
    table = place.table()
    table.stager()._inline_bytes_max = 0
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
    place.memory.put(key, whole.replace(b'"version":1', b'"version":2', 1))
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
    assert ids_of(table.lake.to_arrow()) == [1]


def a_lake_commit_whose_outcome_is_unknown(place: Place) -> Case:
    """The metadata's or snapshot's file is stored, the answer is lost, and it cannot be read back."""
    lossy = lossy_at(r"/metadata/v\d+\.metadata\.json$|/snapshot/snapshot-\d+$", place.memory)
    yield lambda: tier(place.table(lossy))
    tier(place.table())
    table = place.table()
    assert ids_of(table.lake.to_arrow()) == list(range(20)), "it repeats nothing that happened"


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
    assert ids_of(place.table().to_arrow())[-1] == 21


def a_transaction_of_another_query(place: Place) -> Case:
    place.table().append([{"id": 20}], transaction=Transaction("app", 1, "first"))
    yield lambda: place.table().append([{"id": 21}], transaction=Transaction("app", 1, "second"))
    place.table().append([{"id": 21}], transaction=Transaction("another app", 1, "second"))
    place.table().forget_transactions("app")
    place.table().append([{"id": 22}], transaction=Transaction("app", 1, "second"))
    assert ids_of(place.table().to_arrow())[-3:] == [20, 21, 22]


# -- what is no longer kept -------------------------------------------------------------------------------------------


def changes_that_were_trimmed(place: Place) -> Case:
    table = place.table()
    table.log.commit(lambda *_: [Trim({0: 12})])  # nothing trims beyond a lake but damage, or an older version
    yield lambda: place.warehouse().view("t$changelog").to_arrow()
    assert ids_of(next(iter(place.table().tail(start="earliest"))))[0] == 12
    place.table().retier(allow_loss=True)


def a_time_before_the_log(place: Place) -> Case:
    first_ms = place.table().state.time_ms
    place.clock.advance(HOUR_MS)
    table = place.table()
    table.append([{"id": 20}])
    table.truncate()
    yield lambda: place.table().to_arrow(as_of_timestamp_ms=first_ms)
    assert ids_of(place.table().lake.to_arrow(as_of_timestamp_ms=first_ms)) == list(range(10))


def a_lake_snapshot_that_is_not_there(place: Place) -> Case:
    yield lambda: place.table().lake.to_arrow(as_of_snapshot=12345)
    newest = place.table().lake.newest()
    assert ids_of(place.table().lake.to_arrow(as_of_snapshot=newest.id)) == list(range(10))


ADVICE: dict[Callable[[Place], Case], tuple[str, str]] = {
    a_damaged_record: ("CORRUPT_DATA", r"/commits/\d+\.json .*restore this file"),
    a_missing_record: ("CORRUPT_DATA", r"/commits/\d+\.json is missing .*restore this file"),
    a_missing_segment: ("CORRUPT_DATA", r"/segments/.* is missing .*restore it"),
    a_damaged_segment: ("CORRUPT_DATA", r"/segments/.*restore this file"),
    a_damaged_name: ("CORRUPT_DATA", r"/names/00000001\.json .*restore this file"),
    a_checkpoint_of_another_record: ("CORRUPT_DATA", r"/checkpoints/\d+ .*delete this file"),
    all_checkpoints_above_a_floor: ("CORRUPT_DATA", r"/checkpoints/\d+ .*restore one of these files"),
    a_newer_format: ("FORMAT_VERSION", r"upgrade streamhouse-spark"),
    a_lake_that_was_deleted: ("LAKE_ROLLED_BACK", r"build it anew from the log \(streamhouse retier\)"),
    maintaining_beside_a_lake_that_was_deleted: ("LAKE_ROLLED_BACK", r"build it anew from the log"),
    reading_a_lake_that_was_deleted: ("LAKE_MISMATCH|SNAPSHOT_EXPIRED", r"tier it"),
    a_lost_lake_file: ("SNAPSHOT_EXPIRED", r"it was lost: .*build the lake anew from the log \(streamhouse retier\)"),
    a_damaged_lake_file: ("CORRUPT_DATA", r"build the lake anew from the log \(streamhouse retier\)"),
    a_damaged_manifest: ("CORRUPT_DATA", r"build the lake anew from the log \(streamhouse retier\)"),
    a_place_that_another_table_has: ("LAKE_MISMATCH", r"build the lake at another place \(streamhouse retier\)"),
    rows_that_are_in_a_lost_lake_alone: ("OFFSETS_TRIMMED", r"give these rows up: streamhouse retier --allow-loss"),
    rows_that_are_in_neither: ("LAKE_ROLLED_BACK", r"give them up \(streamhouse retier --allow-loss\)"),
    tiering_a_lake_that_is_disabled: ("INVALID_OPTION", r"set it to true"),
    the_lake_of_a_table_without_one: ("INVALID_OPTION", r"set it to true, then tier the table"),
    a_lake_commit_whose_outcome_is_unknown: ("COMMIT_STATE_UNKNOWN", r"run the same tiering again"),
    a_commit_whose_outcome_is_unknown: ("COMMIT_STATE_UNKNOWN", r"attempt [0-9a-f]{32} is in \$commits"),
    a_transaction_of_another_query: ("TRANSACTION_CONFLICT", r"another txnAppId, .*forget_transactions\('app'\)"),
    changes_that_were_trimmed: ("OFFSETS_TRIMMED", r"table\.tail\(start='earliest'\)"),
    a_time_before_the_log: ("OFFSETS_TRIMMED", r"read the lake as of that time"),
    a_lake_snapshot_that_is_not_there: ("SNAPSHOT_EXPIRED", r"the newest kept are .*choose one of them"),
}


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
@pytest.mark.parametrize("case", ADVICE, ids=lambda case: case.__name__)
def test_what_it_says_works(case, lake, memory, clock):
    condition, words = ADVICE[case]
    place = Place(memory, clock, lake)
    steps = case(place)
    with pytest.raises(StreamhouseError, match=rf"^({condition}): .*{words}"):
        next(steps)()
    for _ in steps:
        pytest.fail("a case meets one error")
    table = place.table()
    before = ids_of(table.to_arrow())
    table.append([{"id": 1000}])
    tier(table)
    table.maintain()
    expected = [*before, 1000]
    assert ids_of(place.table().to_arrow()) == ids_of(place.table().lake.to_arrow()) == expected
