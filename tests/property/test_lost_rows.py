"""Random lives of a partitioned table of a lake table that was there before, in which rows without offsets are deleted,
changed, dropped with their partition and brought back, while another engine writes files again: changes between any two
versions lead from the rows of one to those of the other, and a rollback gives the rows of an older one.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from faults.sim import SimClock, sim_world
from interop.foreign_engines import ENGINES
from interop.foreign_iceberg import row
from kit.change_replay import changes, replayed, row_of, version
from kit.row_replacement import replace_rows
from kit.tables import tier
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.lake.tiering import job
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import drop_partition

STEPS = 14


class Life:
    """One table, and the rows of each of its versions that was looked at."""

    def __init__(self, seed: int, engine: str) -> None:
        self.random = random.Random(seed)
        self.world = sim_world(seed, SimClock())
        storage = MemoryStorage(self.world)
        self.engine = ENGINES[engine](storage, self.world)
        self.table = self.engine.adopted([self.random.randrange(8) for _ in range(10)], by_region=True)
        self.rows = Counter(row_of(one) for one in self.table.to_arrow().to_pylist())
        self.done: list[str] = []
        self.versions = {self.version: self.rows}
        self.written_again: int | None = None
        """The newest version that may have other files than the lake of now: a rollback to it may be refused."""
        self.untold: int | None = None
        """The newest version behind which a snapshot lacks rows of more than one commit: changes may be refused."""
        self.next_id = 100
        self.append()
        self.look()

    @property
    def version(self) -> int:
        return self.table.refresh().version

    def run(self) -> None:
        steps = (
            (self.append, 3),
            (self.delete, 4),
            (self.change, 2),
            (self.drop, 3),
            (self.drop_and_die, 1),
            (self.tier, 3),
            (self.tier_and_die, 1),
            (self.rewrite, 2),
            (self.go_back, 3),
        )
        for _ in range(STEPS):
            (step,) = self.random.choices([s for s, _ in steps], [weight for _, weight in steps])
            self.done.append(step.__name__)
            step()
            self.look()
        self.tier()
        assert Counter(row_of(one) for one in self.table.lake.to_arrow().to_pylist()) == self.rows, self.done

    def look(self) -> None:
        found = Counter(row_of(one) for one in self.table.to_arrow().to_pylist())
        assert found == self.rows, f"the table after {self.done}"
        now = self.version
        self.versions[now] = found
        for first in {max(number for number in self.versions if number <= now - (now > 1)), self.some_version()}:
            if self.untold is not None and first <= self.untold:
                self.refused(first, now)
            else:
                shown = changes(self.table, first + 1, now)
                assert replayed(self.versions[first], shown) == found, f"from {first} to {now} after {self.done}"

    def refused(self, first: int, now: int) -> None:
        """It is right, or refused."""
        try:
            shown = changes(self.table, first + 1, now)
        except InvalidOptionError as error:
            assert "that no record names" in str(error), self.done  # noqa: PT017 - any other is a failure
            return
        assert replayed(self.versions[first], shown) == self.versions[now], f"from {first} to {now} after {self.done}"

    def some_version(self) -> int:
        return self.random.choice(list(self.versions))

    def some_id(self) -> int:
        return int(self.random.choice([one[0] for one in self.rows.elements()] or ["0"]))

    def append(self) -> None:
        self.next_id += 2
        numbers = [self.next_id, self.next_id + 1, self.some_id()]
        self.table.append([row(number) for number in numbers])
        self.rows = self.rows + Counter(row_of(row(number)) for number in numbers)

    def without(self, wanted: Any) -> None:
        self.rows = Counter({one: number for one, number in self.rows.items() if not wanted(one)})

    def delete(self) -> None:
        number = self.some_id()
        self.table.delete(where=[("id", "=", number)])
        self.without(lambda one: one[0] == repr(number))

    def change(self) -> None:
        number, self.next_id = self.some_id(), self.next_id + 2
        gone = sum(many for one, many in self.rows.items() if one[0] == repr(number))
        replace_rows(self.table, lambda one: one["id"] == number, lambda _: row(self.next_id))
        self.without(lambda one: one[0] == repr(number))
        self.rows = +(self.rows + Counter({row_of(row(self.next_id)): gone}))

    def drop(self) -> None:
        region = self.random.choice(["eu", "us"])
        self.table.drop_partition({"region": region})
        self.without(lambda one: one[1] == repr(region))

    def drop_and_die(self) -> None:
        """The record of the drop is made by a round, which may delete rows too."""
        self.untold = self.version
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drop_partition, "_record_drop", lambda *_: False)
            self.drop()
        tier(self.table)

    def tier(self) -> None:
        tier(self.table)

    def tier_and_die(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(self.table)

    def rewrite(self) -> None:
        if self.engine.ids(self.table):  # pyiceberg warns of an overwrite of nothing
            self.written_again = self.version
            self.engine.rewrite()

    def go_back(self) -> None:
        wanted = self.some_version()
        may_refuse = [number for number in (self.written_again, self.untold) if number is not None]
        try:
            self.table.rollback_to_version(wanted)
        except InvalidOptionError as error:
            why = f"{error} after {self.done}"
            assert any(wanted <= number for number in may_refuse), why
            return
        self.rows = self.versions[wanted]
        assert version(self.table, self.version) == self.rows, self.done


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(2))
def test_lost_rows_are_reported_in_random_lives(seed, engine):
    Life(seed, engine).run()


@pytest.mark.long
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(2, 40))
def test_lost_rows_are_reported_in_more_random_lives(seed, engine):
    Life(seed, engine).run()
