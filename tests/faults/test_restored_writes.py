"""A warehouse that is put back to an older copy before any storage call of a write: what it planned is not mixed in.

A write ends with an error and nothing of it is there, or is right on what was put back. Nobody can look in the moment
of the commit itself: a restore there may leave a log that is told as damage, and never other rows.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, FaultyStorage, Op
from faults.sequential import one_thing_at_a_time
from faults.share import WHOLE, Share
from faults.sim import SimClock, sim_world
from faults.sweep import LocalFaultyStorage
from kit import keyed_writes
from kit.tables import tier
from streamhouse_spark import StreamhouseError, Table, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_small_segments

pytestmark = pytest.mark.usefixtures("own_cache")

NAME = "d.t"
LARGE = "x" * 300_000
MINUTES_MS = 120_000
Rows = list[int]


class Place:
    """A warehouse whose content can be put back; each opening is another process."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clock, self._seeds = SimClock(), iter(range(1, 100_000))
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        world = sim_world(0, self.clock)
        local = LocalStorage(str(folder / "wh"), fsync=False, world=world)
        self.storage: Storage = MemoryStorage(world) if kind == "memory" else local

    def open(self, storage: Storage | None = None) -> Table:
        clear_manifest_cache()
        return self.warehouse(storage).table(NAME)

    def warehouse(self, storage: Storage | None = None) -> Warehouse:
        return Warehouse("wh", storage=storage or self.storage, world=sim_world(next(self._seeds), self.clock))

    def faulty(self, plan: Any) -> FaultyStorage:
        kind = LocalFaultyStorage if isinstance(self.storage, LocalStorage) else FaultyStorage
        return kind(self.storage, plan)

    def backup(self) -> Any:
        if isinstance(self.storage, MemoryStorage):
            return dict(self.storage._objects)
        to = self._folder / f"backup{next(self._seeds)}"
        shutil.copytree(self._folder / "wh", to)
        return to

    def restore(self, backup: Any) -> None:
        if isinstance(self.storage, MemoryStorage):
            self.storage._objects = dict(backup)
        else:
            shutil.rmtree(self._folder / "wh")
            shutil.copytree(backup, self._folder / "wh")


def ids(table: Table) -> Rows:
    return sorted(table.to_arrow(columns=["id"])["id"].to_pylist())


def add(table: Table, *keys: int, text: str = "") -> None:
    rows = [{"id": key, "text": text} for key in keys]
    (table.upsert if table.state.primary_key else table.append)(rows)


class Work:
    """One kind of write: what is there before, what a process plans, and what it then does."""

    keyed = False
    lake = "iceberg"
    is_of_lake = False
    adds: Sequence[int] = ()

    def setup(self, table: Table) -> None:
        add(table, 1)

    def begin(self, table: Table) -> Callable[[], None]:
        return lambda: self.work(table)

    def work(self, table: Table) -> None:
        raise NotImplementedError


class Append(Work):
    adds = (100,)

    def work(self, table: Table) -> None:
        add(table, 100)


class AppendObject(Append):
    def work(self, table: Table) -> None:
        add(table, 100, text=LARGE)


class Upsert(Append):
    keyed = True


class UpsertObject(AppendObject):
    keyed = True


class Overwrite(Work):
    adds = (100,)

    def work(self, table: Table) -> None:
        table.overwrite([{"id": 100, "text": LARGE}])


class Staged(Work):
    """The tasks of a Spark write are done; the driver commits."""

    adds = (100,)

    def begin(self, table: Table) -> Callable[[], None]:
        staged = table.log_writer.stager().stage(pa.table({"id": pa.array([100], pa.int64()), "text": [LARGE]}))
        return lambda: table.log_writer.commit(staged)


class Merge(Work):
    def setup(self, table: Table) -> None:
        for key in range(1, 9):
            add(table, key)

    def work(self, table: Table) -> None:
        compact_small_segments(table)


class Snapshots(Work):
    keyed = True

    def setup(self, table: Table) -> None:
        add(table, *range(1, 20))
        add(table, *range(1, 20))

    def work(self, table: Table) -> None:
        table.maintain()


class Tier(Work):
    is_of_lake = True

    def setup(self, table: Table) -> None:
        add(table, 1)
        tier(table)
        add(table, 2)

    def work(self, table: Table) -> None:
        tier(table)


class TierPaimon(Tier):
    lake = "paimon"


class TierKeyed(Tier):
    keyed = True


class Compact(Work):
    is_of_lake = True

    def setup(self, table: Table) -> None:
        for key in range(1, 7):
            add(table, key)
            tier(table)

    def work(self, table: Table) -> None:
        table.lake.compact()


class CompactPaimon(Compact):
    lake = "paimon"


class Update(Work):
    """A statement has read the table, and commits what it makes of it."""

    keyed = True
    adds = (100,)

    def begin(self, table: Table) -> Callable[[], None]:
        base = ReadVersion.of(table.refresh())
        rows = pa.table({"id": pa.array([100], pa.int64()), "text": [LARGE]})

        def commit() -> None:
            keyed_writes.rewrite(table, rows, np.array([False]), read=base)

        return commit


