"""Protocol bugs to plant: each takes one decision away from the product, the way a plausible change would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa

from streamhouse_spark.core.model import OffsetRange, TablePath
from streamhouse_spark.core.paths import checkpoint_hint_key, checkpoint_key, segment_key
from streamhouse_spark.errors import ObjectExistsError, StorageError, StreamhouseError
from streamhouse_spark.kv import staged_changes, tablet_history
from streamhouse_spark.lake.iceberg import round as iceberg_round
from streamhouse_spark.lake.iceberg import snapshot_builder as iceberg_snapshot
from streamhouse_spark.lake.iceberg.maintenance import compaction as iceberg_maintain
from streamhouse_spark.lake.offsets import OFFSETS_PROPERTY, offsets_text
from streamhouse_spark.lake.paimon import commit as paimon_commit
from streamhouse_spark.lake.paimon.maintenance import compaction as paimon_maintain
from streamhouse_spark.lake.paimon.reachable import Reach
from streamhouse_spark.lake.paimon.snapshots import SnapshotFolder
from streamhouse_spark.lake.parquet import footer_seal
from streamhouse_spark.lake.parquet import reader as parquet_read
from streamhouse_spark.lake.tiering import job as tiering
from streamhouse_spark.lake.tiering import round as tiering_round
from streamhouse_spark.log import append as staging
from streamhouse_spark.log import compaction as merge
from streamhouse_spark.log.commits import (
    checkpoint,
    commit_log,
    failed_commits,
    standing,
    state_json,
    transaction_outcome,
    verified,
)
from streamhouse_spark.log.commits import state as state_module
from streamhouse_spark.log.commits import transactions as writers
from streamhouse_spark.log.commits.anchors import Anchors
from streamhouse_spark.log.commits.checkpoint import write_checkpoint
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.record import Record, encode_record
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.log.commits.state import TableState, fold
from streamhouse_spark.log.lifecycle import cleaning, names, retention
from streamhouse_spark.log.segments import scan as segment_scan
from streamhouse_spark.log.segments import shared_object
from streamhouse_spark.read import pin, planner, tail
from streamhouse_spark.write import upsert as keyed_table

Plant = Callable[[], "contextmanager[None]"]
PLANTS: dict[str, Callable[[], Any]] = {}
INFINITE_MS = 10**15


def plant(function: Callable[[], Iterator[None]]) -> Callable[[], Any]:
    manager = contextmanager(function)
    PLANTS[function.__name__] = manager
    return manager


@contextmanager
def patched(*patches: tuple[object, str, object]) -> Iterator[None]:
    with ExitStack() as stack:
        for target, name, value in patches:
            stack.enter_context(mock.patch.object(target, name, value))
        yield


@plant
def floor_is_not_looked_at_when_reading() -> Iterator[None]:
    with patched((CommitLog, "_floor_allows", lambda *_: True)):
        yield


@plant
def floor_is_not_looked_at_before_acknowledging() -> Iterator[None]:
    def won(self: CommitLog, before: TableState, stored: Record) -> TableState:
        return self._stored(before, stored)

    with patched((CommitLog, "_won", won)):
        yield


@plant
def only_who_reads_the_floor_compares_it() -> Iterator[None]:
    original = CommitLog._won

    def won(self: CommitLog, before: TableState, stored: Record) -> TableState | None:
        if self._world.clock.boot_ms() - self._floor_checked_ms > commit_log.FLOOR_CHECK_MS:
            return original(self, before, stored)
        return self._stored(before, stored)

    with patched((CommitLog, "_won", won)):
        yield


@plant
def staged_objects_are_believed_to_be_there() -> Iterator[None]:
    with patched((commit_log, "staged_uuids", lambda _: [])):
        yield


@plant
def exists_means_that_another_won() -> Iterator[None]:
    original = CommitLog._put

    def put(self: CommitLog, record: Record, body: Any) -> Any:
        stored, failure = original(self, record, body)
        if failure is not None and stored is not None:
            stored = replace(stored, attempt="another's")
        return stored, failure

    read = CommitLog._read_forward
    with patched(
        (CommitLog, "_put", put),
        (CommitLog, "_read_forward", lambda self, state, _own, *more: read(self, state, {}, *more)),
    ):
        yield


@plant
def error_of_a_put_means_that_it_was_done() -> Iterator[None]:
    original = CommitLog._put

    def put(self: CommitLog, record: Record, body: Any) -> Any:
        stored, failure = original(self, record, body)
        return (record, failure) if stored is None else (stored, failure)

    with patched((CommitLog, "_put", put)):
        yield


@plant
def late_landing_of_an_attempt_is_not_recognised() -> Iterator[None]:
    original = CommitLog._read_forward

    with patched((CommitLog, "_read_forward", lambda self, state, _own, *more: original(self, state, {}, *more))):
        yield


@plant
def unknown_outcome_is_told_as_a_failure() -> Iterator[None]:
    with patched(
        (commit_log, "CommitStateUnknownError", StorageError), (failed_commits, "CommitStateUnknownError", StorageError)
    ):
        yield


@plant
def failed_append_deletes_its_segments() -> Iterator[None]:
    original = staging.commit_staged

    def commit(log: CommitLog, staged: staging.Staged, **kwargs: Any) -> Any:
        try:
            return original(log, staged, **kwargs)
        except StreamhouseError:
            for piece in staged.segments:
                if piece.segment.uuid is not None:
                    log._storage.delete(segment_key(staged.table_uuid, piece.segment.uuid))
            raise

    from streamhouse_spark.write import append as table_staging

    with patched((table_staging, "commit_staged", commit)):
        yield


@plant
def base_offsets_come_from_the_state_at_staging() -> Iterator[None]:
    original = staging.commit_staged

    def commit(log: CommitLog, staged: staging.Staged, **kwargs: Any) -> Any:
        ends = dict(log.state.ends)
        append = staging.appending

        def stale(state: TableState, pieces: staging.Staged, time_ms: int, _: dict[int, int]) -> Any:
            return append(state, pieces, time_ms, ends)

        with patched((staging, "appending", stale)):
            return original(log, staged, **kwargs)

    from streamhouse_spark.write import append as table_staging

    with patched((table_staging, "commit_staged", commit)):
        yield


@plant
def condemned_segments_are_committed() -> Iterator[None]:
    with patched((staging, "_require_fresh", lambda *_: None), (commit_log, "require_stored", lambda *_: None)):
        yield


@plant
def merged_segments_are_not_looked_up_among_the_condemned() -> Iterator[None]:
    original = merge.merge

    def forgetful(log: CommitLog, *args: Any) -> int:
        commit = log.commit

        def without_condemned(plan: Any, **kwargs: Any) -> Any:
            return commit(lambda state, ms: plan(replace(state, condemned={}), ms), **kwargs)

        with patched((log, "commit", without_condemned)):
            return original(log, *args)

    from streamhouse_spark.write import segment_merging

    with patched(
        (segment_merging, "merge", forgetful),
        (staging, "STAGED_AGE_MS_MAX", INFINITE_MS),
        (commit_log, "require_stored", lambda *_: None),
    ):
        yield


@plant
def changes_by_key_are_committed_however_old() -> Iterator[None]:
    with patched((staged_changes, "is_kept", lambda *_: True), (commit_log, "require_stored", lambda *_: None)):
        yield


@plant
def merge_does_not_look_at_its_inputs_again() -> Iterator[None]:
    with patched((merge, "_still_live", lambda *_: True)):
        yield


@plant
def known_transactions_are_written_again() -> Iterator[None]:
    with patched((commit_log, "known_transaction", lambda *_: None)):
        yield


@plant
def only_the_newest_version_of_a_transaction_is_known() -> Iterator[None]:
    original = commit_log.known_transaction

    def known(state: TableState, transaction: Any) -> Any:
        entry = original(state, transaction)
        return entry if entry is None or entry.version == transaction.version else None

    with patched((commit_log, "known_transaction", known)):
        yield


@plant
def writers_that_expire_are_forgotten() -> Iterator[None]:
    with patched((writers, "with_past", lambda past, *_: past)):
        yield


@plant
def checkpoints_leave_out_expired_writers() -> Iterator[None]:
    with patched((writers, "past_to_bytes", lambda _: b"")):
        yield


@plant
def an_older_batch_of_a_stream_is_a_replay() -> Iterator[None]:
    original = transaction_outcome.stored_outcome

    def outcome(entry: Any, transaction: Any, table: str) -> Any:
        return original(entry, replace(transaction, batch=None), table)

    with patched((transaction_outcome, "stored_outcome", outcome)):
        yield


@plant
def tablets_are_found_by_uuid_and_offset_alone() -> Iterator[None]:
    with patched((tablet_history, "_is_of", lambda *_: True)):
        yield


@plant
def records_do_not_follow_an_attempt() -> Iterator[None]:
    with patched((Anchors, "require_followed_by", lambda *_: None), (standing, "stands", lambda *_: True)):
        yield


@plant
def positions_are_offsets_alone() -> Iterator[None]:
    with patched((tail, "require_position", lambda *_: None)):
        yield


@plant
def cleaning_does_not_wait() -> Iterator[None]:
    original = cleaning._delete_marked

    def delete(log: Any, storage: Any, state: Any, now_ms: int, _grace_ms: int, report: Any) -> None:
        original(log, storage, state, now_ms, 0, report)

    with patched((cleaning, "_delete_marked", delete)):
        yield


@plant
def records_go_without_waiting_for_the_grace() -> Iterator[None]:
    original = cleaning._delete_records

    def delete(log: Any, storage: Any, listed: Any, now_ms: int, _grace_ms: int, report: Any) -> None:
        original(log, storage, listed, now_ms, -INFINITE_MS, report)

    with patched((cleaning, "_delete_records", delete)):
        yield


@plant
def floor_passes_records_with_inline_rows() -> Iterator[None]:
    with patched((TableState, "oldest_inline_commit", lambda _: None)):
        yield


@plant
def orphans_are_condemned_while_young() -> Iterator[None]:
    original = cleaning._mark_orphans

    def condemn(log: Any, storage: Any, listed: Any, floor: int, now_ms: int, _grace_ms: int, report: Any) -> None:
        original(log, storage, listed, floor, now_ms, 0, report)

    with patched((cleaning, "_mark_orphans", condemn)):
        yield


@plant
def trimming_does_not_wait_for_the_lake() -> Iterator[None]:
    original = retention.plan_trim

    def plan(state: TableState, now_ms: int, ttl_ms: int, **_: Any) -> Mapping[int, int]:
        return original(replace(state, lake=None, lake_history=()), now_ms, ttl_ms, lake_enabled=False)

    with patched((retention, "plan_trim", plan)):
        yield


@plant
def trimming_takes_one_segment_too_many() -> Iterator[None]:
    original = retention.plan_trim

    def plan(state: TableState, now_ms: int, ttl_ms: int, **kwargs: Any) -> Mapping[int, int]:
        starts = dict(original(state, now_ms, ttl_ms, **kwargs))
        for bucket, start in starts.items():
            following = [s.end_offset for s in state.buckets[bucket].segments if s.base_offset == start]
            starts[bucket] = following[0] if following else start
        return starts

    with patched((retention, "plan_trim", plan)):
        yield


@plant
def union_begins_one_offset_behind_the_lake() -> Iterator[None]:
    original = pin.hot_range

    def hot_range(log: Any, lake_offset: int) -> OffsetRange:
        found = original(log, lake_offset)
        return OffsetRange(min(found.start + 1, found.end), found.end)

    with patched((pin, "hot_range", hot_range)):
        yield


@plant
def union_begins_one_offset_before_the_lakes_end() -> Iterator[None]:
    original = pin.hot_range

    def hot_range(log: Any, lake_offset: int) -> OffsetRange:
        found = original(log, lake_offset)
        return OffsetRange(max(log.start, found.start - 1), found.end)

    with patched((pin, "hot_range", hot_range)):
        yield


@plant
def lake_commits_are_not_fenced_by_offsets() -> Iterator[None]:
    with patched((iceberg_round, "require_offsets", lambda *_: None)):
        yield


@plant
def lake_snapshots_count_by_where_they_end() -> Iterator[None]:
    """One that ends at the truncation or behind it is taken for one that was made since."""

    def with_lake(before: TableState) -> TableState:
        firsts = before.first_offsets
        counted = (p for p in reversed(before.lake_history) if all(p.offsets.get(b, 0) >= o for b, o in firsts.items()))
        return replace(before, lake=next(counted, None))

    with patched((state_module, "with_lake", with_lake), (state_json, "with_lake", with_lake)):
        yield


@plant
def rounds_do_not_notice_a_truncation() -> Iterator[None]:
    with patched(
        (iceberg_round, "require_offsets", lambda *_: None),
        (tiering.TieringJob, "_require_lake_of", lambda *_: None),
    ):
        yield


@plant
def lake_keeps_its_files_when_the_table_is_truncated() -> Iterator[None]:
    with patched((iceberg_snapshot.SnapshotBuilder, "_emptied", lambda _, manifests: (manifests, []))):
        yield


@plant
def paimon_lake_keeps_its_files_when_the_table_is_truncated() -> Iterator[None]:
    with patched((paimon_commit._SnapshotBuilder, "_removed", lambda _: [])):
        yield


@plant
def paimon_compaction_forgets_the_offsets() -> Iterator[None]:
    """Its snapshot says that the lake holds nothing of the log."""

    def forget(place: Any, _: Any) -> dict[str, str]:
        return {OFFSETS_PROPERTY: offsets_text(place.spec.table_uuid, {})}

    with patched((paimon_maintain, "carried_offsets", forget)):
        yield


@plant
def paimon_expiry_deletes_the_newest_snapshots_first() -> Iterator[None]:
    original = SnapshotFolder.expire

    def expire(self: SnapshotFolder, snapshot_ids: Sequence[int], first_kept: int) -> None:
        original(self, snapshot_ids[::-1], first_kept)

    with patched((SnapshotFolder, "expire", expire)):
        yield


@plant
def paimon_expiry_takes_files_that_are_still_needed() -> Iterator[None]:
    with patched((Reach, "needed", lambda *_: set())):
        yield


@plant
def lake_is_not_emptied_without_new_rows() -> Iterator[None]:
    original = tiering.TieringJob._round

    def only_with_rows(self: Any, state: TableState, *args: Any) -> bool:
        return True if state.num_rows == 0 else original(self, state, *args)

    with patched((tiering.TieringJob, "_round", only_with_rows)):
        yield


@plant
def overwrite_takes_two_records() -> Iterator[None]:
    original = staging.commit_staged

    def commit(log: CommitLog, staged: staging.Staged, *, overwrite: bool = False, **kwargs: Any) -> Any:
        if overwrite:
            log.commit(lambda current, _: staging.truncating(current))
        return original(log, staged, **kwargs)

    from streamhouse_spark.write import append as table_staging

    with patched((table_staging, "commit_staged", commit)):
        yield


@plant
def truncation_is_planned_once() -> Iterator[None]:
    """Do not look at the ends of buckets again after a lost race."""
    original = staging.truncating

    def stale(current: TableState) -> Any:
        KNOWN_ENDS.setdefault(current.table_uuid, current.ends)
        return (replace(found, offsets=KNOWN_ENDS[current.table_uuid]) for found in original(current))

    KNOWN_ENDS.clear()
    with patched((staging, "truncating", stale)):
        yield


KNOWN_ENDS: dict[str, Any] = {}


@plant
def log_records_its_own_ends_as_the_lakes_offsets() -> Iterator[None]:
    original = tiering.TieringJob._record

    def record(self: Any, snapshot: Any) -> None:
        original(self, replace(snapshot, offsets=dict(self._log.refresh().ends)))

    with patched((tiering.TieringJob, "_record", record)):
        yield


@plant
def log_does_not_say_what_the_lake_holds_after_a_crash() -> Iterator[None]:
    """The next round begins where the log's record says, not where the lake says."""
    original = tiering_round.plan_tiering

    def plan(buckets: Any, _offsets: Any, targets: Any, **kwargs: Any) -> Any:
        recorded = LAST_RECORDED.get("offsets", {})
        return original(buckets, recorded, targets, **kwargs)

    def require_dense(*_: Any) -> None:
        return None

    refreshed = tiering.TieringJob._refreshed

    def remember(self: Any) -> TableState:
        state = refreshed(self)
        LAST_RECORDED["offsets"] = dict(state.lake.offsets) if state.lake else {}
        return state

    with patched(
        (tiering_round, "plan_tiering", plan),
        (tiering.TieringJob, "_refreshed", remember),
        (iceberg_round, "require_dense", require_dense),
    ):
        yield


