"""Invariants of a table, whatever happened to it: one function each.

Each takes the storage behind all faults, and what was attempted or seen; each raises `AssertionError`, or the typed
error of the product's own checks. `check_all` runs them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa

from faults.history import BATCH_IDS, History, Told, added_value, number_of, text_of
from faults.ledger import Extent, Ledger, read_ids
from faults.sim import sim_world
from streamhouse_spark import SnapshotExpiredError, Table, Warehouse
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.log.checkpoint import list_checkpoints, read_checkpoint, read_latest_checkpoint
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.low_watermark import read_low_watermark
from streamhouse_spark.log.object_existence import list_referenced_keys
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segments.reader import verify_segment
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.storage.base import Storage


def check_all(storage: Storage, name: str, history: History, ledger: Ledger | None = None) -> Ledger:
    """All invariants of a table that exists, by processes that were started just now. Returns what is stored."""
    table = Warehouse(storage.url, storage=storage, world=sim_world(10**6 + 1)).table(name)
    ledger = ledger or Ledger(storage, table.uuid)
    ledger.observe()
    check_acknowledged_once(history, ledger)
    check_attempted_at_most_once(history, ledger)
    check_truncations(history, table.state)
    check_offsets_dense(storage, ledger)
    check_files(storage, table.state)
    check_fresh_equals_live(storage, ledger)
    check_checkpoints(storage, table.uuid)
    check_union(table, ledger)
    check_added_columns(table, history)
    if table.properties.datalake_enabled:
        check_lake(table, ledger)
    check_retries_are_no_ops(table, history, ledger)
    return ledger


def check_acknowledged_once(history: History, ledger: Ledger) -> None:
    """Rows whose client was given offsets are stored once, at those offsets."""
    counts = Counter(ledger.all_ids())
    for batch in history:
        if batch.told is not Told.ACKNOWLEDGED:
            continue
        wrong = {i: counts[i] for i in batch.ids if counts[i] != 1}
        assert not wrong, f"acknowledged batch {batch.number}: rows are stored {wrong} times"
        assert batch.offsets is not None
        there = [i for b, r in batch.offsets.items() for i in ledger.ids[b][r.start : r.end]]
        assert sorted(there) == list(batch.ids), f"batch {batch.number} was given {batch.offsets}, which hold {there}"


def check_attempted_at_most_once(history: History, ledger: Ledger) -> None:
    """Any other batch is stored once as a whole or not at all; one that was refused is not stored; nothing else is."""
    counts = Counter(ledger.all_ids())
    known: set[int] = set()
    for batch in history:
        known.update(batch.ids)
        times = {counts[i] for i in batch.ids}
        allowed = {0} if batch.told in (Told.NOTHING, Told.REFUSED) else {0, 1}
        if batch.told is not Told.ACKNOWLEDGED:
            assert len(times) <= 1, f"batch {batch.number} is stored in part: {dict(counts)}"
            assert times <= allowed, f"{batch.told.value} batch {batch.number} is stored {times} times"
    assert set(counts) <= known, f"rows that nobody wrote: {set(counts) - known}"


def check_truncations(history: History, state: TableState) -> None:
    """Rows from before a truncation that its client was told of are gone, rows that no truncation met are there."""
    for batch in history:
        if batch.told is not Told.ACKNOWLEDGED:
            continue
        assert batch.offsets is not None
        met = history.truncations[batch.truncations_before :]
        if Told.ACKNOWLEDGED in met:
            left = {b: r for b, r in batch.offsets.items() if r.end > state.first_offset(b)}
            assert not left, f"batch {batch.number} was truncated, and is there: {left}"
        elif Told.ATTEMPTED not in met and not batch.is_amid_truncation:
            gone = {b: r for b, r in batch.offsets.items() if r.start < state.first_offset(b)}
            assert not gone, f"batch {batch.number} was not truncated, and is gone: {gone}"


def check_offsets_dense(storage: Storage, ledger: Ledger) -> None:
    """The hot log of each bucket holds each offset from its start to its end once, with the row it always had."""
    state = ledger.observe()
    for bucket, log in state.buckets.items():
        expected = log.segments[0].base_offset if log.segments else log.end
        assert expected <= log.start <= log.end, f"bucket {bucket}: {log.offsets}, segments from {expected}"
        for segment in log.segments:
            assert segment.base_offset == expected, f"bucket {bucket}: {expected} expected, {segment} found"
            assert segment.num_rows > 0, segment
            expected = segment.end_offset
        assert expected == log.end, f"bucket {bucket} ends at {log.end}, its segments at {expected}"
        found = read_ids(storage, state, bucket, log.offsets)
        assert found == ledger.ids[bucket][log.start :], f"bucket {bucket}: rows changed their offsets"


def check_files(storage: Storage, state: TableState) -> None:
    """Every file that a reader of this state may open exists, with the length and the checksums that it had."""
    for key in sorted(list_referenced_keys(state)):
        try:
            storage.size_bytes(key)
        except ObjectNotFoundError:
            raise AssertionError(f"{key} is named by {state.name} at commit {state.version}, and missing") from None
    ends: dict[str, int] = {}
    for segment in sorted(state.live_segments(), key=lambda s: s.part or 0):
        verify_segment(storage, state.table_uuid, segment, state.written_schema(segment.schema_id).arrow)
        if segment.uuid is not None:
            size_bytes = storage.size_bytes(segment_key(state.table_uuid, segment.uuid))
            is_whole = segment.part is None and segment.uuid not in ends
            assert not is_whole or size_bytes == segment.size_bytes, f"{segment}: {size_bytes} bytes"
            start = segment.part or 0
            assert ends.get(segment.uuid, 0) <= start, f"{segment} begins within another"
            ends[segment.uuid] = start + segment.size_bytes
            assert ends[segment.uuid] <= size_bytes, f"{segment}: {size_bytes} bytes"


def check_fresh_equals_live(storage: Storage, ledger: Ledger) -> None:
    """A process that opens the table now knows what a process knows that followed it from its first commit."""
    fresh = CommitLog(storage, ledger.table_uuid, sim_world(10**6 + 2)).refresh()
    live = ledger.observe()
    assert fresh == live, f"opened now: {fresh}\nfollowed: {live}"


def check_checkpoints(storage: Storage, table_uuid: str) -> None:
    """Every checkpoint says what the records before it say, as far as these are kept."""
    state: TableState | None = None
    checkpoints = list_checkpoints(storage, table_uuid)
    oldest = first_record(storage, table_uuid)
    if oldest > 1:
        based = [n for n in checkpoints if n >= oldest - 1]
        assert based, f"records begin at {oldest}, and no checkpoint at or above {oldest - 1} is left of {checkpoints}"
        state = read_checkpoint(storage, table_uuid, based[0])
    folded = {} if state is None else {state.version: state}
    while True:
        try:
            record, _ = read_record(storage, table_uuid, state.version + 1 if state else 1)
        except ObjectNotFoundError:
            break
        state = fold(state, record)
        folded[state.version] = state
    for number in checkpoints:
        if number in folded:
            stored = read_checkpoint(storage, table_uuid, number)
            assert stored == folded[number], f"checkpoint {number}: {stored}\nthe records: {folded[number]}"
        assert not folded or number <= max(folded), f"checkpoint {number} is ahead of the last record {max(folded)}"
    newest = read_latest_checkpoint(storage, table_uuid)
    assert newest is None or newest.version <= max(folded, default=0)


def first_record(storage: Storage, table_uuid: str) -> int:
    """The lowest record number that counts: the newest floor, or 1."""
    floor, index = 1, 1
    while (found := read_low_watermark(storage, table_uuid, index)) is not None:
        assert found.number >= floor, f"floor {index} went back from {floor} to {found.number}"
        floor, index = found.number, index + 1
    return floor


def check_union(table: Table, ledger: Ledger) -> None:
    """The union read holds every row that was not trimmed away, once, with its own text."""
    rows = table.to_arrow().to_pydict()
    state = table.state
    lake = {b: state.lake_offset(b) for b in state.buckets}
    expected: list[int] = []
    for bucket, ids in ledger.ids.items():
        start = state.first_offset(bucket) if state.lake is not None else state.buckets[bucket].start
        assert state.buckets[bucket].start <= max(lake[bucket], start), f"bucket {bucket} was trimmed beyond the lake"
        expected.extend(ids[start:])
    assert Counter(rows["id"]) == Counter(expected), "the union read is not the table"
    for row_id, text in zip(rows["id"], rows["text"], strict=True):
        assert text == text_of(row_id, len(text)), f"row {row_id} has the text {text!r}"


def check_added_columns(table: Table, history: History) -> None:
    """Rows have the values of added columns that they were written with, and null in those that came later."""
    reads = {"union": table.to_arrow()}
    if table.properties.datalake_enabled:
        reads["lake"] = table.lake.to_arrow()
    for what, rows in reads.items():
        check_values(rows, history, what)


def check_values(rows: pa.Table, history: History, what: str) -> None:
    """Each added column, whatever it is called now, has the values that its rows were written with, else null."""
    for row in rows.drop_columns(["text"]).to_pylist():
        written = {number_of(name) for name in history.batches[row["id"] // BATCH_IDS].columns}
        for name, found in row.items():
            if name == "id":
                continue
            number = number_of(name)
            expected = added_value(row["id"], number) if number in written else None
            assert found == expected, f"{what}: {name} of row {row['id']} is {found!r}, expected {expected!r}"


def check_lake(table: Table, ledger: Ledger) -> None:
    """Each lake snapshot holds exactly the rows below its offsets, and with the log beyond them the whole table.

    The log's record may lag behind the lake by a crash; it is never ahead of it.
    """
    state = ledger.observe()
    newest = table.lake.newest()
    history = state.lake_history
    if newest is None:
        assert not history, f"the log names lake snapshots {history}, the lake has none"
        return
    for bucket in state.buckets:
        held, known = newest.offsets.get(bucket, 0), state.lake_offset(bucket)
        first, begins = state.first_offset(bucket), newest.starts.get(bucket, 0)
        assert begins <= first, f"bucket {bucket}: the lake begins at {begins}, the table at {first}"
        if state.lake is None:
            assert held <= first or begins == first, f"bucket {bucket}: the lake holds {held}, truncated at {first}"
        else:
            assert begins == first, f"bucket {bucket}: the lake went back to before the truncation"
            assert known <= held, f"bucket {bucket}: the log says that the lake holds {known}, it holds {held}"
        assert held <= len(ledger.ids[bucket]), f"bucket {bucket}: the lake holds {held}, the log ends before"
        assert state.buckets[bucket].start <= known, f"bucket {bucket} was trimmed beyond what was recorded"
    extents = {p.snapshot_id: (p.starts, p.offsets) for p in history}
    for snapshot_id, (starts, offsets) in {newest.id: (newest.starts, newest.offsets), **extents}.items():
        try:
            check_snapshot(table, ledger, snapshot_id, starts, offsets)
        except SnapshotExpiredError:
            assert snapshot_id != newest.id, "the lake's newest snapshot was expired"


def check_snapshot(
    table: Table, ledger: Ledger, snapshot_id: int, starts: Mapping[int, int], offsets: Mapping[int, int]
) -> None:
    rows = table.lake.to_arrow(as_of_snapshot=snapshot_id).to_pydict()
    expected = [i for b, ids in ledger.ids.items() for i in ids[starts.get(b, 0) : offsets.get(b, 0)]]
    assert Counter(rows["id"]) == Counter(expected), f"lake snapshot {snapshot_id} does not hold what {offsets} says"
    for row_id, text in zip(rows["id"], rows["text"], strict=True):
        assert text == text_of(row_id, len(text)), f"row {row_id} has the text {text!r} in the lake"


def check_retries_are_no_ops(table: Table, history: History, ledger: Ledger) -> None:
    """Sending acknowledged transactions again adds nothing and says the same offsets."""
    newest = {b.transaction.app_id: b for b in history if b.transaction and b.told is Told.ACKNOWLEDGED}
    before = ledger.observe()
    for batch in newest.values():
        stored = before.transactions.get(batch.transaction.app_id)
        key = batch.transaction.request_key
        is_stored = key is not None or (stored is not None and stored.version == batch.transaction.version)
        is_known = set(batch.columns) <= set(before.schema.names)  # else they were renamed or dropped since
        if is_stored and is_known:
            again = table.append(batch.rows(), transaction=batch.transaction)
            assert dict(again) == dict(batch.offsets or {}), f"{again} instead of {batch.offsets}"
    after = ledger.observe()  # of another version where the append also merged inline rows
    told_before, told_after = ((s.ends, s.transactions, s.request_keys) for s in (before, after))
    assert told_after == told_before, "a retry was committed"


class PrefixReader:
    """Checks what a reader saw against what is stored: whole commits, from the first or a truncation on, never back."""

    def __init__(self) -> None:
        self.seen: list[frozenset[int]] = []

    def saw(self, ids: Iterable[int]) -> None:
        ids = list(ids)
        assert len(set(ids)) == len(ids), f"a read returned rows twice: {sorted(ids)}"
        self.seen.append(frozenset(ids))

    def check(self, ledger: Ledger, starts: Mapping[int, int] | None = None) -> None:
        """``starts`` are offsets below which rows may be missing because they were trimmed without a lake."""
        ledger.observe()
        last = Extent(dict.fromkeys(ledger.ids, 0), dict.fromkeys(ledger.ids, 0))
        for seen in self.seen:
            allowed = [e for e in ledger.extents if e.follows(last)]
            match = next((e for e in allowed if seen == _prefix(ledger, e, starts or {})), None)
            assert match is not None, f"{sorted(seen)} is no prefix at or above {last}; there were {ledger.extents}"
            last = match


def _prefix(ledger: Ledger, extent: Extent, starts: Mapping[int, int]) -> frozenset[int]:
    begins = {b: max(extent.starts[b], starts.get(b, 0)) for b in extent.starts}
    return frozenset(i for b, ids in ledger.ids.items() for i in ids[begins[b] : extent.ends[b]])


def folded_extents(storage: Storage, table_uuid: str) -> list[Extent]:
    """Return the extent of the table after each record that is kept, from the records alone."""
    state: TableState | None = None
    extents: list[Extent] = []
    while True:
        try:
            record, _ = read_record(storage, table_uuid, state.version + 1 if state else 1)
        except ObjectNotFoundError:
            return extents
        state = fold(state, record)
        if not extents or extents[-1] != Extent.of(state):
            extents.append(Extent.of(state))
