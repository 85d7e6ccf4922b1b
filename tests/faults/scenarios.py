"""Scenarios of the fault sweeps: each prepares a warehouse, works under faults, and goes on after them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from faults.checkers import PrefixReader, check_all, folded_extents
from faults.compactions import compacting_early
from faults.history import SCHEMA, Batch, History, Told, added_column
from faults.ledger import Ledger
from faults.sim import SimClock, SimIds
from interop.lake_cases import written_files
from kit.lake_rows import lake_rows
from kit.tables import tier
from streamhouse_spark import OffsetRange, Table, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import StreamBatch
from streamhouse_spark.core.warehouse_layout import WAREHOUSE_KEY, canonical_root
from streamhouse_spark.datasource.spark_versions import spark_schema_of
from streamhouse_spark.datasource.write.frame_schema import merge_columns
from streamhouse_spark.errors import (
    IdempotencyKeyReusedError,
    SchemaMismatchError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.lake.iceberg import compaction as iceberg_maintain
from streamhouse_spark.lake.parquet import clustering
from streamhouse_spark.lake.parquet.file_writer import parse_clustered_file_name
from streamhouse_spark.log import compaction as merge
from streamhouse_spark.log import record, staging
from streamhouse_spark.log.catalog.names import WarehouseMetadata, read_warehouse_file
from streamhouse_spark.log.gc import garbage_collection
from streamhouse_spark.log.segments import multi_bucket_writer
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

NAME = "sales.orders"
RENAMED = "sales.sold"
HOUR_MS = 3_600_000
LARGE = 70_000
NO_LAKE = {"table.datalake.enabled": "false"}
LAKE = {"table.datalake.enabled": "true"}
PAIMON = {**LAKE, "table.datalake.format": "paimon"}
MERGED = pa.schema([*SCHEMA, pa.field(added_column(0), pa.string())])


def make_at_home(store: Storage) -> None:
    """Let a copy be the same warehouse, at home where it lies; right only while it has no lake."""
    there = read_warehouse_file(store)
    if there is not None:
        store.put(WAREHOUSE_KEY, WarehouseMetadata(there.id, canonical_root(store.url)).to_bytes())


@dataclass
class Run:
    """One store, the processes that use it, and what their clients know."""

    clock: SimClock = field(default_factory=SimClock)
    directory: Path | None = None
    """Where the store lies, if it is a local directory; else it is in memory."""
    memory: Storage = field(init=False)
    """The store, past all faults."""
    name: str = NAME
    history: History = field(default_factory=History)
    reader: PrefixReader = field(default_factory=PrefixReader)
    ledger: Ledger | None = None
    batch: Batch | None = None
    """The batch that the work under faults is about."""
    table: Table | None = None
    """The handle of the process at work; None where that process died."""
    warehouse: Warehouse = field(init=False)
    processes: int = 0

    def __post_init__(self) -> None:
        self.memory = self.new_store(World(self.clock, SimIds(0)))
        self.start_process(self.memory)

    def new_store(self, world: World) -> Storage:
        if self.directory is None:
            return MemoryStorage(world)
        return LocalStorage(str(self.directory), fsync=False, world=world)

    def start_process(self, storage: Storage) -> Warehouse:
        self.processes += 1
        self.warehouse = Warehouse(storage.url, storage=storage, world=World(self.clock, SimIds(self.processes)))
        self.table = None
        return self.warehouse

    def copy(self) -> Run:
        """The same past again: equal bytes, equal time, and processes that make the same choices."""
        other = self.copied_store()
        other.history = self.history.copy()
        other.ledger = self.ledger.copy(other.memory) if self.ledger else None
        other.batch = self.batch
        other.processes = self.processes
        other.name = self.name
        return other

    def copied_store(self) -> Run:
        if self.directory is None:
            other = Run(SimClock(self.clock.now_ms()))
            other.memory._objects = dict(self.memory._objects)
        else:
            other = Run(SimClock(self.clock.now_ms()), Path(tempfile.mkdtemp(dir=self.directory.parent)))
            shutil.copytree(self.directory, other.directory, dirs_exist_ok=True)
            make_at_home(other.memory)
        return other

    def forget(self) -> None:
        """Remove the store, if it is a directory."""
        if self.directory is not None:
            shutil.rmtree(self.directory)

    def open(self) -> Table:
        if self.table is None:
            self.table = self.warehouse.table(self.name)
        return self.table

    def create(self, *, buckets: int = 2, properties: Mapping[str, str] | None = None, key: bool = True) -> Table:
        texts = {**NO_LAKE, **({"bucket.key": "id"} if key else {}), **(properties or {})}
        self.table = self.warehouse.create_table(NAME, SCHEMA, buckets=buckets, properties=texts)
        return self.table

    def append(
        self, num_rows: int = 3, row_chars: int = 4, transaction: Transaction | None = None, columns: Sequence[str] = ()
    ) -> Batch:
        batch = self.history.new_batch(num_rows, row_chars=row_chars, transaction=transaction, columns=columns)
        self.history.append(self.open(), batch)
        return batch

    def prepare_batch(
        self,
        num_rows: int = 3,
        row_chars: int = 4,
        transaction: Transaction | None = None,
        *,
        overwrites: bool = False,
    ) -> None:
        self.batch = self.history.new_batch(
            num_rows, row_chars=row_chars, transaction=transaction, overwrites=overwrites
        )

    def send_batch(self) -> None:
        """Send the prepared batch, again where that is allowed."""
        assert self.batch is not None
        self.history.append(self.open(), self.batch)

    def resend_batch(self) -> None:
        """Send again as a careful client does: the same rows when it may, else other rows."""
        assert self.batch is not None
        told = self.history.batches[self.batch.number].told
        if self.batch.transaction is not None or told in (Told.NOTHING, Told.REFUSED):
            self.send_batch()
        self.append()

    def tier(self) -> None:
        tier(self.open())

    def observe(self) -> Ledger:
        if self.ledger is None:
            self.ledger = Ledger(self.memory, self.open().uuid)
        self.ledger.observe()
        return self.ledger

    def observe_rival(self) -> None:
        """Let the ledger see what other processes did, before it is trimmed."""
        if self.ledger is not None:
            self.ledger.observe()

    def check_opening(self) -> None:
        """A process that starts now knows what the one that wrote knows."""
        live = self.open().refresh()
        assert self.start_process(self.memory).table(self.name).state == live

    def check(self) -> None:
        ledger = check_all(self.memory, self.name, self.history, self.ledger)
        if self.reader.seen:
            for extent in folded_extents(self.memory, ledger.table_uuid):
                if extent not in ledger.extents:
                    ledger.extents.append(extent)
            ledger.extents.sort(key=lambda extent: extent.order)
            self.reader.check(ledger)


class Scenario:
    """Subclasses say what to do; ``work`` is what meets the faults, ``recover`` is what a new process does then."""

    name = ""
    is_sequential = True
    """The work asks for one thing at a time, so that every run meets the same calls in the same order."""
    tested_methods: tuple[str, ...] = ()
    """Where not all calls are met in the tests, but all of them in the soak run: those that are."""

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Smaller limits of the product, where the real ones would need thousands of calls to be reached."""
        yield

    def setup(self, run: Run) -> None:
        run.create()
        run.append()

    def work(self, run: Run) -> None:
        raise NotImplementedError

    def recover(self, run: Run) -> None:
        run.append()

    def check(self, run: Run) -> None:
        run.check()