LAST_RECORDED: dict[str, Any] = {}


@plant
def checkpoint_is_written_before_the_commit() -> Iterator[None]:
    original = CommitLog._put

    def put(self: CommitLog, record: Record, body: Any) -> Any:
        if self._state is not None:
            write_checkpoint(self._storage, fold(self._state, encode_record(record, record.attempt).stored))
        return original(self, record, body)

    with patched((CommitLog, "_put", put)):
        yield


@plant
def dropped_tables_take_rows() -> Iterator[None]:
    modules = (transaction_outcome, staging)
    with patched(*((module, "require_there", lambda *_: None) for module in modules)):
        yield


@plant
def snapshots_of_the_former_lake_are_recorded() -> Iterator[None]:
    original = tiering.record_snapshot

    class Here:
        """The lake that a job began with, as if it lay wherever the table's lake lies now."""

        def __init__(self, lake: Any, log: CommitLog) -> None:
            self.lake, self.log = lake, log

        @property
        def location(self) -> str:
            return self.log.state.lake_location

        def __getattr__(self, name: str) -> Any:
            return getattr(self.lake, name)

    def record(log: CommitLog, lake: Any, snapshot: Any) -> None:
        original(log, Here(lake, log), snapshot)

    with patched((tiering, "record_snapshot", record)):
        yield


