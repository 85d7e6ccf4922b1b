"""Random histories of a table, with and without a primary key, against a bag of rows: each statement that changes rows,
rollbacks, and maintenance. Each version that is kept has its rows, and changes lead from one version to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from kit.change_replay import Row, changes, replayed
from kit.changelog_replay import folded
from kit.machines import DAY_MS, WarehouseMachine
from kit.row_replacement import replace_rows
from kit.tables import add_rows, require_verified, tier, trim_tiered
from streamhouse_spark import InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.staging import INLINE_BYTES_MAX
from streamhouse_spark.table.system_views import open_view
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

IDS = st.integers(0, 6)
DAYS = st.sampled_from([0, 1, 2, None])
PAIRS = st.lists(st.tuples(IDS, DAYS), max_size=3)
NO_LONGER_KEPT = (SnapshotExpiredError, OffsetsTrimmedError)
LIMITS = settings(stateful_step_count=25, deadline=None, phases=[Phase.generate])
"""A failing history is printed as it is: shrinking it takes longer than reading it."""
has_lake = precondition(lambda self: self.lake is not None)
is_log_table = precondition(lambda self: not self.keyed)
is_partitioned = precondition(lambda self: self.partition_by != "")


class RowHistories(WarehouseMachine):
    """A row is (id, day, v), and no two that are written have the same v. The primary key is (id, day), if any.

    Statements run in a process that lives until it is restarted; checks read in a new one.
    """

    lake: ClassVar[str | None] = "iceberg"
    keyed: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: Counter[Row] = Counter()
        self.versions: dict[int, Counter[Row]] = {}
        self.tags: dict[str, Counter[Row]] = {}
        self.partition_by = ""

    def made(self, pairs: list[tuple[int, int | None]]) -> list[dict[str, Any]]:
        rows = [
            {"id": i, "day": day or 0 if self.keyed else day, "v": self.number + at}
            for at, (i, day) in enumerate(pairs)
        ]
        self.number += len(rows)
        return rows

    def without(self, gone: Callable[[Row], bool]) -> Counter[Row]:
        return Counter({row: times for row, times in self.rows.items() if not gone(row)})

    def with_added(self, old: Counter[Row], rows: list[dict[str, Any]]) -> Counter[Row]:
        """Return the ``old`` rows and the new ones, of which the last of a primary key replaces the others."""
        if not self.keyed:
            return old + bag(rows)
        by_key = {row[:2]: row for row in [*old, *((row["id"], row["day"], row["v"]) for row in rows)]}
        return Counter(by_key.values())

    def partition_of(self, day: int | None) -> int | None:
        return day if day is None or self.partition_by == "day" else day - day % 2

    @initialize(buckets=st.integers(1, 3), partition_by=st.sampled_from(["day", "truncate(2, day)", ""]))
    def begin(self, buckets: int, partition_by: str) -> None:
        if self.lake == "paimon" and partition_by != "":
            partition_by = "day"  # it has no partitions by transforms
        self.partition_by = partition_by
        properties = {"table.log.ttl": "3650d", "table.datalake.enabled": str(self.lake is not None).lower()}
        self.table = self.warehouse().create_table(
            "d.t",
            "id BIGINT, day INT, v BIGINT",
            partition_by=[partition_by] if partition_by else [],
            primary_key=["id", "day"] if self.keyed else [],
            buckets=buckets,
            properties=properties | ({"table.datalake.format": self.lake} if self.lake else {}),
        )

    @rule()
    def restart(self) -> None:
        close_tablets()
        self.table = self.warehouse().table("d.t")

    # -- statements ---------------------------------------------------------------------------------------------------

    @rule(pairs=PAIRS)
    def add(self, pairs: list[tuple[int, int | None]]) -> None:
        rows = self.made(pairs)
        add_rows(self.table, rows)
        self.rows = self.with_added(self.rows, rows)

    @rule(first=IDS, width=st.integers(1, 3))
    def delete(self, first: int, width: int) -> None:
        left = self.without(lambda row: first <= row[0] < first + width)
        if self.keyed:
            self.table.delete([(i, day) for i in range(first, first + width) for day in (0, 1, 2)])
        else:
            where = [("id", ">=", first), ("id", "<", first + width)]
            assert self.table.delete(where=where) == self.rows.total() - left.total()
        self.rows = left

    @is_log_table
    @rule(old=IDS, new=IDS, pairs=PAIRS, in_objects=st.booleans())
    def merge_into(self, old: int, new: int, pairs: list[tuple[int, int | None]], in_objects: bool) -> None:
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
    def overwrite(self, pairs: list[tuple[int, int | None]]) -> None:
        rows = self.made(pairs)
        self.table.overwrite(rows)
        self.rows = self.with_added(Counter(), rows)

    @is_partitioned
    @rule(day=st.integers(0, 2), pairs=PAIRS)
    def replace_a_day(self, day: int, pairs: list[tuple[int, int | None]]) -> None:
        rows = self.made([(number, day) for number, _ in pairs])
        self.table.overwrite(rows, where=[("day", "=", day)])
        self.rows = self.with_added(self.without(lambda row: row[1] == day), rows)

    @is_log_table
    @rule(end=IDS, pairs=PAIRS)
    def replace_ids(self, end: int, pairs: list[tuple[int, int | None]]) -> None:
        rows = self.made([(number, day) for number, day in pairs if number < end])
        self.table.overwrite(rows, where=[("id", "<", end)])
        self.rows = self.with_added(self.without(lambda row: row[0] < end), rows)

    @is_partitioned
    @rule(pairs=PAIRS)
    def overwrite_partitions(self, pairs: list[tuple[int, int | None]]) -> None:
        rows = self.made(pairs)
        self.table.overwrite_partitions(rows)
        replaced = {self.partition_of(row["day"]) for row in rows}
        self.rows = self.with_added(self.without(lambda row: self.partition_of(row[1]) in replaced), rows)

    @rule()
    def truncate(self) -> None:
        self.table.truncate()
        self.rows = Counter()

    @precondition(lambda self: self.partition_by == "day" and (self.keyed or self.lake is not None))
    @rule(day=st.integers(0, 2))
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

    @precondition(lambda self: self.tags)
    @rule(which=st.integers(0, 20))
    def rollback_to_a_tag(self, which: int) -> None:
        name = sorted(self.tags)[which % len(self.tags)]
        assert bag(self.table.read_version(name).to_pylist()) == self.tags[name], "a tag keeps its rows"
        with suppress(*NO_LONGER_KEPT, InvalidOptionError):
            self.table.rollback_to_version(name)
            self.rows = self.tags[name]

    # -- maintenance, which changes no row ----------------------------------------------------------------------------

    @has_lake
    @rule()
    def tier(self) -> None:
        tier(self.table)
        assert bag(self.table.lake.to_arrow().to_pylist()) == self.rows
        require_verified(self.table)

    @rule()
    def merge_segments(self) -> None:
        compact_inline_rows(self.table)
        compact_small_segments(self.table)

    @has_lake
    @rule()
    def trim(self) -> None:
        trim_tiered(self.table)

    @rule(days=st.integers(0, 3))
    def clean(self, days: int) -> None:
        self.clock.advance(days * DAY_MS)
        self.table.maintain()

    @precondition(lambda self: self.table.refresh().recorded_lake is not None)
    @rule(work=st.sampled_from(["compact", "purge", "expire", "orphans", "retier"]))
    def keep_the_lake(self, work: str) -> None:
        table = self.table
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
    def every_process_reads_the_rows(self) -> None:
        table = self.warehouse().table("d.t")
        for reader in (table, self.table):
            assert bag(reader.to_arrow().to_pylist()) == self.rows
        if not self.keyed:
            assert table.state.num_rows == self.rows.total()
        stored = as_stored(table.state)
        assert stored.deleted == table.state.deleted
        assert as_stored(stored) == stored
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
        state = table.refresh()
        if self.keyed and all(log.start == 0 for log in state.buckets.values()):
            assert bag(list(folded(open_view(table, "changelog"), ["id", "day"]).values())) == self.rows


def bag(rows: list[dict[str, Any]]) -> Counter[Row]:
    return Counter((row["id"], row["day"], row["v"]) for row in rows)


def texts(rows: Counter[Row]) -> Counter[Row]:
    """Rows as `changes_replayed` has them."""
    return Counter({tuple(map(repr, row)): times for row, times in rows.items()})


def kind_of(lake: str | None, keyed: bool) -> Any:
    name = f"{'keyed' if keyed else 'log'}, {lake or 'no lake'}"
    return pytest.param(type("Histories", (RowHistories,), {"lake": lake, "keyed": keyed}), id=name)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("num_examples", [5, pytest.param(150, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kind", [kind_of(lake, keyed) for lake in ("iceberg", "paimon", None) for keyed in (False, True)]
)
def test_random_statements_agree_with_a_bag_of_rows(kind, num_examples):
    run_state_machine_as_test(kind, settings=settings(LIMITS, max_examples=num_examples))