class Restored:
    """One restore in the midst of a work, and what it may find afterwards."""

    def __init__(self, kind: str, folder: Path, work: Work, when: str) -> None:
        self.place, self.work, self.when = Place(kind, folder), work, when
        close_tablets()
        properties = {"table.datalake.format": work.lake, "table.log.ttl": "1h"}
        key = ["id"] if work.keyed else []
        schema = "id BIGINT NOT NULL, text STRING"
        table = self.place.warehouse().create_table(NAME, schema, primary_key=key, properties=properties)
        work.setup(table)
        self.backup = self.place.backup()
        if when != "the same":
            add(table, 50)
        self.rows = ids(table)

    def happen(self) -> None:
        self.place.restore(self.backup)
        self.place.clock.advance(MINUTES_MS)
        table = self.place.open()
        grown = {"the same": 0, "behind": 0, "level": 1, "past": 3}[self.when]
        for key in range(60, 60 + grown):
            add(table, key)
        self.rows = ids(table)

    def run(self, at: int) -> tuple[str, list[Op]]:
        """Let it happen before a call, numbered from where the work was planned; how the work ended, and its calls."""
        calls = itertools.count()

        def plan(_number: int, _method: str, _key: str) -> None:
            if is_planned and next(calls) == at:
                self.happen()

        is_planned = False
        storage = self.place.faulty(plan)
        table = self.place.open(storage)
        table.refresh()
        finish = self.work.begin(table)
        is_planned = True
        storage.trace.clear()
        try:
            finish()
        except StreamhouseError as error:
            return type(error).__name__, storage.trace
        return "success", storage.trace

    def check(self, *, is_done: bool) -> None:
        """The table is what was put back, with what others wrote since, and with the work's rows where it was done."""
        close_tablets()
        table = self.place.open()
        expected = sorted({*self.rows, *(self.work.adds if is_done else ())})
        if isinstance(self.work, Overwrite) and is_done:
            expected = list(self.work.adds)
        assert ids(table) == expected
        add(table, 200)
        expected = [*expected, 200]
        if self.work.is_of_lake:
            tier(table)
            assert sorted(table.lake.to_arrow()["id"].to_pylist()) == expected
        table.maintain()
        assert ids(self.place.open()) == expected


LOG_WORKS = [Append, AppendObject, Upsert, UpsertObject, Overwrite, Staged, Merge, Snapshots, Update]
LAKE_WORKS = [Tier, TierPaimon, TierKeyed, Compact, CompactPaimon]


def is_commit(op: Op) -> bool:
    """Whether a call is the commit of a record, or one of those that write a lake's metadata."""
    _, method, key = op
    if method == "put_if_absent" and "/commits/" in key:
        return True
    return method in WRITES and any(part in key for part in ("/metadata/", "/manifest/", "/snapshot/"))


def moment_of(calls: Sequence[Op]) -> int:
    """The call from which on nothing is looked at again before the commit, which is to come or done.

    Of a lake that is the call behind the last look at files of rows.
    """
    commit = next(at for at, op in enumerate(calls) if is_commit(op))
    if "/commits/" in calls[commit][2]:
        return commit
    return 1 + max(at for at, op in enumerate(calls[:commit]) if op[2].endswith(".parquet"))


def check_restored_before_each_call(
    kind: str, work: type[Work], when: str, folder: Path, every: int = 1, share: Share = WHOLE
) -> None:
    with one_thing_at_a_time():
        _, calls = Restored(kind, folder, work(), when).run(-1)
        moment = moment_of(calls)
        outcomes: Counter[str] = Counter()
        met = [at for at, op in enumerate(calls) if op[1] != "create.write"][::every]
        for at in (at for number, at in enumerate(met) if number in share):
            restored = Restored(kind, folder, work(), when)
            outcome, trace = restored.run(at)
            what = f"{work.__name__}, restored ({when}) before {calls[at][1:]}, ended with {outcome}"
            is_done = outcome == "success" and not any(map(is_commit, trace[:at]))
            try:
                restored.check(is_done=is_done)
                outcomes[outcome] += 1
            except StreamhouseError as error:
                if at < moment:
                    raise AssertionError(f"{what}: {error}") from error
                outcomes["an error for all from then on"] += 1
            except AssertionError as error:
                raise AssertionError(f"{what}: {error}") from error
    print(f"{kind}, {work.__name__}, {when}, {moment} calls before the last moment: {dict(outcomes)}")  # noqa: T201


@pytest.mark.parametrize(
    ("kind", "when"),
    [("memory", "the same"), ("memory", "behind"), ("memory", "level"), ("local", "the same")],
)
@pytest.mark.parametrize("work", LOG_WORKS, ids=lambda work: work.__name__)
@pytest.mark.sampled(6)
def test_writes_of_a_log_restored_before_each_call(kind, work, when, tmp_path, share):
    check_restored_before_each_call(kind, work, when, tmp_path / "place", share=share)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("when", ["the same", "behind"])
@pytest.mark.parametrize("work", LAKE_WORKS, ids=lambda work: work.__name__)
def test_writes_of_a_lake_restored_before_each_call(work, when, tmp_path, share):
    check_restored_before_each_call("memory", work, when, tmp_path / "place", every=5, share=share)
