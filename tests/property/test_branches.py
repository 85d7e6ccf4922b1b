"""Random histories of a table and its branches against dictionaries: a branch is seen by nobody before it is published,
then all of it is; a publication that is refused changes nothing; nothing is left once all are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from kit.machines import DAY_MS, WarehouseMachine
from kit.tables import tier
from streamhouse_spark import CommitConflictError, Table
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

BRANCHES_MAX = 3
WHICH = st.integers(0, BRANCHES_MAX)
IDS = st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True)
PROPERTIES = {"table.log.ttl": "3650d"}
LAKE = Schema(NestedField(1, "id", IntegerType(), required=True), NestedField(2, "v", IntegerType()))


class Branches(WarehouseMachine):
    """The table is called ``main``. A row is (id, v): of a table without a key v is never used twice."""

    keyed = False
    own_prefixes: Sequence[str] = ("tables/", "lake/")
    """Begin the names of all files that go with the table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, set[tuple[int, int]]] = {"main": set()}
        self.begun: dict[str, set[tuple[int, int]]] = {}
        """Branch → the rows with which it began."""
        self.touched: dict[str, set[int]] = {}
        """Branch → ids that it wrote or deleted since; and those that the table did, under ``main <branch>``."""
        self.only_added: dict[str, bool] = {}
        self.is_emptied: dict[str, bool] = {}
        self.moved: dict[str, bool] = {}

    def main(self) -> Table:
        return self.warehouse().table("d.t")

    def pick(self, which: int) -> str:
        names = sorted(self.rows)
        return names[which % len(names)]

    def opened(self, name: str) -> Table:
        return self.main() if name == "main" else self.warehouse().table(f"d.t$branch_{name}")

    def note(self, name: str, ids: set[int], *, added: bool, emptied: bool = False) -> None:
        if name == "main":
            for branch in self.begun:
                self.touched[f"main {branch}"] |= ids
                self.moved[branch] = True
        else:
            self.touched[name] |= ids
            self.only_added[name] &= added
            self.is_emptied[name] |= emptied

    @initialize(buckets=st.integers(1, 2))
    def begin(self, buckets: int) -> None:
        how = {"primary_key": ["id"]} if self.keyed else {}
        self.warehouse().create_table("d.t", "id INT NOT NULL, v INT", buckets=buckets, properties=PROPERTIES, **how)

    @rule(which=WHICH, ids=IDS)
    def write(self, which: int, ids: list[int]) -> None:
        name = self.pick(which)
        self.number += 1
        table, rows = self.opened(name), [{"id": i, "v": self.number} for i in ids]
        (table.upsert if self.keyed else table.append)(rows)
        before = {row for row in self.rows[name] if not self.keyed or row[0] not in ids}
        self.rows[name] = before | {(i, self.number) for i in ids}
        self.note(name, set(ids), added=True)

    @rule(which=WHICH, ids=IDS)
    def delete(self, which: int, ids: list[int]) -> None:
        name = self.pick(which)
        table = self.opened(name)
        gone = {row for row in self.rows[name] if row[0] in ids}
        if self.keyed:
            table.delete([{"id": i} for i in ids])
        else:
            table.delete(where=[("id", "in", ids)])
        self.rows[name] -= gone
        if gone:
            self.note(name, {row[0] for row in gone}, added=not (gone & self.begun.get(name, gone)))

    @rule(which=WHICH, ids=IDS)
    def overwrite(self, which: int, ids: list[int]) -> None:
        name = self.pick(which)
        self.number += 1
        table = self.opened(name)
        had_rows = table.state.has_adopted_rows_alone or not table.state.begins_at(table.state.ends)
        table.overwrite([{"id": i, "v": self.number} for i in ids])
        old, self.rows[name] = self.rows[name], {(i, self.number) for i in ids}
        self.note(name, {row[0] for row in old} | set(ids), added=not had_rows, emptied=had_rows)

    @rule(which=WHICH)
    def merge(self, which: int) -> None:
        table = self.opened(self.pick(which))
        compact_inline_rows(table)
        compact_small_segments(table)

    @rule()
    def tier(self) -> None:
        tier(self.main())

    @rule(days=st.integers(0, 3))
    def upkeep(self, days: int) -> None:
        """Clean, compact and expire, after some days."""
        self.clock.advance(days * DAY_MS)
        self.maintain(self.main())
        self.warehouse().clean_dropped()

    @rule()
    def branch(self) -> None:
        if len(self.rows) > BRANCHES_MAX:
            return
        self.number += 1
        name = f"b{self.number}"
        self.main().create_branch(name)
        self.rows[name], self.begun[name] = set(self.rows["main"]), set(self.rows["main"])
        self.touched[name], self.touched[f"main {name}"] = set(), set()
        self.only_added[name], self.is_emptied[name], self.moved[name] = True, False, False

    def forget(self, name: str) -> None:
        for known in (self.rows, self.begun, self.touched, self.only_added, self.is_emptied, self.moved):
            known.pop(name)  # type: ignore[attr-defined]

    @rule(which=WHICH)
    def publish(self, which: int) -> None:
        if (name := self.pick(which)) == "main":
            return
        both = self.touched[name] & self.touched[f"main {name}"]
        may = not self.moved[name] or (not self.is_emptied[name] and not both if self.keyed else self.only_added[name])
        try:
            self.main().fast_forward(name)
        except CommitConflictError:
            assert self.moved[name], "nobody changed the table"
            assert not may or self.keyed, "it only added rows"
            return
        assert may, "others changed what it depends on"
        begun, made, now = self.begun[name], self.rows[name], self.rows["main"]
        self.rows["main"] = set(made) if not self.moved[name] else (now - (begun - made)) | (made - begun)
        net = (begun | made) if self.is_emptied[name] else begun ^ made
        is_emptied = self.is_emptied[name]
        self.forget(name)
        if net or is_emptied:
            self.note("main", {row[0] for row in net}, added=False)
        again = self.main().fast_forward(name)
        assert again.rows_written is None

    @rule(which=WHICH)
    def drop(self, which: int) -> None:
        if (name := self.pick(which)) != "main":
            self.main().drop_branch(name)
            self.forget(name)

    @invariant()
    def each_has_its_rows(self) -> None:
        for name, expected in self.rows.items():
            rows = self.opened(name).to_arrow()
            found = list(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
            assert sorted(found) == sorted(expected), name
        assert {one.name for one in self.main().branches()} == self.rows.keys() - {"main"}

    def teardown(self) -> None:
        self.warehouse().drop_table("d.t", if_exists=True)
        for _ in range(8):
            self.clock.advance(2 * DAY_MS)
            self.warehouse().clean_dropped()
        left = [i.key for prefix in self.own_prefixes for i in self.storage.list(prefix) if "/floors/" not in i.key]
        assert left == []


class BranchesByKey(Branches):
    keyed = True


class AdoptedBranches(Branches):
    """Of a table that was made of a lake table with rows, which stays when the table goes."""

    own_prefixes = ("tables/",)

    @initialize(ids=st.lists(st.integers(0, 20), max_size=6, unique=True))
    def begin(self, ids: list[int]) -> None:
        ours = self.warehouse()
        ours.create_database("d")
        lake = FileCatalog(self.storage, world=ours.world).create_table("d.t", LAKE, properties={"format-version": "2"})
        for some in (ids[:3], ids[3:]):
            if some:
                lake.append(pa.table({"id": some, "v": [0] * len(some)}, schema=lake.schema().as_arrow()))
        ours.adopt_table("d.t", primary_key=["id"] if self.keyed else (), properties=PROPERTIES)
        self.rows["main"] = {(number, 0) for number in ids}


class AdoptedBranchesByKey(AdoptedBranches):
    keyed = True


KINDS = [Branches, BranchesByKey, AdoptedBranches, AdoptedBranchesByKey]


@pytest.mark.parametrize("num_examples", [3, pytest.param(150, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS, ids=["log", "by key", "adopted", "adopted by key"])
def test_random_histories_of_branches_agree_with_dictionaries(kind, num_examples, own_cache):
    run_state_machine_as_test(kind, settings=settings(max_examples=num_examples, stateful_step_count=25))