class CreateTable(Scenario):
    name = "create table"

    def setup(self, run: Run) -> None:
        pass

    def work(self, run: Run) -> None:
        run.create()

    def recover(self, run: Run) -> None:
        run.table = None
        with suppress(StreamhouseError):
            run.create()
        run.append()


class AppendInline(Scenario):
    name = "append inline"

    def setup(self, run: Run) -> None:
        super().setup(run)
        run.prepare_batch()

    def work(self, run: Run) -> None:
        run.send_batch()

    def recover(self, run: Run) -> None:
        run.resend_batch()


class AppendObjects(AppendInline):
    name = "append objects"

    def setup(self, run: Run) -> None:
        run.create()
        run.append()
        run.prepare_batch(num_rows=4, row_chars=LARGE)


@contextmanager
def shared_by_two() -> Iterator[None]:
    """Two segments share an object already."""
    with (
        mock.patch.object(multi_bucket_writer, "PARTS_MIN", 2),
        mock.patch.object(multi_bucket_writer, "PART_BYTES_MAX", 16 << 20),
    ):
        yield


class AppendShared(AppendObjects):
    """One object holds what both buckets get."""

    name = "append shared objects"

    @contextmanager
    def limits(self) -> Iterator[None]:
        with shared_by_two():
            yield

    def check(self, run: Run) -> None:
        super().check(run)
        shared = [s.uuid for s in run.open().refresh().live_segments() if s.part is not None]
        assert not shared or len(shared) > len(set(shared)), "nothing is shared"


