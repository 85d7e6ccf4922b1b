"""Random lives of a table of an Iceberg table that was there before, to which another engine writes all the time: table
and lake have the rows of a plain multiset, whoever deletes or changes which of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from interop.foreign_iceberg import BY_REGION, adopted, appended, lake_of, rewritten
from property.foreign_life import Life
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.table import Table

SOAK_SEEDS = range(100, 100 + int(os.environ.get("STREAMHOUSE_SOAK_ROUNDS", "0")))


class Pyiceberg:
    """See `Others`."""

    def adopted(self, storage: Storage, world: World, numbers: Sequence[int], chance: random.Random) -> Table:
        self.at = (storage, world)
        return adopted(storage, world, numbers, spec=BY_REGION if chance.random() < 0.5 else None)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        appended(*self.at, rows)

    def rewrite(self) -> None:
        rewritten(*self.at)

    def delete(self, number: int) -> None:
        lake_of(*self.at).delete(f"id = {number}")

    def read(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = lake_of(*self.at).scan().to_arrow().to_pylist()
        return found


@pytest.mark.parametrize("seed", range(2))
def test_lives(seed):
    Life(seed, Pyiceberg()).run()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
def test_more_lives(seed):
    Life(seed, Pyiceberg()).run()


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_many_lives(seed):
    Life(seed, Pyiceberg()).run()
