"""Planted bugs of the lake: tiering, union reads, truncation, lake maintenance, schema changes and moves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corruption import damage
from faults import interleave as il
from faults import scenarios as sc
from faults import test_relocation_calls as moves
from faults.planted_bugs.log_bugs import interleaving, sweeping
from faults.planted_bugs.planting import Patch, PlantedBug
from faults.scenarios import Run
from kit.tables import tier
from streamhouse_spark import OffsetRange, Warehouse, relocate
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    LakeMismatchError,
    LakeRolledBackError,
    StorageError,
    StreamhouseError,
    WarehouseMovedError,
)
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lake.iceberg import expiry as iceberg_expiry
from streamhouse_spark.lake.iceberg import relocation as iceberg_relocate
from streamhouse_spark.lake.iceberg import tiering_commit as iceberg_round
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.file_io import StorageFileIO
from streamhouse_spark.lake.iceberg.snapshot_commit import SnapshotBuilder
from streamhouse_spark.lake.paimon import compaction as paimon_maintain
from streamhouse_spark.lake.paimon import snapshot_commit as paimon_commit
from streamhouse_spark.lake.paimon.expiry import ReachableFiles
from streamhouse_spark.lake.paimon.snapshots import SnapshotManager
from streamhouse_spark.lake.parquet import footer_checksum
from streamhouse_spark.lake.parquet import reader as parquet_read
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import has_whole_footer
from streamhouse_spark.lake.snapshot_properties import LakeOffsets
from streamhouse_spark.lake.tiering import job as tiering
from streamhouse_spark.lake.tiering import round as tiering_round
from streamhouse_spark.lake.tiering.job import TieringJob
from streamhouse_spark.log import append_commit, log_copy
from streamhouse_spark.log import state as state_module
from streamhouse_spark.log.catalog.names import WarehouseIdentity
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.gc import retention
from streamhouse_spark.log.segments import scan as segment_scan
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read import read_snapshot, scan_planning, snapshot_fallback, snapshot_reader
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.warehouse import relocation
from streamhouse_spark.write import log_writer as table_append
from streamhouse_spark.write import upsert as keyed_table

# -- histories ---------------------------------------------------------------------------------------------------------


def tier_a_table_twice_and_trim_it() -> None:
    run = Run()
    run.create(properties={**sc.LAKE, "table.log.ttl": "1h"})
    run.append()
    run.tier()
    run.append()
    run.clock.advance(2 * sc.HOUR_MS)
    run.append()
    run.observe()
    run.open().maintain()
    run.check()
    run.tier()
    run.append()
    run.check()


def truncate_and_tier() -> None:
    run = Run()
    run.create(properties=sc.LAKE)
    run.append()
    run.tier()
    run.observe()
    run.history.truncate(run.open())
    run.check()
    run.tier()
    run.check()
    assert run.open().lake.to_arrow().num_rows == 0


def a_round_whose_lake_is_no_longer_the_tables() -> None:
    """The round commits, the lake is rebuilt, and the tiering process dies right after it recorded its snapshot."""
    run = Run()
    run.create(properties=sc.LAKE)
    run.append()
    slow = il.rival(run)
    job = tiering.TieringJob(slow.log, slow.open_lake(), world=slow.world)
    told = job._record

    def record(snapshot: Any) -> None:
        il.rival(run).retier()
        told(snapshot)
        raise StorageError("the process dies")

    with mock.patch.object(job, "_record", record), pytest.raises(StorageError, match="dies"):
        job.run(tiering.run_tasks_locally(run.memory, {}, slow.world))
    run.check()
    run.tier()
    run.check()


def flipped_bits_of_a_lake_file() -> None:
    damaged = damage.Damaged(MemoryStorage())
    damage.tiered_table(damaged)
    (key,) = damaged.keys(".parquet")
    files = StorageFiles(damaged.storage)
    for what, data in damage.flips_of_tail(damaged.storage.read(key)):
        damaged.replace(key, data)
        try:
            has_whole_footer(files, files.location_of(key))
        except CorruptDataError:
            continue
        raise AssertionError(f"{what} is not found")


def a_read_while_columns_swap_their_names() -> None:
    """Another process swaps the names, and another thread of this process refreshes the table after the pin."""
    run = Run()
    table = run.warehouse.create_table("sales.pairs", "id BIGINT, a BIGINT, b BIGINT")
    table.append([{"id": 1, "a": 1, "b": 10}])
    tier(table)
    table.append([{"id": 2, "a": 2, "b": 20}])
    pinned = take_latest_snapshot(table.refresh())
    run.warehouse.table("sales.pairs").alter(rename_columns={"a": "b", "b": "a"})
    table.refresh()
    rows = snapshot_reader.read_snapshot_rows(table, pinned, Projection.of(pinned.state.schema, None, None)).to_pylist()
    assert rows == [{"id": 1, "a": 1, "b": 10}, {"id": 2, "a": 2, "b": 20}]


def a_column_whose_fields_swap_their_names() -> None:
    """One row is committed before the swap; another row is staged before it and committed after it, if accepted."""
    run = Run()
    table = run.warehouse.create_table("sales.inside", "id BIGINT, s STRUCT<a: INT, b: INT>")
    table.append([{"id": 1, "s": {"a": 1, "b": 10}}])
    rows = pa.Table.from_pylist([{"id": 2, "s": {"a": 2, "b": 20}}], schema=table.schema)
    staged = table.log_writer.stager().stage(rows)
    run.warehouse.table("sales.inside").alter(rename_columns={"s.a": "b", "s.b": "a"})
    with suppress(CommitConflictError):
        table.log_writer.commit(staged)
    assert table.to_arrow().to_pylist() == [{"id": 1, "s": {"b": 1, "a": 10}}]


def a_deletion_by_a_key_in_another_order() -> None:
    """Tables of simulated runs have the same identity, so this table needs its own cache."""
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, STREAMHOUSE_CACHE_DIR=cache):
        table = Run().warehouse.create_table("sales.keys", "a BIGINT, b BIGINT", primary_key=["b", "a"])
        table.upsert([{"a": 1, "b": 2}, {"a": 2, "b": 1}])
        table.delete([{"a": 1, "b": 2}])
        rows = table.to_arrow().to_pylist()
        close_tablets()
    assert rows == [{"a": 2, "b": 1}]


def a_tag_that_is_made_while_snapshots_expire() -> None:
    run = Run()
    table = run.create(properties=sc.LAKE)
    for _ in range(3):
        run.append()
        sc.tier(table)
    lake, choose = table.open_lake().binding.find(), iceberg_expiry.find_expirable

    def then_tag(*args: Any, **kwargs: Any) -> Any:
        doomed = choose(*args, **kwargs)
        lake.manage_snapshots().create_tag(doomed[0], "audit").commit()
        return doomed

    with mock.patch.object(iceberg_expiry, "find_expirable", then_tag), suppress(CommitConflictError):
        table.open_lake().expire(keep_last=1, keep_ms=0)
    assert table.open_lake().snapshot_by_name("audit").offsets


def days_behind_a_round_whose_clock_was_ahead() -> None:
    run = Run()
    table = run.create(properties=sc.LAKE)
    for ahead_ms in (0, 365 * 24 * sc.HOUR_MS, 0, 0):
        run.append()
        run.clock.jump(ahead_ms)
        sc.tier(table)
        run.clock.jump(-ahead_ms)
    run.clock.advance(48 * sc.HOUR_MS)
    assert len(table.open_lake().expire(keep_last=1, keep_ms=24 * sc.HOUR_MS).snapshots) == 3


def a_lake_of_before_a_drop(lake: str = "iceberg") -> None:
    """Restore a lake from before a drop: reading or tiering it raises, or finds no row of the dropped partition."""
    storage = moves.filled(lake, keyed=False)
    tier(moves.opened(storage, 2).table("t"))
    older = {info.key: storage.read(info.key) for info in storage.list("lake/")}
    moves.opened(storage, 3).table("t").drop_partition({"p": "y"})
    wanted = moves.ids(moves.opened(storage, 4).table("t"))
    for key in [info.key for info in storage.list("lake/")]:
        storage.delete(key)
    for key, data in older.items():
        storage.put(key, data)
    with suppress(LakeRolledBackError):
        tier(moves.opened(storage, 5).table("t"))
    with suppress(LakeRolledBackError):
        assert moves.ids(moves.opened(storage, 6).table("t")) == wanted


def moved_warehouse(*, keyed: bool) -> Warehouse:
    """Copy a filled warehouse to another location, and open the copy in a new process."""
    return moves.opened(moves.at(moves.filled("iceberg", keyed=keyed), "second"), 3)


def a_round_of_a_moved_warehouse() -> None:
    """The round is rejected, by itself or by the commit of the lake."""
    table = moved_warehouse(keyed=False).table("t")
    before = {info.key for info in table.storage.list("lake/")}
    with pytest.raises(WarehouseMovedError):
        tier(table)
    assert {info.key for info in table.storage.list("lake/")} == before


def a_deletion_in_another_warehouse() -> None:
    storage = moved_warehouse(keyed=False).storage
    keys = {info.key for info in storage.list("")}
    with suppress(LakeMismatchError):
        StorageFileIO(storage).delete(f"memory://first/{min(keys)}")
    missing = keys - {info.key for info in storage.list("")}
    assert not missing, f"deleted {missing}"


def a_relocated_table() -> None:
    """Every name is of a file of this warehouse, also the names within files of position deletes."""
    warehouse = moved_warehouse(keyed=True)
    relocate(warehouse, copy=False)
    table = moves.opened(warehouse.storage, 4).table("t")
    files, root = StorageFiles(table.storage), f"{table.storage.url}/"
    lake = table.lake.metadata("all_files").to_pylist()
    assert lake
    for file in lake:
        path = file["file_path"]
        assert path.startswith(root), f"file {path} of another warehouse"
        if file["content"] == 1:
            named = pq.read_table(files.open_input(path))["file_path"].to_pylist()
            assert named
            assert all(str(name).startswith(root) for name in named), f"positions in files of another warehouse: {path}"


def a_writer_of_a_copy_that_becomes_another_table() -> None:
    """A row whose append returned is in the table."""
    warehouse = moved_warehouse(keyed=False)
    writer = moves.opened(warehouse.storage, 7).table("t")
    writer.refresh()
    relocate(warehouse, copy=True)
    with suppress(StreamhouseError):
        writer.append([{"id": 77, "p": "y"}])
        found = moves.ids(moves.opened(warehouse.storage, 4).table("t"))
        assert 77 in found, f"an appended row is missing: {found}"


# -- how the bugs are planted ------------------------------------------------------------------------------------------


def hot_range_after_its_start(original: Any) -> OffsetRange:
    found = original()
    return OffsetRange(min(found.start + 1, found.end), found.end)


def hot_range_before_its_start(original: Any, log: Any) -> OffsetRange:
    found = original()
    return OffsetRange(max(log.start, found.start - 1), found.end)


def lake_that_ends_after_the_truncation(state: TableState) -> TableState:
    firsts = state.first_offsets
    counted = (p for p in reversed(state.lake_history) if all(p.offsets.get(b, 0) >= o for b, o in firsts.items()))
    return replace(state, lake=next(counted, None))


def commit_after_truncation(original: Any, log: CommitLog, overwrite: bool) -> Any:
    if overwrite:
        log.commit(lambda state, _: append_commit.make_truncate_actions(state))
    return original(overwrite=False)


def truncation_planned_once() -> Iterator[Patch]:
    ends: dict[str, Any] = {}

    def truncating(original: Any, state: TableState) -> Any:
        first = ends.setdefault(state.table_uuid, state.ends)
        return (replace(action, offsets=first) for action in original())

    yield Patch(append_commit, "make_truncate_actions", truncating)


def rounds_from_the_recorded_offsets() -> Iterator[Patch]:
    recorded: dict[int, int] = {}

    def refreshed(original: Any) -> TableState:
        state = original()
        recorded.clear()
        recorded.update(state.lake.offsets if state.lake else {})
        return state

    yield Patch(tiering_round, "plan_tiering", lambda original: original(lake_offsets=dict(recorded)))
    yield Patch(TieringJob, "_refresh_state", refreshed)
    yield Patch(iceberg_round, "require_dense", lambda: None)


class HereLake:
    """The lake with which a job started, at the current location of the table's lake."""

    def __init__(self, lake: Any, log: CommitLog) -> None:
        self.lake, self.log = lake, log

    @property
    def location(self) -> str:
        return self.log.state.lake_location

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lake, name)