class AppendStreams(AppendObjects):
    """The objects of both buckets are written at once."""

    name = "append streams"
    is_sequential = False

    @contextmanager
    def limits(self) -> Iterator[None]:
        few = mock.patch.object(staging, "FEW_BUCKETS", range(2, 9))
        with few, mock.patch.object(staging, "PARALLEL_BYTES_MIN", 1):
            yield


class AppendManifest(AppendInline):
    name = "append through a manifest"

    @contextmanager
    def limits(self) -> Iterator[None]:
        with mock.patch.object(record, "RECORD_BYTES_MAX", 200):
            yield


class AppendTransaction(AppendInline):
    """A streaming query whose driver dies and sends the same batch from its checkpoint."""

    name = "append with a transaction"

    def setup(self, run: Run) -> None:
        run.create()
        run.append(transaction=Transaction("app", 1, "query"))
        run.prepare_batch(transaction=Transaction("app", 2, "query"))

    def recover(self, run: Run) -> None:
        assert run.batch is not None
        newest = max(b.transaction.version for b in run.history if b.transaction)
        run.send_batch()
        run.append(transaction=Transaction("app", newest + 1, "query"))


class AppendRequest(AppendInline):
    """A client of the server retries a request with its idempotency key, after a crash between commit and answer."""

    name = "append with an idempotency key"

    def setup(self, run: Run) -> None:
        run.create()
        run.append(transaction=request_of(1))
        run.prepare_batch(transaction=request_of(2))

    def recover(self, run: Run) -> None:
        run.send_batch()
        request = request_of(len(run.history.batches) + 1)
        run.append(transaction=request)
        table = run.open()
        with pytest.raises(IdempotencyKeyReusedError):
            table.append([], transaction=replace(request, batch=StreamBatch("f" * 32)))


def request_of(number: int) -> Transaction:
    return Transaction.of_request(f"{number:032x}", f"{number:032x}")


class ExpireTransactions(Scenario):
    """A stream sleeps for longer than the table remembers it in full, and then sends the batch that it sent last."""

    name = "expire transactions"

    def setup(self, run: Run) -> None:
        run.create(properties={"table.transactions.ttl": "1h"})
        run.append(transaction=Transaction("other", 4))
        run.prepare_batch(transaction=Transaction("app", 1, "query"))
        run.send_batch()
        run.clock.advance(2 * HOUR_MS)
        run.append(transaction=Transaction("other", 5))

    def work(self, run: Run) -> None:
        run.open().maintain()

    def recover(self, run: Run) -> None:
        run.open().maintain()
        run.start_process(run.memory)
        newest = max(b.transaction.version for b in run.history if b.transaction and b.transaction.app_id == "app")
        run.send_batch()
        run.append(transaction=Transaction("app", newest + 1, "query"))


class AppendThatMerges(AppendInline):
    """The append that finds so many inline records that it has to merge them."""

    name = "append that merges"

    @contextmanager
    def limits(self) -> Iterator[None]:
        with mock.patch.object(merge, "INLINE_RECORDS_MAX", 4):
            yield

    def setup(self, run: Run) -> None:
        run.create()
        for _ in range(3):
            run.append()
        run.prepare_batch()


class MergeSmall(Scenario):
    name = "merge"

    @contextmanager
    def limits(self) -> Iterator[None]:
        with mock.patch.object(merge.plan_small_merge, "__defaults__", (2,)):
            yield

    def setup(self, run: Run) -> None:
        run.create()
        run.append(num_rows=4, row_chars=LARGE)
        run.append()
        run.append(num_rows=4, row_chars=LARGE)

    def work(self, run: Run) -> None:
        compact_small_segments(run.open())

    def recover(self, run: Run) -> None:
        compact_small_segments(run.open())
        run.append()


class MergeShared(MergeSmall):
    """Inputs and outputs of merging share objects."""

    name = "merge shared objects"

    @contextmanager
    def limits(self) -> Iterator[None]:
        with super().limits(), shared_by_two():
            yield

    def setup(self, run: Run) -> None:
        run.create()
        for _ in range(2):
            run.append(num_rows=8, row_chars=LARGE)


class Trim(Scenario):
    name = "trim"

    def setup(self, run: Run) -> None:
        run.create(properties={"table.log.ttl": "1h"})
        run.append()
        run.clock.advance(2 * HOUR_MS)
        run.append()
        run.observe()

    def work(self, run: Run) -> None:
        run.open().refresh()
        cleaning_log = run.open()
        cleaning_log.maintain()

    def recover(self, run: Run) -> None:
        run.open().maintain()
        run.append()


