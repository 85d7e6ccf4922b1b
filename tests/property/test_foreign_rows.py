"""Random lives of an adopted table, to which another engine writes all the time: table and lake have the rows of a
plain multiset, whoever deletes or changes them.
"""

from __future__ import annotations

import os

import pytest

from interop.foreign_engines import ENGINES
from property.foreign_life import Life

SOAK_SEEDS = range(100, 100 + int(os.environ.get("STREAMHOUSE_SOAK_ROUNDS", "0")))
pytestmark = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.parametrize("seed", range(2))
def test_table_and_lake_match_a_multiset(seed, engine):
    Life(seed, ENGINES[engine]).run()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
def test_table_and_lake_match_a_multiset_in_more_lives(seed, engine):
    Life(seed, ENGINES[engine]).run()


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_table_and_lake_match_a_multiset_in_many_lives(seed, engine):
    Life(seed, ENGINES[engine]).run()