@plant
def checkpoints_count_unread() -> Iterator[None]:
    def write(storage: Any, state: TableState, **floor: Any) -> None:
        with suppress(ObjectExistsError):
            storage.put_if_absent(checkpoint_key(state.table_uuid, state.version), checkpoint._encoded(state, **floor))
        storage.put(checkpoint_hint_key(state.table_uuid), str(state.version).encode())

    with patched((checkpoint, "write_checkpoint", write)):
        yield


@plant
def one_checkpoint_is_enough_for_a_floor() -> Iterator[None]:
    with patched((verified, "CHECKPOINTS_KEPT", 1), (cleaning, "CHECKPOINTS_KEPT", 1)):
        yield


@plant
def listing_ends_at_a_damaged_table() -> Iterator[None]:
    def listed(storage: Any, paths: Sequence[TablePath]) -> Any:
        return ((path, found) for path in paths if (found := names.resolve(storage, path)).uuid is not None)

    with patched((names, "named_tables", listed)):
        yield


@plant
def lake_rows_are_read_by_the_newest_columns() -> Iterator[None]:
    original = planner.scan_lake

    def scanned(table: Any, _: TableState, *args: Any) -> Any:
        return original(table, table.state, *args)

    with patched((planner, "scan_lake", scanned)):
        yield