class Clean(Scenario):
    """Everything that cleaning does: condemned segments, orphans, manifests, a floor that is due and one to raise."""

    name = "clean"

    @contextmanager
    def limits(self) -> Iterator[None]:
        with (
            mock.patch.object(garbage_collection, "WATERMARK_STEP_MIN", 2),
            mock.patch.object(merge.plan_small_merge, "__defaults__", (2,)),
            mock.patch.object(record, "RECORD_BYTES_MAX", 2000),
        ):
            yield

    def setup(self, run: Run) -> None:
        table = run.create(properties={"table.log.ttl": "40h"})
        for _ in range(3):
            run.append()
        run.append(num_rows=4, row_chars=LARGE)
        run.append(num_rows=50)
        table.log_writer.stager().stage(Batch(900, 4, LARGE).rows())  # staged by a process that died: an orphan
        table.maintain()
        run.clock.advance(25 * HOUR_MS)
        run.append()
        run.append(num_rows=50)
        table.maintain()
        run.clock.advance(25 * HOUR_MS)
        run.append()
        run.observe()

    def work(self, run: Run) -> None:
        run.open().maintain()

    def recover(self, run: Run) -> None:
        run.observe_rival()
        run.open().maintain()
        run.append()
        run.observe_rival()
        run.clock.advance(25 * HOUR_MS)
        run.open().maintain()
        run.append()

    def check(self, run: Run) -> None:
        run.check()
        stored = {info.key for info in run.memory.list(f"tables/{run.open().uuid}/segments/")}
        state = run.open().refresh()
        known = {k for k in stored if any(s.uuid is not None and s.uuid in k for s in state.live_segments())}
        assert stored - known <= set(state.condemned), "an unneeded segment is neither deleted nor condemned"


class CleanShared(Clean):
    """Shared objects: some merged, some trimmed, and some that cleaning may delete."""

    name = "clean shared objects"

    @contextmanager
    def limits(self) -> Iterator[None]:
        with super().limits(), shared_by_two():
            yield

    def setup(self, run: Run) -> None:
        table = run.create(properties={"table.log.ttl": "40h"})
        for _ in range(2):
            run.append(num_rows=8, row_chars=LARGE)
        compact_small_segments(table)
        run.append(num_rows=8, row_chars=LARGE)
        run.clock.advance(25 * HOUR_MS)
        run.append(num_rows=8, row_chars=LARGE)
        table.maintain()
        run.clock.advance(25 * HOUR_MS)
        run.append()
        run.observe()


class DropAndCreate(Scenario):
    """A table is dropped and its name used again; the old table keeps its rows to itself."""

    name = "drop and create"

    def setup(self, run: Run) -> None:
        run.create()
        run.append()
        run.observe()
        run.prepare_batch()

    def work(self, run: Run) -> None:
        run.warehouse.drop_table(NAME)
        run.create()
        run.send_batch()

    def recover(self, run: Run) -> None:
        assert run.ledger is not None
        run.table = None
        with suppress(TableNotFoundError):
            if run.warehouse.table(NAME).uuid == run.ledger.table_uuid:
                run.warehouse.drop_table(NAME)
        if not run.warehouse.exists(NAME):
            run.create()
        run.resend_batch()

    def check(self, run: Run) -> None:
        assert run.ledger is not None
        old, run.ledger = run.ledger, None
        assert run.open().uuid != old.table_uuid
        written_before = run.history.batches.pop(1)
        check_state = old.observe()
        assert check_state.dropped
        assert sorted(old.all_ids()) == list(written_before.ids), "the dropped table lost rows or got some"
        run.check()


class ReadWhileWriting(Scenario):
    """A reader meets the faults; another process commits, merges and trims between its reads."""

    name = "read while writing"

    def setup(self, run: Run) -> None:
        run.create()
        run.append()
        run.append(num_rows=4, row_chars=LARGE)

    def work(self, run: Run) -> None:
        reader = run.open()
        writer = Warehouse(run.memory.url, storage=run.memory, world=World(run.clock, SimIds(99))).table(NAME)
        for action in (None, "append", "merge", "append"):
            if action == "append":
                run.history.append(writer, run.history.new_batch())
            elif action == "merge":
                compact_inline_rows(writer)
            run.reader.saw(reader.to_arrow(columns=["id"]).column("id").to_pylist())

    def recover(self, run: Run) -> None:
        run.reader.saw(run.open().to_arrow(columns=["id"]).column("id").to_pylist())
        run.append()


