"""Whatever another process does between any two storage calls of an operation, nothing is lost, doubled or torn."""

from __future__ import annotations

import pytest

from faults import interleave as il
from faults.checkers import check_all
from faults.compactions import compacting_early
from faults.history import SCHEMA, Told
from faults.ledger import Ledger
from faults.scenarios import HOUR_MS, LAKE, NAME, NO_LAKE, PAIMON, RENAMED, CompactLake, CompactPaimon, Run, prepared
from kit.tables import tier
from streamhouse_spark import CommitConflictError, StreamhouseError, TableNotFoundError


@pytest.mark.sampled(8)
@pytest.mark.parametrize("between", il.BETWEEN)
@pytest.mark.parametrize("work", [w for w in il.WORK if w not in il.TIERING_WORK])
def test_another_process_between_any_two_calls(work, between, share):
    outcomes = il.check_interleavings(work, between, every=3 if work == "maintain" else 1, share=share)
    print(f"{work} / {between}: {dict(outcomes)}")  # noqa: T201


@pytest.mark.sampled(8)
@pytest.mark.parametrize("work", ["append inline", "append with a transaction", "truncate", "merge"])
def test_a_thread_that_sleeps_beside_one_that_reads_the_floor(work, share):
    """What one thread read between another's look at the log and its record counts for both: a void record is none."""
    outcomes = il.check_interleavings(work, "sleeps beside a thread that looks", share=share)
    print(f"{work}: {dict(outcomes)}")  # noqa: T201


@pytest.mark.sampled(18)
@pytest.mark.parametrize("between", il.BETWEEN_TIERING)
@pytest.mark.parametrize("work", il.TIERING_WORK)
def test_another_process_between_calls_of_tiering(work, between, share):
    outcomes = il.check_interleavings(work, between, every=4, share=share)  # the soak run takes every call
    print(f"{work} / {between}: {dict(outcomes)}")  # noqa: T201


@pytest.mark.sampled(6)
@pytest.mark.parametrize("work", ["append inline", "append objects", "merge", "maintain"])
def test_no_row_reaches_a_table_that_was_recreated_between_any_two_calls(work, share):
    with il.small_limits():
        base = il.base_for(work)
        old_ids = sorted(base.observe().all_ids())
        for at in filter(share.__contains__, range(il.calls_of(base, il.WORK[work]))):
            run, error = il.run_interleaved(base, il.WORK[work], il.rival_drops_and_creates, at)
            new = il.rival(run)
            assert run.ledger is not None
            old, run.ledger = run.ledger, None
            stored = sorted(i for ids in (old.observe(), old.all_ids())[1:] for i in ids)
            sent = list(run.batch.ids) if run.batch else []
            if new.uuid == old.table_uuid:
                assert stored == sorted(old_ids + sent)
                continue
            rows_of_new = sorted(new.to_arrow().column("id").to_pylist())
            if error is not None:
                assert isinstance(error, TableNotFoundError | CommitConflictError), error
                assert stored == old_ids, f"call {at}: the dropped table got rows: {error}"
                assert rows_of_new == [], f"call {at}: the new table got the old one's rows"
            elif run.batch is not None:
                assert sorted(stored + rows_of_new) == sorted(old_ids + sent), f"call {at}"


@pytest.mark.parametrize("slow_commit_ms", [0, 61_000])
def test_the_same_transaction_from_two_drivers_is_stored_once(slow_commit_ms):
    base = il.base_for("append with a transaction")
    for at in range(il.calls_of(base, il.WORK["append with a transaction"])):

        def rival(run: Run) -> None:
            il.rival_sends_the_same(run)
            run.clock.advance(slow_commit_ms)

        run, error = il.run_interleaved(base, il.WORK["append with a transaction"], rival, at)
        assert error is None
        assert il.told_of(run) is Told.ACKNOWLEDGED
        run.check()


def test_of_two_processes_that_create_a_table_one_succeeds():
    base = Run()
    for at in range(il.calls_of(base, lambda run: run.create())):
        run, error = il.run_interleaved(base, lambda run: run.create(), il.rival_creates, at)
        assert error is None or error.condition == "TABLE_EXISTS", error
        run.table = None
        run.append()
        ledger = Ledger(run.memory, run.open().uuid)
        check_all(run.memory, NAME, run.history, ledger)


@pytest.mark.parametrize("days", [0, 1, 2])
def test_a_creator_that_sleeps_while_unnamed_tables_are_cleaned(days):
    """A table whose creation was said to be done is there, whatever was cleaned up before it had its name."""
    base = Run()
    base.warehouse.create_database("other")

    def clean(run: Run) -> None:
        for _ in range(days):
            run.clock.advance(25 * HOUR_MS)
            il.rival_warehouse(run).clean_dropped()

    for at in range(il.calls_of(base, lambda run: run.create())):
        run, error = il.run_interleaved(base, lambda run: run.create(), clean, at)
        assert error is None or days, error
        if error is not None:
            run.table = None
            run.create()
        run.append()
        clean(run)
        run.check()


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("lake", "expires"),
    [(LAKE, False), (LAKE, True), (PAIMON, True)],
    ids=["tiers and trims", "tiers, trims and expires", "tiers, trims and expires, Paimon"],
)
def test_reading_past_an_expired_snapshot_while_another_process_tiers_and_trims(lake, expires, share):
    """The snapshot that the log has recorded is gone, so the reader looks at the lake, which moves meanwhile."""

    def expire(run: Run) -> None:
        lake = il.rival(run).open_lake()
        lake.compact()
        lake.expire(keep_last=1, keep_ms=0)

    def act(run: Run) -> None:
        il.rival_tiers(run)
        run.observe_rival()
        run.clock.advance(2 * HOUR_MS)
        il.rival(run).maintain()
        if expires:
            il.rival_appends(run)
            tier(il.rival(run))
            expire(run)

    with compacting_early():
        base = il.prepared_table({**lake, "table.log.ttl": "1h"})
        base.tier()
        base.append()
        base.tier()
        expire(base)
        base.observe()
        every = 2 if expires else 1
        for at in range(0, il.calls_of(base, il.WORK["read the union"]), every):
            if at // every not in share:
                continue
            run, error = il.run_interleaved(base, il.WORK["read the union"], act, at)
            assert error is None, f"call {at}: {error}"
            run.check()


