"""Another process's work between two storage calls of an operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from unittest import mock

from faults.faulty_storage import Fault, FaultyStorage
from faults.history import SCHEMA, Told
from faults.scenarios import HOUR_MS, LAKE, LARGE, NAME, NO_LAKE, Run
from faults.share import WHOLE, Share
from faults.sim import SimIds
from kit.tables import tier
from streamhouse_spark import Table, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptDataError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
    StreamhouseError,
)
from streamhouse_spark.log import checkpoint
from streamhouse_spark.log import compaction as merge
from streamhouse_spark.log.gc import garbage_collection
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

Action = Callable[[Run], None]


@contextmanager
def small_limits() -> Iterator[None]:
    """Two segments are a run to merge, two records are worth a checkpoint, and a floor."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(checkpoint, "CHECKPOINT_INTERVAL", 2))
        stack.enter_context(mock.patch.object(garbage_collection, "WATERMARK_STEP_MIN", 2))
        stack.enter_context(mock.patch.object(merge.plan_small_merge, "__defaults__", (2,)))
        yield


def rival(run: Run) -> Table:
    """The table, opened by another process that meets no faults."""
    return rival_warehouse(run).table(NAME)


def rival_warehouse(run: Run) -> Warehouse:
    run.processes += 1
    world = World(run.clock, SimIds(1000 + run.processes))
    return Warehouse(run.memory.url, storage=run.memory, world=world)


def rival_appends(run: Run) -> None:
    run.history.append(rival(run), run.history.new_batch(2))


def rival_truncates(run: Run) -> None:
    """Rows that come, go and come, with what others see in between."""
    table = rival(run)
    run.history.append(table, run.history.new_batch(2))
    run.history.truncate(table)
    rival_appends(run)


def rival_merges(run: Run) -> None:
    table = rival(run)
    compact_inline_rows(table)
    compact_small_segments(table)


def a_day_passes_with_cleaning(run: Run) -> None:
    """The process sleeps for three days, while others write, merge, trim and delete what nobody needs."""
    for _ in range(3):
        rival_appends(run)
        rival(run).maintain()
        run.observe_rival()
        run.clock.advance(25 * HOUR_MS)
    rival(run).maintain()
    run.observe_rival()


def a_day_passes_with_cleaning_alone(run: Run) -> None:
    """The same, but nobody merges: what the sleeping process works on stays as it is."""
    for _ in range(4):
        run.history.append(rival(run), run.history.new_batch(4, row_chars=LARGE))
        table = rival(run)
        table.log.checkpoint(table.refresh())
        garbage_collection.clean(table.log, run.memory)
        run.observe_rival()
        run.clock.advance(25 * HOUR_MS)


def a_day_passes_and_another_thread_looks(run: Run) -> None:
    """The thread at work sleeps for three days; another of its process, which reads, asks for the floor meanwhile."""
    a_day_passes_with_cleaning(run)
    if run.table is not None:
        run.table.log.refresh_low_watermark()


def rival_creates(run: Run) -> None:
    rival_warehouse(run).create_table(NAME, SCHEMA, buckets=2, properties={**NO_LAKE, "bucket.key": "id"})


def rival_drops_and_creates(run: Run) -> None:
    rival_warehouse(run).drop_table(NAME)
    rival_creates(run)


def rival_sends_the_same(run: Run) -> None:
    """A driver that was thought dead sends the batch of its transaction."""
    assert run.batch is not None
    run.history.append(rival(run), run.batch)


def prepared_table(properties: dict[str, str] | None = None) -> Run:
    run = Run()
    run.create(properties=properties)
    run.append()
    run.append(num_rows=4, row_chars=LARGE)
    run.append()
    run.observe()
    return run


def calls_of(base: Run, work: Action) -> int:
    run = base.copy()
    storage = FaultyStorage(run.memory)
    run.start_process(storage)
    work(run)
    return len(storage.trace)


def run_interleaved(base: Run, work: Action, between: Action, at: int) -> tuple[Run, StreamhouseError | None]:
    """Run ``work`` with ``between`` right before its storage call ``at``."""
    run = base.copy()

    def plan(number: int, _method: str, _key: str) -> Fault | None:
        if number == at:
            between(run)
        return None

    run.start_process(FaultyStorage(run.memory, plan))
    try:
        work(run)
    except StreamhouseError as error:
        return run, error
    return run, None


def rival_tiers(run: Run) -> None:
    """Another tiering service, which finds new rows as well."""
    rival_appends(run)
    tier(rival(run))


def rival_builds_the_lake_anew(run: Run) -> None:
    """New rows come, and the lake is at a fresh place, where nothing is yet; not where rows are in the lake alone."""
    rival_appends(run)
    with suppress(OffsetsTrimmedError):
        rival(run).retier()


def rival_truncates_and_tiers(run: Run) -> None:
    """Another process empties the table, and a tiering service the lake."""
    run.history.truncate(rival(run))
    tier(rival(run))
    rival_overwrites(run)