class Truncate(Scenario):
    name = "truncate"

    def setup(self, run: Run) -> None:
        run.create()
        run.append()
        run.append(num_rows=4, row_chars=LARGE)
        run.observe()

    def work(self, run: Run) -> None:
        run.history.truncate(run.open())

    def recover(self, run: Run) -> None:
        run.append()
        run.history.truncate(run.open())
        run.append()


class Overwrite(AppendInline):
    name = "overwrite"

    def setup(self, run: Run) -> None:
        super().setup(run)
        run.prepare_batch(num_rows=4, row_chars=LARGE, overwrites=True)
        run.observe()

    def check(self, run: Run) -> None:
        super().check(run)
        extents = folded_extents(run.memory, run.open().uuid)
        assert all(e.starts != e.ends for e in extents[1:]), f"rows were gone before the new ones were there: {extents}"


class OverwriteTransaction(AppendTransaction):
    """A job that overwrites, whose driver dies and runs it again."""

    name = "overwrite with a transaction"

    def setup(self, run: Run) -> None:
        super().setup(run)
        run.prepare_batch(transaction=Transaction("app", 2, "query"), overwrites=True)
        run.observe()


class ReadWhileTruncating(ReadWhileWriting):
    """A reader meets the faults; another process truncates and overwrites between its reads."""

    name = "read while truncating"

    def setup(self, run: Run) -> None:
        super().setup(run)
        run.observe()

    def work(self, run: Run) -> None:
        reader = run.open()
        writer = Warehouse(run.memory.url, storage=run.memory, world=World(run.clock, SimIds(99))).table(NAME)
        for action in (None, "truncate", "append", "overwrite"):
            if action == "truncate":
                run.history.truncate(writer)
            elif action is not None:
                run.history.append(writer, run.history.new_batch(overwrites=action == "overwrite"))
            run.reader.saw(reader.to_arrow(columns=["id"]).column("id").to_pylist())


class RenameTable(Scenario):
    """The table gets another name, and keeps its rows."""

    name = "rename"

    def setup(self, run: Run) -> None:
        super().setup(run)
        run.observe()
        run.prepare_batch()

    def work(self, run: Run) -> None:
        table = run.open()
        run.warehouse.rename_table(NAME, RENAMED)
        run.name = RENAMED
        run.history.append(table, run.batch)

    def recover(self, run: Run) -> None:
        run.table = None
        names = [name for name in (NAME, RENAMED) if run.warehouse.exists(name)]
        assert len(names) == 1, f"{names} work, not exactly one name"
        run.name = RENAMED
        if names == [NAME]:
            run.warehouse.rename_table(NAME, RENAMED)
        run.resend_batch()

    def check(self, run: Run) -> None:
        run.check()
        assert run.ledger is not None
        fresh = run.start_process(run.memory)
        assert fresh.table(RENAMED).uuid == run.ledger.table_uuid
        assert fresh.tables() == [RENAMED]
        other = fresh.create_table(NAME, SCHEMA, properties=NO_LAKE)
        assert fresh.tables() == sorted([NAME, RENAMED])
        assert fresh.table(RENAMED).uuid != other.uuid == fresh.table(NAME).uuid


class TierFirst(Scenario):
    """The round that makes the lake table."""

    name = "tier the first rows"
    lake: Mapping[str, str] = LAKE
    is_sequential = False  # files of the lake are looked at by several threads

    def setup(self, run: Run) -> None:
        run.create(properties=self.lake)
        run.append()

    def work(self, run: Run) -> None:
        run.tier()

    def recover(self, run: Run) -> None:
        run.append()
        run.tier()

    def check(self, run: Run) -> None:
        run.check()
        state = run.open().refresh()
        assert state.lake is not None
        assert state.ends == {b: state.lake_offset(b) for b in state.buckets}, "tiering did not catch up"


class TierAndTrim(TierFirst):
    """A later round, after which the log is trimmed to what the lake holds."""

    name = "tier and trim"
    is_sequential = False

    def setup(self, run: Run) -> None:
        run.create(properties={**self.lake, "table.log.ttl": "1h"})
        run.append()
        run.tier()
        run.append()
        run.clock.advance(2 * HOUR_MS)
        run.observe()

    def work(self, run: Run) -> None:
        run.tier()
        run.open().maintain()

    def recover(self, run: Run) -> None:
        run.append()
        run.tier()
        run.open().maintain()