@plant
def fields_inside_columns_are_matched_by_their_names() -> Iterator[None]:
    def by_name(_: Any, wanted: Any) -> Any:
        def fitted(array: pa.Array) -> pa.Array:
            if not pa.types.is_struct(wanted.type):
                return array
            return pa.StructArray.from_arrays([array.field(f.name) for f in wanted.type], fields=list(wanted.type))

        return fitted

    with patched((segment_scan, "fitting_of", by_name)):
        yield


@plant
def staged_rows_fit_whatever_changed_inside() -> Iterator[None]:
    with patched((staging, "still_means", lambda before, now: before.name == now.name)):
        yield


@plant
def keys_are_matched_by_their_places() -> Iterator[None]:
    padded = keyed_table.padded

    def in_their_order(rows: Any, schema: Any, **kwargs: Any) -> Any:
        is_whole = rows.num_columns == len(schema.names)
        return rows.rename_columns(list(schema.names)) if is_whole else padded(rows, schema, **kwargs)

    with patched((keyed_table, "padded", in_their_order)):
        yield


@plant
def expiry_does_not_look_for_new_tags() -> Iterator[None]:
    with patched((iceberg_maintain, "unchanged_refs", lambda *_: ())):
        yield


@plant
def times_of_lake_snapshots_are_believed() -> Iterator[None]:
    def as_they_stand(own: Sequence[int], _now_ms: int) -> list[int]:
        return [max(own[: place + 1]) for place in range(len(own))]

    with patched((iceberg_maintain, "aged_ms", as_they_stand)):
        yield


