"""SIGKILL against two writers, a tierer and a reader, on a local disk and without a JVM."""

from __future__ import annotations

import pytest

from kills.keyed_rounds import keyed_crew_kill_rounds, keyed_kill_rounds
from kills.rounds import ACKNOWLEDGED_MIN, crew_kill_rounds, kill_rounds


@pytest.mark.long
def test_ten_rounds_of_kills_lose_no_acknowledged_row(tmp_path):
    figures = kill_rounds(tmp_path, rounds=10, seed=1)
    print(figures)  # noqa: T201
    assert figures.acknowledged > ACKNOWLEDGED_MIN
    assert figures.reads > 0


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.long)])
def test_kills_of_processes_with_several_writers_lose_no_row(tmp_path, rounds):
    figures = crew_kill_rounds(tmp_path, rounds=rounds, seed=rounds)
    print(figures)  # noqa: T201
    assert figures.acknowledged > ACKNOWLEDGED_MIN
    assert figures.shared_records > 0


@pytest.mark.long
def test_ten_rounds_of_kills_of_keyed_writers_lose_no_change(tmp_path, own_cache):
    figures = keyed_kill_rounds(tmp_path, rounds=10, seed=1)
    print(figures)  # noqa: T201
    assert figures.acknowledged > ACKNOWLEDGED_MIN
    assert figures.reads > 0


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.long)])
def test_kills_of_processes_with_several_keyed_writers_lose_no_change(tmp_path, own_cache, rounds):
    figures = keyed_crew_kill_rounds(tmp_path, rounds=rounds, seed=rounds)
    print(figures)  # noqa: T201
    assert figures.acknowledged > ACKNOWLEDGED_MIN
    assert figures.shared_records > 0