class TierTruncated(TierFirst):
    """A table is emptied, and then its lake."""

    name = "truncate and tier"

    def setup(self, run: Run) -> None:
        run.create(properties={**self.lake, "table.log.ttl": "1h"})
        run.append()
        run.tier()
        run.append()
        run.observe()

    def work(self, run: Run) -> None:
        run.history.truncate(run.open())
        run.tier()

    def recover(self, run: Run) -> None:
        run.tier()
        run.append()
        run.clock.advance(2 * HOUR_MS)
        run.observe_rival()
        run.open().maintain()
        run.tier()

    def check(self, run: Run) -> None:
        super().check(run)
        table = run.open()
        in_lake, in_table = (
            sorted(read.column("id").to_pylist()) for read in (table.lake.to_arrow(), table.to_arrow())
        )
        assert in_lake == in_table, "the lake holds other rows than the table"


class TierOverwritten(TierTruncated):
    """Rows take the place of others, and then in the lake, where files were compacted."""

    name = "overwrite and tier"
    tested_methods = ("put_if_absent",)

    @contextmanager
    def limits(self) -> Iterator[None]:
        with mock.patch.object(iceberg_maintain, "COMPACT_FILES_MIN", 2):
            yield

    def setup(self, run: Run) -> None:
        super().setup(run)
        run.tier()
        run.prepare_batch(overwrites=True)

    def work(self, run: Run) -> None:
        run.open().open_lake().compact()
        run.send_batch()
        run.append()
        run.tier()
        run.open().maintain()


class TierAddedColumn(TierFirst):
    """A column is added, rows with it are written, and the lake gets both."""

    name = "add a column and tier"

    def setup(self, run: Run) -> None:
        run.create(properties=self.lake)
        run.append()
        run.tier()
        run.append()
        run.observe()

    def work(self, run: Run) -> None:
        run.open().add_columns(f"{added_column(0)} string")
        run.append(columns=[added_column(0)])
        run.tier()

    def recover(self, run: Run) -> None:
        with suppress(SchemaMismatchError):
            run.open().add_columns(f"{added_column(0)} string")
        run.append(columns=[added_column(0)])
        run.append()
        run.tier()

    def check(self, run: Run) -> None:
        super().check(run)
        assert run.open().lake.to_arrow().column_names == ["id", "text", added_column(0)]


class TierRenamedAndDropped(TierAddedColumn):
    """Columns, and fields inside one, are renamed, dropped, widened and added anew in one step; the lake follows."""

    name = "rename and drop columns and tier"

    def setup(self, run: Run) -> None:
        run.create(properties=self.lake)
        run.open().add_columns("c0 string, c1 int, c2 string, c6 struct<a:int,b:string>")
        run.append(columns=["c0", "c1", "c2"])
        run.tier()
        run.append(columns=["c0", "c1", "c2"])
        run.observe()

    def work(self, run: Run) -> None:
        self.alter(run)
        run.append(columns=["c0_1", "c1"])
        run.tier()

    def alter(self, run: Run) -> None:
        run.open().alter(
            rename_columns={"c0": "c0_1", "c6.a": "n"},
            drop_columns=["c2", "c6.b"],
            widen_columns={"c1": "bigint", "c6.a": "bigint"},
            add_columns="c4 string, c6.b date",
        )

    def recover(self, run: Run) -> None:
        with suppress(SchemaMismatchError):
            self.alter(run)
        run.append(columns=["c4", "c0_1", "c1"])
        run.tier()

    def check(self, run: Run) -> None:
        TierFirst.check(self, run)
        lake = run.open().lake.to_arrow()
        assert lake.column_names == ["id", "text", "c0_1", "c1", "c6", "c4"]
        assert lake.schema.field("c1").type == pa.int64()
        assert lake.schema.field("c6").type == pa.struct([("n", pa.int64()), ("b", pa.date32())])


class MergeColumns(Scenario):
    """A write adds the columns that the table lacks, whoever added them before."""

    name = "add missing columns"

    def work(self, run: Run) -> None:
        merge_columns(run.open(), spark_schema_of(MERGED), None)
        run.append(columns=[added_column(0)])

    def recover(self, run: Run) -> None:
        self.work(run)

    def check(self, run: Run) -> None:
        super().check(run)
        state = run.open().refresh()
        assert (state.schema.names, len(state.schemas)) == (tuple(MERGED.names), 2)