@plant
def a_footer_whose_checksum_is_damaged_has_none() -> Iterator[None]:
    with patched((footer_seal, "_FRONT", b"\0 never there"), (footer_seal, "_BACK", b"\0 never there")):
        yield


@plant
def page_indexes_are_not_checked() -> Iterator[None]:
    def checked(source: Any, location: str) -> bool:
        return footer_seal.checked_footer(source, location) is not None

    with patched((parquet_read, "is_whole", checked)):
        yield


@plant
def work_behind_a_commit_fails_the_call() -> Iterator[None]:
    @contextmanager
    def nothing_is_caught(*_: Any) -> Iterator[None]:
        yield

    with patched((checkpoint, "after_commit", nothing_is_caught)):
        yield


@plant
def a_shared_object_goes_with_the_first_of_its_segments() -> Iterator[None]:
    def keys(state: TableState, segments: Sequence[Segment]) -> tuple[str, ...]:
        return tuple({segment_key(state.table_uuid, s.uuid): None for s in segments if s.uuid is not None})

    with patched((state_module, "_object_keys", keys)):
        yield


@plant
def parts_are_read_from_where_the_object_begins() -> Iterator[None]:
    staged = shared_object.PartSink.begin_part
    with patched((shared_object.PartSink, "begin_part", lambda sink: 0 * staged(sink))):
        yield
