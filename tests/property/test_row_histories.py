"""Random histories of a table without a primary key, against a bag of rows: each statement that changes rows,
rollbacks, and upkeep. Each version that is kept has its rows, and changes lead from one version to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from kit.change_replay import Row, changes, replayed
from kit.machines import DAY_MS, WarehouseMachine
from kit.row_replacement import replace_rows
from kit.tables import tier, trim_tiered
from streamhouse_spark import InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError, Table
from streamhouse_spark.log.staging import INLINE_BYTES_MAX
from streamhouse_spark.write.auto_compaction import merge_inline, merge_small

IDS = st.integers(0, 6)
DAYS = st.integers(0, 2)
PAIRS = st.lists(st.tuples(IDS, DAYS), max_size=3)
NO_LONGER_KEPT = (SnapshotExpiredError, OffsetsTrimmedError)


class RowHistories(WarehouseMachine):
    """A row is (id, day, v), and no two that are written have the same v."""

    lake = "iceberg"

    def __init__(self) -> None:
        super().__init__()
        self.rows: Counter[Row] = Counter()
        self.versions: dict[int, Counter[Row]] = {}
        self.tags: dict[str, Counter[Row]] = {}

    @property
    def table(self) -> Table:
        return self.warehouse().table("d.t")

    def made(self, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
        rows = [{"id": i, "day": day, "v": self.number + at} for at, (i, day) in enumerate(pairs)]
        self.number += len(rows)
        return rows

    def without(self, gone: Callable[[Row], bool]) -> Counter[Row]:
        return Counter({row: times for row, times in self.rows.items() if not gone(row)})

    @initialize(buckets=st.integers(1, 2))
    def begin(self, buckets: int) -> None:
        properties = {"table.datalake.format": self.lake, "table.log.ttl": "3650d"}
        columns = "id BIGINT, day INT, v BIGINT"
        self.warehouse().create_table("d.t", columns, partition_by=["day"], buckets=buckets, properties=properties)

    # -- statements ---------------------------------------------------------------------------------------------------

    @rule(pairs=PAIRS)
    def append(self, pairs: list[tuple[int, int]]) -> None:
        rows = self.made(pairs)
        self.table.append(rows)
        self.rows = self.rows + bag(rows)

    @rule(number=IDS)
    def delete(self, number: int) -> None:
        left = self.without(lambda row: row[0] == number)
        assert self.table.delete(where=[("id", "=", number)]) == self.rows.total() - left.total()
        self.rows = left

    @rule(old=IDS, new=IDS, pairs=PAIRS, in_objects=st.booleans())
    def merge_into(self, old: int, new: int, pairs: list[tuple[int, int]], in_objects: bool) -> None:
        """Update the rows of one id, delete those of the next, and add others."""
        added, self.number = self.made(pairs), self.number + 1
        changed = {"id": new, "v": self.number}
        replace_rows(
            self.table,
            lambda row: row["id"] in (old, old + 1),
            lambda row: row | changed if row["id"] == old else None,
            added=added,
            inline_bytes_max=0 if in_objects else INLINE_BYTES_MAX,
        )
        updated = Counter[Row]()
        for row, times in self.rows.items():
            if row[0] == old:
                updated[new, row[1], self.number] += times
        self.rows = self.without(lambda row: row[0] in (old, old + 1)) + updated + bag(added)

    @rule(pairs=PAIRS)
    def overwrite(self, pairs: list[tuple[int, int]]) -> None:
        rows = self.made(pairs)
        self.table.overwrite(rows)
        self.rows = bag(rows)

    @rule(day=DAYS, pairs=PAIRS)
    def replace_where(self, day: int, pairs: list[tuple[int, int]]) -> None:
        rows = self.made([(number, day) for number, _ in pairs])
        self.table.overwrite(rows, where=[("day", "=", day)])
        self.rows = self.without(lambda row: row[1] == day) + bag(rows)

    @rule(pairs=PAIRS)
    def overwrite_partitions(self, pairs: list[tuple[int, int]]) -> None:
        rows = self.made(pairs)
        self.table.overwrite_partitions(rows)
        self.rows = self.without(lambda row: row[1] in {day for _, day in pairs}) + bag(rows)

    @rule()
    def truncate(self) -> None:
        self.table.truncate()
        self.rows = Counter()

    @rule(day=DAYS)
    def drop_partition(self, day: int) -> None:
        self.table.drop_partition({"day": day})
        self.rows = self.without(lambda row: row[1] == day)

    @rule(back=st.integers(1, 8))
    def rollback(self, back: int) -> None:
        version = sorted(self.versions)[-back:][0]
        with suppress(*NO_LONGER_KEPT, InvalidOptionError):  # a dropped partition whose rows are gone
            self.table.rollback_to_version(version)
            self.rows = self.versions[version]

    @rule()
    def tag(self) -> None:
        self.number += 1
        self.table.create_tag(f"tag{self.number}")
        self.tags[f"tag{self.number}"] = self.rows

    @rule(which=st.integers(0, 20))
    def rollback_to_a_tag(self, which: int) -> None:
        if not self.tags:
            return
        name = sorted(self.tags)[which % len(self.tags)]
        assert bag(self.table.read_version(name).to_pylist()) == self.tags[name], "a tag keeps its rows"
        with suppress(*NO_LONGER_KEPT, InvalidOptionError):
            self.table.rollback_to_version(name)
            self.rows = self.tags[name]

    # -- upkeep, which changes no row ---------------------------------------------------------------------------------

    @rule()
    def tier(self) -> None:
        tier(self.table)
        assert bag(self.table.lake.to_arrow().to_pylist()) == self.rows

    @rule()
    def merge_segments(self) -> None:
        merge_inline(self.table)
        merge_small(self.table)

    @rule()
    def trim(self) -> None:
        trim_tiered(self.table)

    @rule(days=st.integers(0, 3))
    def clean(self, days: int) -> None:
        self.clock.advance(days * DAY_MS)
        self.table.maintain()

    @rule(work=st.sampled_from(["compact", "purge", "expire", "orphans", "retier"]))
    def keep_the_lake(self, work: str) -> None:
        table = self.table
        if table.refresh().recorded_lake is None:
            return
        match work:
            case "compact" | "purge":
                table.lake.compact(purge=work == "purge")
            case "expire":
                table.lake.expire_snapshots(retain_last=1, older_than_ms=self.clock.now_ms())
            case "orphans":
                self.clock.advance(4 * DAY_MS)
                table.lake.remove_orphan_files()
            case "retier":
                with suppress(*NO_LONGER_KEPT):  # the log no longer has all rows
                    table.retier()

    # -- checks -------------------------------------------------------------------------------------------------------

    @invariant()
    def it_has_its_rows(self) -> None:
        table = self.table
        assert bag(table.to_arrow().to_pylist()) == self.rows
        assert table.state.num_rows == self.rows.total()
        self.versions[table.state.version] = self.rows

    def teardown(self) -> None:
        if not self.versions:
            return
        table, newest = self.table, max(self.versions)
        for version, rows in self.versions.items():
            with suppress(*NO_LONGER_KEPT):
                assert bag(table.read_version(version).to_pylist()) == rows
            for is_net in (False, True):
                with suppress(*NO_LONGER_KEPT, InvalidOptionError):  # rows that went without a name
                    found = changes(table, version + 1, newest, is_net=is_net)
                    assert replayed(texts(rows), found) == texts(self.rows), (version, is_net)


class PaimonRowHistories(RowHistories):
    lake = "paimon"


def bag(rows: list[dict[str, Any]]) -> Counter[Row]:
    return Counter((row["id"], row["day"], row["v"]) for row in rows)


def texts(rows: Counter[Row]) -> Counter[Row]:
    """Rows as `changes_replayed` has them."""
    return Counter({tuple(map(repr, row)): times for row, times in rows.items()})


@pytest.mark.parametrize("num_examples", [5, pytest.param(250, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [RowHistories, PaimonRowHistories], ids=["iceberg", "paimon"])
def test_random_statements_on_log_tables_agree_with_a_bag_of_rows(kind, num_examples):
    run_state_machine_as_test(kind, settings=settings(max_examples=num_examples, stateful_step_count=25, deadline=None))
