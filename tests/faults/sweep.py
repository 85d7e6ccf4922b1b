"""Meet every storage call of a scenario with every fault, let new processes go on, and check everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.faulty_storage import WRITES, Crash, Fault, FaultyStorage, ListingLag, Op, Plan
from faults.late_storage import LateStorage
from faults.scenarios import Run, Scenario, prepared
from faults.share import WHOLE, Share
from streamhouse_spark import StreamhouseError
from streamhouse_spark.storage.base import ObjectInfo, Storage
from streamhouse_spark.storage.local import LocalStorage

LAGGING_OBJECTS = 4
EFFECTIVE_KINDS = {
    **dict.fromkeys(("create.write", "read", "read_ranges", "size_bytes", "ensure_durable"), ("error before",)),
    **dict.fromkeys(("list", "list_names"), ("error before", "crash after, listings lag")),
}
"""The kinds that differ in effect, for calls that leave nothing behind: such a call fails alike before and after, and a
crash there leaves what a crash after the write before it leaves."""

NewStorage = Callable[[Storage, int], FaultyStorage]


@dataclass(slots=True)
class Figures:
    """The figures of a sweep."""

    calls: int = 0
    runs: int = 0
    hit: set[int] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        outcomes = ", ".join(f"{n} {what}" for what, n in self.outcomes.most_common())
        return f"{self.calls} calls, {self.runs} faults injected, {len(self.hit)} calls hit ({outcomes})"


def fault_kinds() -> dict[str, NewStorage]:
    """Name of a fault → the storage that has it at a call."""

    def plain(fault: Fault) -> NewStorage:
        return lambda inner, at: faulty(inner, {at: fault})

    def lagging(fault: Fault) -> NewStorage:
        return lambda inner, at: faulty(inner, {at: fault}, lag=ListingLag(LAGGING_OBJECTS))

    kinds = {fault.value: plain(fault) for fault in Fault}
    kinds["crash after, listings lag"] = lagging(Fault.CRASH_AFTER)
    kinds["lost ack, listings lag"] = lagging(Fault.LOST_ACK)
    kinds["lands late"] = lambda inner, at: LateStorage(inner, at, calls_late=2)
    return kinds


class LocalFaultyStorage(FaultyStorage):
    """Over a local directory, whose segments are mapped behind the storage's back."""

    def local_path(self, key: str) -> str | None:
        return self.inner.local_path(key)

    def list_temporary(self, prefix: str) -> list[ObjectInfo]:
        return self.inner.list_temporary(prefix)


def faulty(inner: Storage, plan: Plan | None = None, *, lag: ListingLag | None = None) -> FaultyStorage:
    kind = LocalFaultyStorage if isinstance(inner, LocalStorage) else FaultyStorage
    return kind(inner, plan, lag=lag)


def trace_of(scenario: Scenario, base: Run) -> list[Op]:
    """The storage calls of the work when nothing fails."""
    run = base.copy()
    storage = faulty(run.memory)
    run.start_process(storage)
    scenario.work(run)
    run.forget()
    return list(storage.trace)


def sweep_scenario(
    scenario: Scenario,
    *,
    every_kind: bool = False,
    kinds: Sequence[str] = (),
    methods: Sequence[str] = (),
    directory: Path | None = None,
    share: Share = WHOLE,
) -> Figures:
    """Meet each call with each kind of fault, or each of those that differ in effect.

    ``kinds``, ``methods`` and ``share`` narrow that down. With a ``directory`` the store is a local one, and its files
    are mapped.

    Raises `AssertionError` naming the call and the fault after which an invariant did not hold.
    """
    figures = Figures()
    makers = {k: v for k, v in fault_kinds().items() if not kinds or k in kinds}
    if directory is not None:
        makers.pop("lands late", None)  # a local disk is not a request under way
    base = prepared(scenario, directory)
    with scenario.limits():
        trace = trace_of(scenario, base)
        figures.calls = len(trace)
        met = (op for op in trace if not methods or op[1] in methods)
        for op in (op for number, op in enumerate(met) if number in share):
            for kind, new_storage in makers.items():
                if not every_kind and kind not in EFFECTIVE_KINDS.get(op[1], makers):
                    continue
                run = base.copy()
                storage = new_storage(run.memory, op[0])
                outcome = run_with(scenario, run, storage)
                if "listings lag" not in kind:  # a listing that shows less leads another way
                    assert storage.faults_fired, f"{op} was not reached again: the scenario is not deterministic"
                    met = storage.faults_fired[0][0]
                    assert met == op or not scenario.is_sequential, f"{met} instead of {op}"
                    figures.hit.add(op[0])
                storage._plan = {}
                figures.runs += 1
                figures.outcomes[outcome] += 1
                recover_and_check(scenario, run, storage, f"{kind} at {op}, which ended with {outcome}")
                run.forget()
    return figures


def run_with(scenario: Scenario, run: Run, storage: FaultyStorage) -> str:
    """Do the work; say how it ended. A crashed process is forgotten, one that met an error lives on."""
    run.start_process(storage)
    try:
        scenario.work(run)
    except Crash:
        return "a crash"
    except StreamhouseError as error:
        return type(error).__name__
    return "success"


def recover_and_check(scenario: Scenario, run: Run, storage: FaultyStorage, what: str) -> None:
    try:
        if storage.crashed:
            run.start_process(faulty(run.memory, lag=storage._lag))
        scenario.recover(run)
        if not storage.crashed:
            # The process that met the error went on; so must one that starts now.
            run.start_process(faulty(run.memory, lag=storage._lag))
            scenario.recover(run)
        storage._lag.advance()
        scenario.check(run)
    except (AssertionError, StreamhouseError) as error:
        raise AssertionError(f"{scenario.name}: {what}: {error}") from error


def sweep_pairs(
    scenario: Scenario,
    *,
    every: int = 1,
    first: int = 0,
    end: int | None = None,
    progress: Callable[[int, int, Figures], None] = lambda *_: None,
) -> Figures:
    """Crash at each call of the work, and again at each call of what a new process then does.

    ``every`` takes only each few of the second calls; ``first`` and ``end`` bound the calls of the work. ``progress``
    hears before each of these its number, the number behind the last, and the figures so far.
    """
    figures = Figures()
    base = prepared(scenario)
    with scenario.limits():
        trace = trace_of(scenario, base)[first:end]
        figures.calls = len(trace)
        for op in trace:
            progress(op[0], first + len(trace), figures)
            fault = Fault.CRASH_AFTER if op[1] in WRITES else Fault.CRASH_BEFORE
            second = 0
            while pair_fired(scenario, base, {op[0]: fault}, second):
                figures.runs += 1
                figures.hit.add(op[0])
                second += every
    return figures


def pair_fired(scenario: Scenario, base: Run, first: dict[int, Fault], second: int) -> bool:
    """One run with two crashes; False when the recovery was over before the second."""
    run = base.copy()
    run_with(scenario, run, FaultyStorage(run.memory, first))
    again = FaultyStorage(run.memory, lambda number, method, _: crash_at(second, number, method))
    run.start_process(again)
    try:
        scenario.recover(run)
    except Crash:
        recover_and_check(scenario, run, again, f"a crash at {first}, and one at call {second} of the recovery")
        return True
    return False


def crash_at(at: int, number: int, method: str) -> Fault | None:
    if number != at:
        return None
    return Fault.CRASH_AFTER if method in WRITES else Fault.CRASH_BEFORE