def rival_overwrites(run: Run) -> None:
    """Rows take the place of others, and in the lake as well."""
    run.history.append(rival(run), run.history.new_batch(2, overwrites=True))
    tier(rival(run))


def a_day_passes_with_tiering(run: Run) -> None:
    """The process sleeps for three days, while another tiers, trims and cleans."""
    for _ in range(3):
        rival_tiers(run)
        rival(run).maintain()
        run.observe_rival()
        run.clock.advance(25 * HOUR_MS)
    rival(run).maintain()
    run.observe_rival()


WORK: dict[str, Action] = {
    "append inline": lambda run: run.send_batch(),
    "append objects": lambda run: run.send_batch(),
    "append with a transaction": lambda run: run.send_batch(),
    "truncate": lambda run: run.history.truncate(run.open()),
    "overwrite": lambda run: run.send_batch(),
    "merge": lambda run: none(compact_small_segments(run.open())),
    "maintain": lambda run: none(run.open().maintain()),
    "read": lambda run: run.reader.saw(run.open().to_arrow(columns=["id"]).column("id").to_pylist()),
    "tier": lambda run: run.tier(),
    "tier a truncated table": lambda run: run.tier(),
    "tier and maintain": lambda run: none((run.tier(), run.open().maintain())),
    "read the union": lambda run: run.reader.saw(run.open().to_arrow(columns=["id"]).column("id").to_pylist()),
}
BETWEEN: dict[str, Action] = {
    "appends": rival_appends,
    "merges": rival_merges,
    "truncates": rival_truncates,
    "sleeps for days": a_day_passes_with_cleaning,
    "sleeps while others clean": a_day_passes_with_cleaning_alone,
}
BETWEEN_TIERING: dict[str, Action] = {
    "appends": rival_appends,
    "tiers": rival_tiers,
    "truncates": rival_truncates,
    "truncates and tiers": rival_truncates_and_tiers,
    "overwrites and tiers": rival_overwrites,
    "sleeps while others tier": a_day_passes_with_tiering,
    "builds the lake anew": rival_builds_the_lake_anew,
}
BETWEEN_THREADS: dict[str, Action] = {"sleeps beside a thread that looks": a_day_passes_and_another_thread_looks}
TIERING_WORK = ("tier", "tier a truncated table", "tier and maintain", "read the union")
TRANSACTION = Transaction("app", 1, "query")


def none(_result: object) -> None:
    return None


def base_for(work: str) -> Run:
    """A run in which this work is next."""
    if work in TIERING_WORK:
        base = prepared_table({**LAKE, "table.log.ttl": "30h"})
        base.tier()
        base.append()
        base.clock.advance(31 * HOUR_MS)
        base.observe()
        if work == "tier a truncated table":
            base.history.truncate(base.open())
            base.append()
        return base
    base = prepared_table({"table.log.ttl": "30h"} if work == "maintain" else None)
    if work == "append objects":
        base.prepare_batch(num_rows=4, row_chars=LARGE)
    elif work == "overwrite":
        base.prepare_batch(num_rows=4, row_chars=LARGE, overwrites=True)
    elif work == "append with a transaction":
        base.prepare_batch(transaction=TRANSACTION)
    elif work == "append inline":
        base.prepare_batch()
    return base


def check_interleavings(work: str, between: str, *, every: int = 1, share: Share = WHOLE) -> Counter[str]:
    """Let another process act before each call of the work in turn, or each few of them, or a share of those.

    Afterwards everything must hold.

    Returns how the work ended. Raises `AssertionError` naming the call.
    """
    outcomes: Counter[str] = Counter()
    rival_acts = {**BETWEEN, **BETWEEN_TIERING, **BETWEEN_THREADS}[between]
    with small_limits():
        base = base_for(work)
        for at in range(0, calls_of(base, WORK[work]), every):
            if at // every not in share:
                continue
            run, error = run_interleaved(base, WORK[work], rival_acts, at)
            outcomes[type(error).__name__ if error else "success"] += 1
            try:
                if error is not None:
                    require_expected(work, between, error)
                run.append()
                run.check()
            except (AssertionError, StreamhouseError) as broken:
                what = f"{work}, another process acts ({between}) before call {at}: {error}"
                raise AssertionError(f"{what}: {broken}") from broken
    assert outcomes["success"] or share != WHOLE, outcomes
    return outcomes


def require_expected(work: str, between: str, error: StreamhouseError) -> None:
    """Require that only a process that slept past the grace period fails, with an error that says so.

    Maintenance may sleep after its put until the records that show its outcome are deleted.
    """
    assert between.startswith("sleeps"), error
    expected = {
        "append inline": (CommitConflictError,),
        "append objects": (CommitConflictError,),
        "overwrite": (CommitConflictError,),
        "append with a transaction": (CommitConflictError,),
    }
    otherwise = (CorruptDataError, CommitConflictError, CommitStateUnknownError, SnapshotExpiredError)
    assert isinstance(error, expected.get(work, otherwise)), error


def told_of(run: Run) -> Told:
    assert run.batch is not None
    return run.history.batches[run.batch.number].told