class TierFirstOnPaimon(TierFirst):
    name = "tier the first rows into Paimon"
    lake = PAIMON


class TierAndTrimOnPaimon(TierAndTrim):
    """The scenario `TierAndTrim` on Paimon; before the log is trimmed, an empty snapshot settles the lake's newest."""

    name = "tier and trim with Paimon"
    lake = PAIMON
    tested_methods = ("put_if_absent",)


class TierTruncatedOnPaimon(TierTruncated):
    name = "truncate and tier in Paimon"
    lake = PAIMON
    tested_methods = ("put_if_absent", "put")


class TierAddedColumnOnPaimon(TierAddedColumn):
    name = "add a column and tier in Paimon"
    lake = PAIMON
    tested_methods = ("put_if_absent",)


class TierRenamedAndDroppedOnPaimon(TierRenamedAndDropped):
    name = "rename and drop columns and tier in Paimon"
    lake = PAIMON
    tested_methods = ("put_if_absent",)


class CompactLake(TierFirst):
    """Small files of the lake become one, old snapshots expire, and what nobody needs is deleted."""

    name = "compact the lake"
    tested_methods = ("put_if_absent", "delete")

    @contextmanager
    def limits(self) -> Iterator[None]:
        with compacting_early():
            yield

    def setup(self, run: Run) -> None:
        run.create(properties=self.lake, buckets=1)
        for _ in range(3):
            run.append()
            run.tier()
            run.clock.advance(13 * HOUR_MS)
        run.observe()

    def work(self, run: Run) -> None:
        lake = run.open().open_lake()
        assert lake.compact().files_removed
        lake.expire(keep_last=1, keep_ms=0)
        lake.remove_orphans()
        if (files := lake.capabilities.file_rewrite) is not None:
            files.prune_metadata()

    def recover(self, run: Run) -> None:
        run.append()
        run.tier()
        lake = run.open().open_lake()
        lake.compact()
        lake.expire(keep_last=1, keep_ms=0)
        run.clock.advance(25 * HOUR_MS)
        lake.remove_orphans()
        run.tier()

    def check(self, run: Run) -> None:
        super().check(run)
        lake = run.open().open_lake()
        for snapshot_id in lake.metadata_table("snapshots")["snapshot_id"].to_pylist():
            lake_rows(lake, lake.plan_read(snapshot_id=snapshot_id))
        in_lake = sorted(lake_rows(lake, lake.plan_read()).column("id").to_pylist())
        assert in_lake == sorted(run.open().to_arrow().column("id").to_pylist()), "the lake holds other rows"


class OptimizeLake(CompactLake):
    """Rows of the lake are laid out by a column, in several files, and again after a round."""

    name = "optimize the lake"
    tested_methods = ("put_if_absent", "create.open", "create.write", "create.close")

    @contextmanager
    def limits(self) -> Iterator[None]:
        with mock.patch.object(clustering, "CLUSTERED_FILE_BYTES", 500):
            yield

    def work(self, run: Run) -> None:
        assert run.open().lake.optimize("id").files_added > 1

    def recover(self, run: Run) -> None:
        run.append()
        run.tier()
        run.open().lake.optimize("id")
        assert all(parse_clustered_file_name(path) for path in run.open().lake.files()["file_path"].to_pylist())
        super().recover(run)


class CompactPaimon(CompactLake):
    """The scenario `CompactLake` on Paimon, and every snapshot that can be seen is whole whatever happens."""

    name = "compact Paimon"
    lake = PAIMON

    def setup(self, run: Run) -> None:
        super().setup(run)
        lake, (row, *_) = run.open().open_lake(), run.open().to_arrow().slice(0, 1).to_batches()
        written_files(lake, lake.write_context(), 0, OffsetRange(9, 10), [(9, row)])  # of a round that was lost
        run.clock.advance(25 * HOUR_MS)

    def recover(self, run: Run) -> None:
        from streamhouse_spark.lake.paimon.snapshots import SnapshotManager

        found = SnapshotManager(run.memory, run.open().state.lake_location).ids()
        assert found == list(range(found[0], found[-1] + 1)), "there is a gap between the snapshots"
        super().recover(run)


class RetierLake(TierFirst):
    """A lake is rebuilt from the log: at every moment reads have all rows, and afterwards tiering catches up."""

    name = "build the lake anew"

    def setup(self, run: Run) -> None:
        super().setup(run)
        run.tier()
        run.append()

    def work(self, run: Run) -> None:
        run.open().retier()
        run.tier()

    def recover(self, run: Run) -> None:
        run.open().retier()
        run.check()
        super().recover(run)


