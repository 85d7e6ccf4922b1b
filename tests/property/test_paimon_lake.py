"""Random histories of a Paimon lake: every snapshot and tag that can be seen reads what it held when it was made."""

from __future__ import annotations

import json
from contextlib import contextmanager
from unittest import mock

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from interop.lake_cases import PLAIN, lake_of, written_files
from kit.lake_rows import lake_rows
from streamhouse_spark import OffsetRange
from streamhouse_spark.lake.paimon import compaction as paimon_maintain
from streamhouse_spark.lake.paimon import snapshot_commit as paimon_commit
from streamhouse_spark.lake.paimon.snapshot_commit import SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.types import LakeSnapshot
from streamhouse_spark.storage.memory import MemoryStorage

PLACE = "lake/sales.db/orders"
TIER = st.tuples(st.just("tier"), st.integers(1, 4))
STEPS = st.lists(
    st.one_of(
        TIER,
        TIER,
        TIER,
        st.tuples(st.just("compact")),
        st.tuples(st.just("expire"), st.integers(1, 4)),
        st.tuples(st.just("expire"), st.integers(1, 2)),
        st.tuples(st.just("clean")),
        st.tuples(st.just("lose a round")),
        st.tuples(st.just("tag"), st.integers(0, 3)),
        st.tuples(st.just("drop tag"), st.integers(0, 3)),
        st.tuples(st.just("foreign")),
        st.tuples(st.just("settle")),
        st.tuples(st.just("truncate")),
    ),
    min_size=20,
    max_size=30,
)


class Model:
    """The lake, and what each of its snapshots and tags held when it was made."""

    def __init__(self, buckets: int) -> None:
        self.world = sim_world(3)
        self.storage = MemoryStorage(self.world)
        self.lake = lake_of(self.storage, world=self.world, lake_format="paimon", num_buckets=1)
        self.bucket = buckets - 1
        self.lake.create_or_evolve()
        self.end, self.start = 0, 0
        self.held: dict[int, tuple[int, int]] = {}
        self.tags: dict[str, tuple[int, int]] = {}

    def made(self, snapshot_id: int) -> None:
        self.held[snapshot_id] = (self.start, self.end)

    def do(self, step: str, *how: int) -> None:
        self.world.clock.advance(1000)
        getattr(self, "do_" + step.replace(" ", "_"))(*how)
        newest = self.lake.newest()
        if newest is not None and newest.id not in self.held:
            self.made(newest.id)

    def do_tier(self, num_rows: int) -> None:
        self._commit(num_rows, self.start)

    def do_truncate(self) -> None:
        self._commit(0, self.end)

    def _commit(self, num_rows: int, start: int) -> None:
        context = self.lake.write_context()
        files = self._files(context, num_rows) if num_rows else []
        before, after = _offsets(self.bucket, self.end), _offsets(self.bucket, self.end + num_rows)
        expected_starts, starts = (_offsets(self.bucket, at) for at in (self.start, start))
        made = self.lake.commit(
            files, expected=before, new=after, context=context, expected_starts=expected_starts, starts=starts
        )
        self.start, self.end = start, self.end + num_rows
        if made is not None:
            assert made == self.lake.newest()

    def _files(self, context, num_rows: int):
        ids = range(self.end, self.end + num_rows)
        rows = pa.table({"id": ids, "name": ["x"] * num_rows}, schema=PLAIN.arrow)
        batches = ((self.end, batch) for batch in rows.to_batches())
        return written_files(self.lake, context, self.bucket, OffsetRange(ids.start, ids.stop), batches)

    def do_compact(self) -> None:
        report = self.lake.compact()
        if report.snapshot is not None:
            assert report.rows <= self.end - self.start
            assert report.files_added < report.files_removed

    def do_expire(self, keep: int) -> None:
        before = self.lake.binding.snapshots.ids()
        planned = self.lake.expire(keep_last=keep, keep_ms=-1000, dry_run=True)
        assert self.lake.binding.snapshots.ids() == before
        assert self.lake.expire(keep_last=keep, keep_ms=-1000) == planned
        left = self.lake.binding.snapshots.ids()
        assert left == before[len(planned.snapshots) :]
        assert len(left) >= min(keep, len(before))

    def do_clean(self) -> None:
        self.world.clock.advance(25 * 3600 * 1000)
        orphans = self.lake.remove_orphans(dry_run=True)
        assert self.lake.remove_orphans() == orphans
        assert self.lake.remove_orphans() == []

    def do_lose_a_round(self) -> None:
        self._files(self.lake.write_context(), 2)

    def do_tag(self, number: int) -> None:
        newest = self.lake.binding.snapshots.newest()
        if newest is not None:
            data = self.storage.read(f"{PLACE}/snapshot/snapshot-{newest.id}")
            self.storage.put(f"{PLACE}/tag/tag-t{number}", data)
            self.tags[f"t{number}"] = self.held[newest.id]

    def do_drop_tag(self, number: int) -> None:
        self.storage.delete(f"{PLACE}/tag/tag-t{number}")
        self.tags.pop(f"t{number}", None)

    def do_foreign(self) -> None:
        """A snapshot without offsets, as another engine makes one."""
        snapshot = commit_snapshot(self.lake.binding, lambda _: SnapshotUpdate())
        key = f"{PLACE}/snapshot/snapshot-{snapshot.id}"
        made = json.loads(self.storage.read(key))
        del made["properties"]
        self.storage.put(key, json.dumps(made).encode())

    def do_settle(self) -> None:
        held = self.lake.find_durable()
        if held is not None:
            assert held.offsets == self.lake.newest().offsets

    def check(self) -> None:
        ids = self.lake.binding.snapshots.ids()
        assert ids == list(range(ids[0], ids[-1] + 1)) if ids else True
        for snapshot_id in ids:
            self._check(self.lake.snapshot(snapshot_id), self.held[snapshot_id])
        for name, held in self.tags.items():  # also of snapshots that said no offsets themselves
            assert _ids(self.lake, self.lake.snapshot_by_name(name).id) == list(range(*held))
        if ids:
            rows = [b for _, b in self.lake.read_offsets(self.bucket, OffsetRange(self.start, self.end))]
            assert [i for b in rows for i in b["id"].to_pylist()] == list(range(self.start, self.end))

    def _check(self, snapshot: LakeSnapshot, held: tuple[int, int]) -> None:
        said = (snapshot.starts.get(self.bucket, 0), snapshot.offsets.get(self.bucket, 0))
        assert said == held
        assert _ids(self.lake, snapshot.id) == list(range(*held))


def _offsets(bucket: int, offset: int) -> dict[int, int]:
    return {bucket: offset} if offset else {}


def _ids(lake, snapshot_id: int) -> list[int]:
    return sorted(lake_rows(lake, lake.plan_read(snapshot_id=snapshot_id, columns=["id"]))["id"].to_pylist())


@contextmanager
def small_limits():
    with (
        one_thing_at_a_time(),
        mock.patch.object(paimon_maintain, "COMPACT_FILES_MIN", 2),
        mock.patch.object(paimon_commit, "MANIFESTS_MIN_TO_MERGE", 3),
    ):
        yield


@settings(
    max_examples=15,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(steps=STEPS, buckets=st.integers(1, 2))
def test_every_snapshot_reads_what_it_held(steps, buckets):
    with small_limits():
        model = Model(buckets)
        for step in steps:
            model.do(*step)
            if step[0] in ("compact", "expire", "clean"):
                model.check()
        model.check()