def _maintain_the_lake(run: Run) -> None:
    lake = run.open().open_lake()
    lake.compact()
    if (snapshots := lake.capabilities.snapshot_replacement) is not None:
        snapshots.find_durable()
    lake.expire(keep_last=1, keep_ms=0)
    lake.remove_orphans()


def _rival_maintains_the_lake(run: Run) -> None:
    lake = il.rival(run).open_lake()
    lake.compact()
    lake.expire(keep_last=1, keep_ms=0)
    lake.remove_orphans()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("between", [_rival_maintains_the_lake, il.rival_tiers])
@pytest.mark.parametrize("work", [_maintain_the_lake, Run.tier], ids=["maintain", "tier"])
def test_maintenance_of_paimon_and_rounds_between_any_two_calls_of_each_other(work, between, share):
    """No row is lost or doubled, and every snapshot that can be seen is whole."""
    scenario = CompactPaimon()
    base = prepared(scenario)
    with scenario.limits():
        if work == Run.tier:
            base.append()
        for at in range(0, il.calls_of(base, work), 7):
            if at // 7 not in share:
                continue
            run, error = il.run_interleaved(base, work, between, at)
            # Unknown is a put where the number was expired meanwhile: a snapshot below a gap, which counts for nothing.
            known = ("COMMIT_CONFLICT", "SNAPSHOT_EXPIRED", "COMMIT_STATE_UNKNOWN")
            assert error is None or error.condition in known, f"call {at}: {error}"
            CompactLake.recover(scenario, run)
            scenario.check(run)


def _rename(run: Run) -> None:
    run.warehouse.rename_table(NAME, RENAMED)


def _create_renamed(run: Run) -> None:
    run.warehouse.create_table(RENAMED, SCHEMA, properties=NO_LAKE)


def _rival_takes_the_name(run: Run) -> None:
    il.rival_warehouse(run).create_table(RENAMED, SCHEMA, properties=NO_LAKE)


def _rival_renames(run: Run) -> None:
    il.rival_warehouse(run).rename_table(NAME, RENAMED)


def _rival_renames_elsewhere(run: Run) -> None:
    il.rival_warehouse(run).rename_table(NAME, "sales.elsewhere")


def _rival_renames_there_and_back(run: Run) -> None:
    il.rival_warehouse(run).rename_table(NAME, RENAMED)
    il.rival_warehouse(run).rename_table(RENAMED, NAME)


def _rival_drops(run: Run) -> None:
    il.rival_warehouse(run).drop_table(NAME)


def _rival_drops_the_database(run: Run) -> None:
    il.rival_warehouse(run).drop_database("sales", cascade=True)


def _days_pass_with_cleaning(run: Run) -> None:
    for _ in range(3):
        run.clock.advance(25 * HOUR_MS)
        il.rival_warehouse(run).clean_dropped()


NAME_WORK = {"rename": _rename, "create": _create_renamed, "drop": lambda run: run.warehouse.drop_table(NAME)}
NAME_RIVALS = {
    f.__name__.strip("_"): f
    for f in (
        _rival_takes_the_name,
        _rival_renames,
        _rival_renames_elsewhere,
        _rival_renames_there_and_back,
        _rival_drops,
        _rival_drops_the_database,
        _days_pass_with_cleaning,
    )
}


@pytest.mark.parametrize("rival", NAME_RIVALS)
@pytest.mark.parametrize("work", NAME_WORK)
def test_every_table_keeps_exactly_one_name_whoever_else_names_tables(work, rival):
    """Between any two calls of renaming, creating and dropping, others do the same."""
    base = Run()
    base.create()
    base.append()
    base.observe()
    for at in range(il.calls_of(base, NAME_WORK[work])):
        refused: list[StreamhouseError] = []

        def between(run: Run, refused: list[StreamhouseError] = refused) -> None:
            try:
                NAME_RIVALS[rival](run)
            except StreamhouseError as of_rival:
                refused.append(of_rival)

        run, error = il.run_interleaved(base, NAME_WORK[work], between, at)
        known = {"TABLE_NOT_FOUND", "TABLE_EXISTS", "DATABASE_NOT_FOUND", "DATABASE_NOT_EMPTY"}
        conditions = {found.condition for found in (error, *refused) if found is not None}
        assert conditions <= known, f"call {at}: {error} {refused}"
        _days_pass_with_cleaning(run)
        fresh = il.rival_warehouse(run)
        names: dict[str, list[str]] = {}
        for name in (NAME, RENAMED, "sales.elsewhere"):
            if fresh.exists(name):
                names.setdefault(fresh.table(name).uuid, []).append(name)
        assert all(len(found) == 1 for found in names.values()), f"call {at}: {names}"
        assert run.ledger is not None
        if run.ledger.table_uuid in names:
            (name,) = names[run.ledger.table_uuid]
            assert fresh.table(name).to_arrow().num_rows == 3, f"call {at}: the table lost its rows"
        else:
            is_dropped = work == "drop" or "drops" in rival
            assert is_dropped, f"call {at}: nobody dropped the table, and no name means it: {error} {refused}"
