"""Random histories of tables and their clones against dictionaries: nothing that one of them reads is ever deleted, and
nothing is left once all are gone.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from kit.machines import DAY_MS, WarehouseMachine
from kit.tables import tier
from streamhouse_spark import SnapshotExpiredError, Table

TABLES_MAX = 5
WHICH = st.integers(0, TABLES_MAX - 1)
IDS = st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True)
PROPERTIES = {"table.log.ttl": "3650d"}


class Clones(WarehouseMachine):
    """One table at first; a rule picks one of those that are there."""

    keyed = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, dict[int, int]] = {}

    def pick(self, which: int) -> tuple[str, Table] | None:
        if not self.rows:
            return None
        name = sorted(self.rows)[which % len(self.rows)]
        return name, self.warehouse().table(name)

    @initialize(buckets=st.integers(1, 2))
    def begin(self, buckets: int) -> None:
        how = {"primary_key": ["id"]} if self.keyed else {}
        self.warehouse().create_table("d.t0", "id INT NOT NULL, v INT", buckets=buckets, properties=PROPERTIES, **how)
        self.rows["d.t0"] = {}

    @rule(which=WHICH, ids=IDS)
    def write(self, which: int, ids: list[int]) -> None:
        if (found := self.pick(which)) is None:
            return
        name, table = found
        self.number += 1
        new = [i for i in ids if self.keyed or i not in self.rows[name]]
        rows = [{"id": i, "v": self.number} for i in new]
        (table.upsert if self.keyed else table.append)(rows)
        self.rows[name].update((i, self.number) for i in new)

    @rule(which=WHICH, ids=IDS)
    def delete(self, which: int, ids: list[int]) -> None:
        if (found := self.pick(which)) is None:
            return
        name, table = found
        if self.keyed:
            table.delete([{"id": i} for i in ids])
        else:
            table.delete(where=[("id", "in", ids)])
        self.rows[name] = {i: v for i, v in self.rows[name].items() if i not in ids}

    @rule(which=WHICH)
    def truncate(self, which: int) -> None:
        if (found := self.pick(which)) is not None:
            found[1].truncate()
            self.rows[found[0]] = {}

    @rule(which=WHICH)
    def tier(self, which: int) -> None:
        if (found := self.pick(which)) is not None:
            tier(found[1])

    @rule(which=WHICH, days=st.integers(0, 3))
    def upkeep(self, which: int, days: int) -> None:
        """Clean, compact and expire, after some days."""
        self.clock.advance(days * DAY_MS)
        if (found := self.pick(which)) is not None:
            self.maintain(found[1])
        self.warehouse().clean_dropped()

    @rule(which=WHICH)
    def clone(self, which: int) -> None:
        if (found := self.pick(which)) is None or len(self.rows) >= TABLES_MAX:
            return
        self.number += 1
        name = f"d.t{self.number}"
        self.warehouse().clone_table(found[0], name)
        self.rows[name] = dict(self.rows[found[0]])

    @rule(which=WHICH)
    def clone_an_older_version(self, which: int) -> None:
        if (found := self.pick(which)) is None or len(self.rows) >= TABLES_MAX:
            return
        name, table = found
        then, version = dict(self.rows[name]), table.refresh().version
        self.write(sorted(self.rows).index(name), [29, 30])
        self.number += 1
        with suppress(SnapshotExpiredError):
            self.warehouse().clone_table(name, f"d.t{self.number}", version=version)
            self.rows[f"d.t{self.number}"] = then

    @rule(which=WHICH)
    def drop(self, which: int) -> None:
        if (found := self.pick(which)) is not None and len(self.rows) > 1:
            self.warehouse().drop_table(found[0])
            del self.rows[found[0]]

    @invariant()
    def each_has_its_rows(self) -> None:
        warehouse = self.warehouse()
        for name, expected in self.rows.items():
            rows = warehouse.table(name).to_arrow()
            assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected, name
            assert rows.num_rows == len(expected), name

    def teardown(self) -> None:
        for name in list(self.rows):
            self.warehouse().drop_table(name)
        for _ in range(4 * TABLES_MAX):
            self.clock.advance(2 * DAY_MS)
            self.warehouse().clean_dropped()
        left = [i.key for prefix in ("tables/", "lake/") for i in self.storage.list(prefix) if "/floors/" not in i.key]
        assert left == []


class ClonesByKey(Clones):
    keyed = True


@pytest.mark.parametrize("num_examples", [3, pytest.param(150, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [Clones, ClonesByKey], ids=["log", "by key"])
def test_random_histories_of_clones_agree_with_dictionaries(kind, num_examples, own_cache):
    run_state_machine_as_test(kind, settings=settings(max_examples=num_examples, stateful_step_count=25))