def fit_fields_by_name(target: Any) -> Any:
    def fitted(array: pa.Array) -> pa.Array:
        if not pa.types.is_struct(target.type):
            return array
        return pa.StructArray.from_arrays([array.field(f.name) for f in target.type], fields=list(target.type))

    return fitted


def pad_by_position(original: Any, rows: Any, schema: Any) -> Any:
    is_whole = rows.num_columns == len(schema.names)
    return rows.rename_columns(list(schema.names)) if is_whole else original()


def delete_by_the_key_alone(self: StorageFileIO, location: Any) -> None:
    self.files.storage.delete(str(location).partition("://")[2].partition("/")[2])


def copy_log_without_sealing(storage: Any, world: Any, old_uuid: str, new_uuid: str) -> None:
    log_copy._Copy(storage, old_uuid, new_uuid).make(CommitLog(storage, old_uuid, world).refresh())


NO_OFFSETS_REQUIRED = Patch(iceberg_round, "require_offsets", lambda: None)
NOT_THE_TABLE = "the union read is not the table"

LAKE_BUGS = (
    # tiering, and reads of the log with the lake
    PlantedBug(
        "trimming does not wait for the lake",
        Patch(
            retention,
            "plan_trim",
            lambda original, state: original(
                state=replace(state, lake=None, lake_history=()), lake_enabled=False, limits=None, auto_partition=None
            ),
        ),
    ).found_by(
        tier_a_table_twice_and_trim_it, "OffsetsTrimmedError: ...the hot log starts at 4, the lake snapshot ends at 1"
    ),
    PlantedBug(
        "the union read starts one offset after the lake's end",
        Patch(read_snapshot, "hot_range", hot_range_after_its_start),
    ).found_by(tier_a_table_twice_and_trim_it, NOT_THE_TABLE),
    PlantedBug(
        "the union read starts one offset before the lake's end",
        Patch(read_snapshot, "hot_range", hot_range_before_its_start),
    ).found_by(tier_a_table_twice_and_trim_it, NOT_THE_TABLE),
    PlantedBug("lake commits are not fenced by offsets", NO_OFFSETS_REQUIRED).found_by(
        interleaving("tier", "tiers", every=3), "bucket 0: the log says that the lake holds 6, it holds 5"
    ),
    PlantedBug(
        "the log records its own end offsets as the lake's",
        Patch(
            TieringJob,
            "_record",
            lambda original, self, snapshot: original(
                snapshot=replace(snapshot, offsets=dict(self._log.refresh().ends))
            ),
        ),
    ).found_by(interleaving("tier", "appends", every=5), "bucket 0: the log says that the lake holds 6, it holds 5"),
    PlantedBug(
        "a tiering round starts at the recorded offsets instead of the lake's", rounds_from_the_recorded_offsets
    ).found_by(sweeping(sc.TierFirst, "crash after"), NOT_THE_TABLE),
    PlantedBug(
        "a snapshot of a replaced lake is recorded",
        Patch(tiering, "record_snapshot", lambda original, lake, log: original(lake=HereLake(lake, log))),
    ).found_by(
        a_round_whose_lake_is_no_longer_the_tables,
        "CorruptDataError: ...which the log recorded, needs it",
    ),
    PlantedBug(
        "a lake restored from before a drop is not detected",
        *(Patch(module, "require_drops_applied", lambda: None) for module in (snapshot_fallback, tiering)),
    ).found_by(a_lake_of_before_a_drop, "[0, 1, 2, 3, 3, 4, ...] == [0, 1, 2, 3, 6, 7]"),
    # truncation and overwrite
    PlantedBug(
        "a lake snapshot that ends after a truncation counts as newer than it",
        Patch(state_module, "with_latest_lake", lake_that_ends_after_the_truncation),
    ).found_by(truncate_and_tier, NOT_THE_TABLE),
    PlantedBug(
        "a tiering round does not notice a truncation",
        NO_OFFSETS_REQUIRED,
        Patch(TieringJob, "_require_same_lake", lambda: None),
    ).found_by(
        interleaving("tier", "truncates and tiers", every=3), "bucket 0: the lake went back to before the truncation"
    ),
    PlantedBug(
        "the Iceberg lake keeps its files when the table is truncated",
        Patch(SnapshotBuilder, "_delete_all", lambda manifests: (manifests, [])),
    ).found_by(sweeping(sc.TierTruncated, "crash after"), NOT_THE_TABLE),
    PlantedBug(
        "the Paimon lake keeps its files when the table is truncated",
        Patch(paimon_commit._SnapshotBuilder, "_removed_entries", lambda: ()),
    ).found_by(sweeping(sc.TierTruncatedOnPaimon, "crash after"), NOT_THE_TABLE),
    PlantedBug(
        "the lake is not emptied while there are no new rows",
        Patch(TieringJob, "_run_round", lambda original, state: state.num_rows == 0 or original()),
    ).found_by(truncate_and_tier, "assert 3 == 0"),
    PlantedBug(
        "an overwrite takes two commit records", Patch(table_append, "commit_append", commit_after_truncation)
    ).found_by(sweeping(sc.Overwrite, "crash after"), "rows were gone before the new ones were there"),
    PlantedBug("a truncation is planned once although it lost a race", truncation_planned_once).found_by(
        interleaving("truncate", "appends"),
        "record 6 of sales.orders truncates the table at offsets {0: 3, 1: 7}, expected its ends {0: 4, 1: 8}",
    ),
    # maintenance of the lake, and damaged files
    PlantedBug(
        "a Paimon compaction drops the offsets",
        Patch(
            paimon_maintain,
            "carry_offsets",
            lambda binding: LakeOffsets({}).to_properties(binding.spec.table_uuid),
        ),
    ).found_by(
        sweeping(sc.CompactPaimon, "crash after"),
        "LAKE_ROLLED_BACK: ... the lake has bucket 0 up to offset 0, expected 9",
    ),
    PlantedBug(
        "Paimon expiry deletes the newest snapshots first",
        Patch(SnapshotManager, "expire", lambda original, snapshot_ids: original(snapshot_ids=snapshot_ids[::-1])),
    ).found_by(sweeping(sc.CompactPaimon, "crash after", method="delete"), "there is a gap between the snapshots"),
    PlantedBug(
        "Paimon expiry deletes files that are still needed",
        Patch(ReachableFiles, "needed_files", lambda original: original(snapshots=())),
    ).found_by(sweeping(sc.CompactPaimon, "crash after"), "SNAPSHOT_EXPIRED: ...metadata of the snapshot is missing"),
    PlantedBug(
        "Iceberg expiry does not check for new tags", Patch(iceberg_expiry, "require_unchanged_refs", lambda: ())
    ).found_by(a_tag_that_is_made_while_snapshots_expire, "SnapshotExpiredError: ...has no tag or branch 'audit'"),
    PlantedBug(
        "Iceberg expiry believes the times of snapshots",
        Patch(iceberg_expiry, "effective_times_ms", lambda own: [max(own[: place + 1]) for place in range(len(own))]),
    ).found_by(days_behind_a_round_whose_clock_was_ahead, "assert 1 == 3"),
    PlantedBug(
        "a footer with a damaged checksum counts as one without a checksum",
        Patch(footer_checksum, "_FRONT", b"\0 never there"),
        Patch(footer_checksum, "_BACK", b"\0 never there"),
    ).found_by(flipped_bits_of_a_lake_file, "byte ... bit 0 is not found"),
    PlantedBug(
        "page indexes are not checked",
        Patch(
            parquet_read,
            "is_whole",
            lambda source, location: footer_checksum.read_checked_footer(source, location) is not None,
        ),
    ).found_by(flipped_bits_of_a_lake_file, "byte ... bit 0 is not found"),
    # schema evolution
    PlantedBug(
        "lake rows are read with the newest columns instead of the pinned ones",
        Patch(scan_planning, "scan_lake", lambda original, table: original(state=table.state)),
    ).found_by(a_read_while_columns_swap_their_names, "{'id': 1, 'a': 10, 'b': 1} != {'id': 1, 'a': 1, 'b': 10}"),
    PlantedBug("nested fields are matched by name", Patch(segment_scan, "cast_of_column", fit_fields_by_name)).found_by(
        a_column_whose_fields_swap_their_names, "{'b': 10, 'a': 1}} != {'id': 1, 's': {'b': 1, 'a': 10}}"
    ),
    PlantedBug(
        "staged rows are committed after their nested fields changed",
        Patch(append_commit, "is_same_column", lambda written, current: written.name == current.name),
    ).found_by(
        a_column_whose_fields_swap_their_names, "Left contains one more item: {'id': 2, 's': {'b': 2, 'a': 20}}"
    ),
    PlantedBug("key columns are matched by position", Patch(keyed_table, "pad_columns", pad_by_position)).found_by(
        a_deletion_by_a_key_in_another_order, "{'a': 1, 'b': 2} != {'a': 2, 'b': 1}"
    ),
    # moved warehouses
    PlantedBug(
        "a moved warehouse still writes its old lakes",
        Patch(WarehouseIdentity, "require", lambda: None),
        Patch(FileCatalog, "_require_home", lambda: None),
    ).found_by(a_round_of_a_moved_warehouse, "DID NOT RAISE ...WarehouseMovedError"),
    PlantedBug(
        "a file of another warehouse is deleted by its key", Patch(StorageFileIO, "delete", delete_by_the_key_alone)
    ).found_by(a_deletion_in_another_warehouse, "deleted {'default/"),
    PlantedBug(
        "relocation leaves manifests that name the old location",
        Patch(iceberg_relocate, "rewrite_record_paths", lambda record: {**record}),
    ).found_by(a_relocated_table, "file memory://first/lake/...of another warehouse"),
    PlantedBug(
        "relocation leaves position deletes that name the old location",
        Patch(
            iceberg_relocate,
            "_rename_data_files",
            lambda files, where: (where, files.storage.size_bytes(files.key_of(where))),
        ),
    ).found_by(a_relocated_table, "positions in files of another warehouse"),
    PlantedBug("a copied log accepts more rows", Patch(relocation, "copy_log", copy_log_without_sealing)).found_by(
        a_writer_of_a_copy_that_becomes_another_table, "an appended row is missing"
    ),
)
