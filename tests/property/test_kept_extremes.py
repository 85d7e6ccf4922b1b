"""Random histories of a view with smallest and largest values, on hosts that keep them, beside the answer."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from faults.extreme_refresh import answer, compiled, groups_of, made, opened, refresh, shown, with_room
from kit.warehouses import new_store
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.views import min_max_cache

OTHER = compiled("SELECT k, min(v) AS lo, max(v) AS hi FROM (SELECT v, k FROM db.t) s GROUP BY k")
"""The same query for rows, and another text: what was kept for the one does not count for the other."""


def other_host(folders: list[Path], chance: random.Random) -> None:
    """Go on where another host was left."""
    close_tablets()
    os.environ["STREAMHOUSE_CACHE_DIR"] = str(chance.choice(folders))


def change(chance: random.Random, source, ids: int = 40) -> None:
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.5:
            numbers = {chance.randrange(ids) for _ in range(chance.randint(1, 6))}
            values = [None, *range(-3, 12)]
            source.upsert([{"id": n, "k": chance.choice([None, 1, 2, 3]), "v": chance.choice(values)} for n in numbers])
        else:
            rows = sorted(source.to_arrow().to_pylist(), key=lambda row: (row["v"] is None, row["v"]))
            some = rows[: chance.randint(0, 6)] if chance.random() < 0.5 else rows[len(rows) - chance.randint(0, 6) :]
            source.delete([row["id"] for row in some])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 40))])
def test_the_view_is_the_answer(seed, tmp_path, monkeypatch, own_cache):
    with_room(monkeypatch, chance_of(seed).choice([1, 2, 3, 8]))
    if seed % 2 == 0:
        in_shares(monkeypatch, 2)
    computed = history(chance_of(seed), tmp_path, monkeypatch)
    assert len(computed) > 10


def in_shares(patched: pytest.MonkeyPatch, num_shares: int) -> None:
    """List groups in shares, as those of large sources are."""
    patched.setattr(min_max_cache, "SMALL_ROWS", -1)
    patched.setattr(min_max_cache, "NUM_SHARES", num_shares)


def test_values_that_have_room_are_not_looked_for(tmp_path, monkeypatch, own_cache):
    """All values of a group have room, so one refresh looks for them, and no other does."""
    with_room(monkeypatch, 20)
    computed = history(random.Random(1), tmp_path, monkeypatch, steps=12, is_calm=True)
    assert sum(1 for number in computed if number) == 1


def chance_of(seed: int) -> random.Random:
    return random.Random(f"extremes {seed}")


def history(chance, tmp_path, monkeypatch, *, steps: int = 30, is_calm: bool = False) -> list[int]:
    folders = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(folders[0]))
    storage = new_store()
    made(storage)
    source, _ = opened(storage, 2)
    source.upsert([{"id": n, "k": chance.choice([None, 1, 2]), "v": n % 9} for n in range(25)])
    computed: list[int] = []
    for number in range(steps):
        change(chance, source)
        event = "" if is_calm else chance.choice(["", "", "", "", "dies", "elsewhere", "lost", "another query"])
        if event == "elsewhere":
            other_host(folders, chance)
        elif event == "lost":
            close_tablets()
            shutil.rmtree(os.environ["STREAMHOUSE_CACHE_DIR"], ignore_errors=True)
        added = {"added": OTHER} if event == "another query" else {}
        computed += refresh(storage, 100 + number, dies=event == "dies", **added)
        view = opened(storage, 3)[1]
        assert shown(view) == answer(groups_of(source))
    close_tablets()
    return computed