class RetierLakeOnPaimon(RetierLake):
    name = "build the Paimon lake anew"
    lake = PAIMON
    tested_methods = ("put_if_absent",)


class Undrop(Scenario):
    """A dropped table comes back, whole and alone under its name, although cleaning passes by before the grace."""

    name = "drop and bring back"

    def setup(self, run: Run) -> None:
        run.create(properties=LAKE, buckets=1)
        run.append()
        run.tier()
        run.append()

    def work(self, run: Run) -> None:
        run.warehouse.drop_table(NAME)
        run.warehouse.clean_dropped()
        run.warehouse.undrop_table(NAME)

    def recover(self, run: Run) -> None:
        run.table = None
        if not run.warehouse.exists(NAME):
            run.warehouse.undrop_table(NAME)
        assert run.warehouse.tables() == [NAME]
        assert run.warehouse.dropped_tables() == []
        run.append()
        run.tier()


class CleanDropped(Scenario):
    """The files of a dropped table go, in two steps a grace apart; the table that has its name now stays whole."""

    name = "clean dropped tables"

    def setup(self, run: Run) -> None:
        run.create(properties=LAKE, buckets=1)
        dropped = run.append()
        run.tier()
        run.warehouse.drop_table(NAME)
        del run.history.batches[dropped.number]
        run.clock.advance(25 * HOUR_MS)
        run.create(properties=LAKE, buckets=1)
        run.append()
        run.tier()
        run.append()
        run.warehouse.clean_dropped()
        run.clock.advance(25 * HOUR_MS)

    def work(self, run: Run) -> None:
        run.warehouse.clean_dropped()

    def recover(self, run: Run) -> None:
        run.warehouse.clean_dropped()
        run.append()
        run.tier()

    def check(self, run: Run) -> None:
        run.check()
        kept = {info.key.split("/")[1] for info in run.memory.list("tables/") if "/floors/" not in info.key}
        assert kept == {run.open().uuid}, "the dropped table still has files"


class ReadWhileTiering(ReadWhileWriting):
    """A reader meets the faults; another process appends, tiers and trims between its reads."""

    name = "read while tiering"
    is_sequential = False

    def setup(self, run: Run) -> None:
        run.create(properties={**LAKE, "table.log.ttl": "1h"})
        run.append()
        run.tier()
        run.append()
        run.observe()

    def work(self, run: Run) -> None:
        reader = run.open()
        other = Warehouse(run.memory.url, storage=run.memory, world=World(run.clock, SimIds(99))).table(NAME)
        for action in (None, "append", "tier", "trim"):
            if action == "append":
                run.history.append(other, run.history.new_batch())
            elif action == "tier":
                tier(other)
            elif action == "trim":
                run.clock.advance(2 * HOUR_MS)
                run.observe_rival()
                other.maintain()
            run.reader.saw(reader.to_arrow(columns=["id"]).column("id").to_pylist())


SCENARIOS: tuple[Callable[[], Scenario], ...] = (
    CreateTable,
    AppendInline,
    AppendObjects,
    AppendShared,
    AppendStreams,
    AppendManifest,
    AppendTransaction,
    AppendRequest,
    ExpireTransactions,
    AppendThatMerges,
    MergeSmall,
    MergeShared,
    Trim,
    Clean,
    CleanShared,
    DropAndCreate,
    ReadWhileWriting,
    Truncate,
    Overwrite,
    OverwriteTransaction,
    ReadWhileTruncating,
    RenameTable,
    MergeColumns,
    TierFirst,
    TierAndTrim,
    TierRenamedAndDropped,
    TierTruncated,
    TierOverwritten,
    TierFirstOnPaimon,
    TierAndTrimOnPaimon,
    TierTruncatedOnPaimon,
    TierAddedColumnOnPaimon,
    TierRenamedAndDroppedOnPaimon,
    CompactLake,
    OptimizeLake,
    CompactPaimon,
    RetierLake,
    RetierLakeOnPaimon,
    CleanDropped,
    Undrop,
    ReadWhileTiering,
)


def prepared(scenario: Scenario, directory: Path | None = None) -> Run:
    """A run that has the scenario's past. Every copy of it meets the same calls until its first fault."""
    run = Run(directory=directory)
    with scenario.limits():
        scenario.setup(run)
    return run


def scenario_parameters() -> list[object]:
    return [pytest.param(s, id=s.name.replace(" ", "_")) for s in SCENARIOS]
