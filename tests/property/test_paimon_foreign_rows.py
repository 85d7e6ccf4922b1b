"""Random lives of a table of a Paimon append table that was there before, to which pypaimon writes all the time: table
and lake have the rows of a plain multiset, whoever deletes or changes which of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from interop.foreign_paimon import BUCKETS, BY_REGION, NAME, adopted, appended, kept, paimon, rewritten
from property.foreign_life import Life
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.table import Table

SOAK_SEEDS = range(100, 100 + int(os.environ.get("STREAMHOUSE_SOAK_ROUNDS", "0")))


class Pypaimon:
    """See `Others`."""

    def adopted(self, storage: Storage, world: World, numbers: Sequence[int], chance: random.Random) -> Table:
        self.storage = storage
        spec = chance.choice([{}, BY_REGION, BUCKETS, {**BY_REGION, **BUCKETS}])
        return adopted(storage, world, numbers, spec=spec)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        appended(self.storage, rows)

    def rewrite(self) -> None:
        rewritten(self.storage)

    def delete(self, number: int) -> None:
        kept(self.storage, lambda one: one["id"] != number)

    def read(self) -> list[dict[str, Any]]:
        return paimon(self.storage).read(NAME)


@pytest.mark.parametrize("seed", range(2))
def test_lives(seed):
    Life(seed, Pypaimon()).run()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
def test_more_lives(seed):
    Life(seed, Pypaimon()).run()


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_many_lives(seed):
    Life(seed, Pypaimon()).run()
