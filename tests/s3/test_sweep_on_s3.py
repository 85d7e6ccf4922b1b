"""Faults at the writes of appending, tiering and trimming on an object store; then everything is checked.

The sweeps of `faults` do this with every call of every scenario, in memory. Here the store is spoken to through the
real client, whose own retries decide what a lost answer becomes, so few scenarios and faults are enough.
"""

from __future__ import annotations

from itertools import count

import pytest

from faults import scenarios as sc
from faults.faulty_storage import Fault, FaultyStorage, Plan
from faults.scenarios import LAKE, Run, Scenario
from faults.sim import SimIds
from faults.sweep import Figures, recover_and_check, run_with
from storage.s3_proxy import Fault as S3Fault
from storage.s3_proxy import S3Proxy, nothing, nth
from storage.s3_server import S3Server, ServerClock, settings_for
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.s3.storage import S3Storage

pytestmark = [pytest.mark.s3, pytest.mark.long]


class RunOnS3(Run):
    """A run in a bucket of its own; what it has to do meets faults through a proxy."""

    def __init__(self, server: S3Server, proxy: S3Proxy) -> None:
        self.server, self.proxy, self.bucket = server, proxy, server.new_bucket()
        super().__init__(ServerClock())

    def new_store(self, world: World) -> Storage:
        return self.store_at(self.server.endpoint, world)

    def store_at(self, endpoint: str, world: World) -> Storage:
        return S3Storage(f"s3://{self.bucket}/wh", settings_for(endpoint), world)

    def through_proxy(self) -> Storage:
        return self.store_at(self.proxy.endpoint, World(self.clock, SimIds(10**6)))

    def copied_store(self) -> Run:
        other = RunOnS3(self.server, self.proxy)
        for info in self.memory.list(""):
            other.memory.put(info.key, self.memory.read(info.key))
        sc.make_at_home(other.memory)
        return other


class TrimNow(sc.Trim):
    """The store's time cannot be made to pass, so rows may go at once."""

    def setup(self, run: Run) -> None:
        run.create(properties={"table.log.ttl": "1ms"})
        run.append()
        run.append(num_rows=4, row_chars=sc.LARGE)
        run.clock.advance(2000)
        run.observe()

    def recover(self, run: Run) -> None:
        super().recover(run)
        run.observe()


class TierAndTrimNow(sc.TierAndTrim):
    """Not the setup's lake but the work's: a lake knows its bucket, so it cannot be copied into another."""

    def setup(self, run: Run) -> None:
        run.create(properties={**LAKE, "table.log.ttl": "1ms"})
        run.append()
        run.clock.advance(2000)
        run.observe()

    def recover(self, run: Run) -> None:
        run.append()
        run.tier()
        run.observe()
        run.open().maintain()


@pytest.mark.parametrize(
    ("scenario", "every"),
    [(sc.AppendInline, 1), (sc.AppendObjects, 1), (TrimNow, 4), (TierAndTrimNow, 16)],
    ids=lambda value: value if isinstance(value, int) else value.__name__,
)
def test_a_fault_at_writes(scenario, every, s3_server, proxy):
    """At each write, or each few of them: its answer is lost; and the process dies behind it."""
    base = RunOnS3(s3_server, proxy)
    scenario().setup(base)
    figures = Figures()
    for loses_answer, first in ((True, 0), (False, every // 2)):
        number = first
        while run_and_check(scenario(), base, figures, number, loses_answer=loses_answer):
            number += every
        figures.calls = max(figures.calls, number)
    print(f"{scenario.name} on S3: {figures}")  # noqa: T201 - figures are what a sweep is read for
    assert figures.runs > 1


def crash_behind(number: int) -> Plan:
    writes = count()

    def plan(_at: int, method: str, _key: str) -> Fault | None:
        wrote = method in ("put_if_absent", "put", "create.close")
        return Fault.CRASH_AFTER if wrote and next(writes) == number else None

    return plan


def run_and_check(scenario: Scenario, base: RunOnS3, figures: Figures, number: int, *, loses_answer: bool) -> bool:
    """Do the work with a fault at a write; False where the work has fewer writes."""
    run = base.copy()
    if loses_answer:
        base.proxy.plan = nth("PUT", number, S3Fault.LOST_ACK)
    storage = FaultyStorage(run.through_proxy(), {} if loses_answer else crash_behind(number))
    outcome = run_with(scenario, run, storage)
    met = base.proxy.faults_fired > 0 if loses_answer else storage.crashed
    base.proxy.plan, storage._plan = nothing, {}
    if met:
        figures.runs += 1
        figures.hit.add(number)
        figures.outcomes[outcome] += 1
        recover_and_check(scenario, run, storage, f"a fault at write {number}, which ended with {outcome}")
    return met
