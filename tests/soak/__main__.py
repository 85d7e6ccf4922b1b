"""Long runs of what the tests do a little of. Prints a line of figures for each part; fails at the first violation.

``python -m soak`` in the tests folder, or ``make soak``; ``python -m soak kills power`` runs parts of it.

``pairs`` takes hours for one scenario, and can be run piece by piece: ``python -m soak pairs --scenario "overwrite and
tier" --from 20 --to 40`` has the first crash at the calls 20 to 39. The line of progress on stderr names the call that
is met; a run that was stopped there goes on with ``--from`` that call.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from faults import interleave as il
from faults.scenarios import SCENARIOS, Scenario
from faults.sequential import one_thing_at_a_time
from faults.sweep import Figures, sweep_pairs, sweep_scenario
from kills.keyed_rounds import keyed_kill_rounds
from kills.rounds import kill_rounds
from soak.lake_rounds import rounds_in
from soak.power import PowerTestUnavailableError, power_cycles
from streamhouse_spark.kv.tablet import close_tablets

LONG_SCENARIOS = (
    "clean",
    "tier the first rows",
    "tier and trim",
    "truncate and tier",
    "overwrite and tier",
    "compact the lake",
    "clean dropped tables",
    "read while tiering",
)
"""Of these, the second crash meets every seventh call."""

KEYED_STEPS = 40


def faults(arguments: argparse.Namespace) -> str:
    """Every kind of fault at every call of every scenario."""
    return totals(lambda scenario: sweep_scenario(scenario(), every_kind=True), arguments.scenario)


def pairs(arguments: argparse.Namespace) -> str:
    """A crash at every call, and another in what follows."""

    def sweep(make: Callable[[], Scenario]) -> Figures:
        scenario, started = make(), time.monotonic()

        def progress(call: int, end: int, figures: Figures) -> None:
            took_s = time.monotonic() - started
            text = f"call {call} of {arguments.first} to {end - 1}, {figures.runs} pairs, {took_s:.0f} s"
            print(f"  {scenario.name}: {text}", file=sys.stderr, flush=True)  # noqa: T201

        every = arguments.every or (7 if scenario.name in LONG_SCENARIOS else 1)
        return sweep_pairs(scenario, every=every, first=arguments.first, end=arguments.end, progress=progress)

    return totals(sweep, arguments.scenario)


def totals(sweep: Callable[..., Figures], names: Collection[str] = ()) -> str:
    total = Figures()
    with one_thing_at_a_time():
        for scenario in SCENARIOS:
            if names and scenario.name not in names:
                continue
            figures = sweep(scenario)
            say(f"  {scenario.name}: {figures}")
            assert figures.calls, f"{scenario.name} has no such calls"
            assert len(figures.hit) == figures.calls, f"{scenario.name}: only {len(figures.hit)} calls were hit"
            total.calls += figures.calls
            total.runs += figures.runs
            total.outcomes += figures.outcomes
    return f"{total.runs} faults injected at {total.calls} calls, all of them hit; 0 violations"


def interleavings(arguments: argparse.Namespace) -> str:
    """Another process at every call of every operation."""
    outcomes: Counter[str] = Counter()
    with one_thing_at_a_time():
        for work in il.WORK:
            for between in il.BETWEEN_TIERING if work in il.TIERING_WORK else il.BETWEEN:
                found = il.check_interleavings(work, between)
                say(f"  {work} / {between}: {dict(found)}")
                outcomes += found
    return f"{outcomes.total()} interleavings ({dict(outcomes)}); 0 violations"


def histories(arguments: argparse.Namespace) -> str:
    """Random histories against a dictionary."""
    from property import machine
    from property.test_table_machine import LIMITS

    how = settings(LIMITS, max_examples=arguments.examples, stateful_step_count=80)
    run_state_machine_as_test(machine.TableMachine, settings=how)
    return f"{len(machine.TRACES)} histories, {machine.FIRED.total()} steps: {dict(machine.FIRED)}; 0 violations"


def kills(arguments: argparse.Namespace) -> str:
    """SIGKILL against real processes, in warehouses of 50 rounds each."""
    done = []
    for first in range(0, arguments.rounds, 50):
        with workspace() as directory:
            done.append(kill_rounds(directory, min(50, arguments.rounds - first), seed=arguments.seed + first))
        say(f"  {done[-1]}")
    return (
        f"{sum(f.kills for f in done)} kills in {arguments.rounds} rounds, {sum(f.acknowledged for f in done)} batches "
        f"acknowledged, {sum(f.rows for f in done)} rows: 0 lost, 0 doubled, 0 gaps"
    )


def keyed_histories(arguments: argparse.Namespace) -> str:
    """Random histories of tables with a primary key against a dictionary: without a lake, and with each kind."""
    from property.test_keyed_tables import History
    from streamhouse_spark.kv import kv_snapshots

    kv_snapshots.CHANGES_MIN = 5
    steps, faults, folds, rounds = 0, 0, 0, 0
    for number in range(arguments.examples):
        with workspace() as directory, one_thing_at_a_time():
            seed = arguments.seed * 1_000_000 + number
            history = History(seed, directory, lake=(None, "iceberg", "paimon")[number % 3])
            try:
                for _ in range(KEYED_STEPS):
                    history.step()
                folds += history.finish()
            except BaseException as error:
                error.add_note(f"in the history of seed {seed}")
                raise
            close_tablets()
        steps, faults, rounds = steps + KEYED_STEPS, faults + history.fired, rounds + history.compared
        if number % 100 == 99:
            say(f"  {number + 1} histories, {faults} faults, {rounds} rounds")
    return (
        f"{arguments.examples} histories, {steps} steps, {faults} faults, {rounds} rounds that DuckDB or pypaimon "
        f"read, {folds} changelogs folded; 0 differences"
    )


def keyed_kills(arguments: argparse.Namespace) -> str:
    """SIGKILL against writers by key that share their tablets, in warehouses of 50 rounds each."""
    done = []
    for first in range(0, arguments.rounds, 50):
        with workspace() as directory:
            os.environ["STREAMHOUSE_CACHE_DIR"] = str(directory / "cache")
            done.append(keyed_kill_rounds(directory, min(50, arguments.rounds - first), seed=arguments.seed + first))
        say(f"  {done[-1]}")
    return (
        f"{sum(f.kills for f in done)} kills in {arguments.rounds} rounds, {sum(f.acknowledged for f in done)} batches "
        "acknowledged: none lost, none counted twice"
    )


def lake_rounds(arguments: argparse.Namespace) -> str:
    """Tiering rounds with the service's maintenance, five minutes apart: neither times nor files grow."""
    done = []
    for is_keyed in (False, True):
        with workspace() as directory, one_thing_at_a_time():
            os.environ["STREAMHOUSE_CACHE_DIR"] = str(directory / "cache")
            rounds = rounds_in(directory, is_keyed=is_keyed, pace_ms=300_000)
            for _ in range(arguments.lake_rounds // 50):
                rounds.run(50)
                say(f"  {'keyed' if is_keyed else 'log'}, {len(rounds.round_ms)} rounds: {dict(rounds.counts())}")
            rounds.require_right()
            close_tablets()
        done.append(f"{'keyed' if is_keyed else 'log'} table: {rounds.times()}")
    return "; ".join(done)


def power(arguments: argparse.Namespace) -> str:
    """Power cuts under a file system of its own."""
    try:
        with workspace() as directory:
            figures = power_cycles(directory, arguments.cycles, arguments.seed)
    except PowerTestUnavailableError as error:
        return f"not run: {error}"
    return (
        f"{figures.kills} power cuts, {figures.acknowledged} of {figures.attempted} batches acknowledged, "
        f"{figures.rows} rows: 0 acknowledged rows lost, 0 doubled, 0 damaged files"
    )


class workspace:  # noqa: N801 - used like a function
    """A directory that is kept when something in it failed."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="streamhouse-soak-"))
        return self._path

    def __exit__(self, failed: object, *_: object) -> None:
        if failed:
            say(f"  left for inspection: {self._path}")
        else:
            shutil.rmtree(self._path)


PARTS = {
    part.__name__: part
    for part in (faults, pairs, interleavings, histories, keyed_histories, kills, keyed_kills, lake_rounds, power)
}


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main(texts: Sequence[str] | None = None) -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=how)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of kills")
    parser.add_argument("--lake-rounds", type=int, default=500, help="rounds of tiering, for each kind of table")
    parser.add_argument("--cycles", type=int, default=200, help="power cuts")
    parser.add_argument("--examples", type=int, default=2000, help="random histories")
    parser.add_argument("--seed", type=int, default=1)
    scenarios = sorted(scenario.name for scenario in SCENARIOS)
    parser.add_argument(
        "--scenario",
        action="append",
        default=[],
        choices=scenarios,
        metavar="NAME",
        help=f"of faults and pairs, only this one; may be given several times. One of: {', '.join(scenarios)}",
    )
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="CALL", help="of pairs, the first call")
    parser.add_argument("--to", dest="end", type=int, metavar="CALL", help="of pairs, the call behind the last")
    parser.add_argument("--every", type=int, metavar="K", help="of pairs, each K-th second call; 1, of long ones 7")
    arguments = parser.parse_args(texts)
    for name in arguments.parts or PARTS:
        started = time.monotonic()
        say(f"{name}: {PARTS[name].__doc__}")
        say(f"{name}: {PARTS[name](arguments)} ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    main()
