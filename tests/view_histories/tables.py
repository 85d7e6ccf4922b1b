"""The sources of views beside a model of their rows at each version, and what may happen to them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from kit.tables import tier
from streamhouse_spark import OffsetRange, Table
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log.segments.metadata_columns import BUCKET, LOG_OFFSET
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.offset_scan import plan_ranges
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.views.step_planning import first_offsets
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from view_histories.grammar import Kinds
from view_histories.house import DATABASE, House

Row = Mapping[str, Any]
Rows = tuple[Row, ...]
HOUR_MS = 3_600_000
LOG = "id BIGINT NOT NULL, cust INT, amount DECIMAL(12,2), qty INT, at TIMESTAMP, day INT"
KEYED = "id BIGINT, cust INT, amount DOUBLE, note STRING, day INT"
LOG_KINDS: Kinds = {"id": "int", "cust": "int", "amount": "dec", "qty": "int", "at": "ts", "day": "int"}
KEYED_KINDS: Kinds = {"id": "int", "cust": "int", "amount": "dbl", "note": "text", "day": "int"}
NOT_TO_BE = (InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError, CommitConflictError)
"""Reasons for which something cannot be done, so that nothing changes."""


class Source:
    """A table and its model. Each thing done to it is one step of others, who have no part in faults."""

    def __init__(self, house: House, rng: Random, name: str) -> None:
        self.house, self.name = house, f"{DATABASE}.{name}_{house.seed}"
        self.is_keyed = name == "k"
        lake = rng.choice(["iceberg", "iceberg", "iceberg", "paimon", ""])
        self._properties = {"table.datalake.enabled": "true" if lake else "false", "table.log.ttl": "1h"}
        if lake:
            self._properties["table.datalake.format"] = lake
        if self.is_keyed and rng.random() < 0.2:
            self._properties["table.changelog.retention"] = "30d"
        elif self.is_keyed and rng.random() < 0.1:
            self._properties["table.changelog.image"] = "WAL"
        self.buckets = rng.choice([1, 2, 3])
        self.is_partitioned = not self.is_keyed and rng.random() < 0.4
        self.has_lake = bool(lake)
        self.rows: Rows = ()
        self.added: list[str] = []
        self._versions: dict[tuple[str, int], Rows] = {}
        self._places: dict[str, dict[tuple[int, int], Row]] = {}
        self._bounds: dict[tuple[str, int], tuple[Mapping[int, int], Mapping[int, int]]] = {}
        self._make()

    @property
    def kinds(self) -> Kinds:
        return KEYED_KINDS if self.is_keyed else LOG_KINDS

    def _make(self) -> None:
        warehouse = self.house.others
        key = {"primary_key": ["id"]} if self.is_keyed else {}
        if self.is_partitioned:
            key = {"partition_by": ["day"]}
        columns = KEYED if self.is_keyed else LOG
        warehouse.create_table(self.name, columns, buckets=self.buckets, properties=self._properties, **key)
        self.rows, self.added = (), []
        self.note()

    @property
    def table(self) -> Table:
        return self.house.others.table(self.name)

    def note(self) -> None:
        """Remember the rows as those of the newest version."""
        state = self.table.refresh()
        self._versions[state.table_uuid, state.version] = self.rows
        if not self.is_keyed:
            self._bounds[state.table_uuid, state.version] = (first_offsets(state), state.ends)
            self._note_places(state)

    def _note_places(self, state: TableState) -> None:
        """Remember at which offsets new rows lie, while the log has them."""
        places = self._places.setdefault(state.table_uuid, {})
        known = first_offsets(state)
        for bucket, offset in places:
            known[bucket] = max(known[bucket], offset + 1)
        ranges = {bucket: OffsetRange(known[bucket], end) for bucket, end in state.ends.items() if end > known[bucket]}
        plan = plan_ranges(self.table, state, ranges, list(self.kinds), fail_on_data_loss=True)
        for batch in read_batches(self.table, plan, (BUCKET, LOG_OFFSET)):
            for row in batch.to_pylist():
                places[row.pop(BUCKET.name), row.pop(LOG_OFFSET.name)] = row

    def take_rows(self) -> None:
        """Believe the table, where only it can tell which rows time took."""
        self.rows = tuple(self.table.to_arrow().select(list(self.kinds)).to_pylist())

    def rows_at(self, uuid: str, version: int) -> pa.Table:
        """The rows of a version: those of the newest one that is known up to it, as upkeep changes no row."""
        known = max((v for u, v in self._versions if u == uuid and v <= version), default=None)
        assert known is not None, f"{self.name}: version {version} of {uuid} was never seen"
        return as_arrow(self._versions[uuid, known], self.kinds)

    def rows_below(self, uuid: str, version: int, ends: Mapping[int, int]) -> pa.Table:
        """The rows of a version below offsets. Only a version of which no row is missing may be named so."""
        known = max(v for u, v in self._versions if u == uuid and v <= version)
        first, until = self._bounds[uuid, known]
        there = {
            (bucket, offset): row
            for (bucket, offset), row in self._places[uuid].items()
            if first[bucket] <= offset < until[bucket]
        }
        assert counted(there.values(), self.kinds) == counted(self._versions[uuid, known], self.kinds), (
            f"{self.name}: version {version} is named below {ends}, and lacks rows or has such without offsets"
        )
        return as_arrow([row for (bucket, offset), row in there.items() if offset < ends[bucket]], self.kinds)

    def older_versions(self) -> list[tuple[int, Rows]]:
        uuid = self.table.uuid
        return [(version, rows) for (of, version), rows in self._versions.items() if of == uuid]


def counted(rows: Iterable[Row], kinds: Kinds) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.get(name) for name in kinds) for row in rows)


def as_arrow(rows: Iterable[Row], kinds: Kinds) -> pa.Table:
    """Rows as the reference reads them: of any width that holds their values."""
    return pa.Table.from_pylist([{name: row.get(name) for name in kinds} for row in rows], schema=pa.schema(
        [(name, TYPES[kind]) for name, kind in kinds.items()]
    ))  # fmt: skip


TYPES = {
    "int": pa.int64(),
    "text": pa.string(),
    "dec": pa.decimal128(12, 2),
    "dbl": pa.float64(),
    "avg": pa.float64(),
    "ts": pa.timestamp("us", "UTC"),
    "bool": pa.bool_(),
}


# -- rows -------------------------------------------------------------------------------------------------------------


def _log_row(rng: Random) -> Row:
    return {
        "id": rng.randint(0, 9),
        "cust": rng.choice([None, 1, 2, 3]),
        "amount": rng.choice([None, Decimal("1.25"), Decimal("-2.00"), Decimal("0.50")]),
        "qty": rng.choice([None, 0, 1, 2, 3]),
        "at": dt.datetime(2026, 1, 1 + rng.randint(0, 1), 10, rng.randint(0, 59), tzinfo=dt.UTC),
        "day": rng.randint(0, 2),
    }


def _keyed_row(rng: Random) -> Row:
    return {
        "id": rng.randint(0, 7),
        "cust": rng.choice([None, 1, 2, 3]),
        "amount": rng.choice([None, 1.0, 2.5, -1.0]),
        "note": rng.choice([None, "a", "b", "c:1"]),
        "day": rng.choice([None, 0, 1]),
    }


def _some(source: Source, rng: Random, most: int = 4) -> list[Row]:
    make = _keyed_row if source.is_keyed else _log_row
    return [make(rng) for _ in range(rng.randint(1, most))]


def _by_key(rows: Iterable[Row]) -> dict[int, Row]:
    return {row["id"]: row for row in rows}


# -- what changes rows ------------------------------------------------------------------------------------------------


def write(source: Source, rng: Random) -> None:
    """Rows come; of keys that are there they take the place of the old ones."""
    rows = _some(source, rng)
    if not source.is_keyed:
        source.table.append(rows)
        source.rows = (*source.rows, *rows)
        return
    source.table.upsert(rows)
    source.rows = tuple((_by_key(source.rows) | _by_key(rows)).values())


def write_part(source: Source, rng: Random) -> None:
    """Some columns of some keys; all others stay."""
    if not source.is_keyed:
        return write(source, rng)
    columns = rng.sample(["cust", "amount", "note", "day"], 2)
    rows = [{"id": row["id"], **{c: row[c] for c in columns}} for row in _by_key(_some(source, rng)).values()]
    source.table.upsert(rows, columns=["id", *columns])
    known = _by_key(source.rows)
    source.rows = tuple((known | {row["id"]: {**known.get(row["id"], {}), **row} for row in rows}).values())


def same_again(source: Source, rng: Random) -> None:
    """Rows that are there already: no change of a table with a key."""
    if not source.is_keyed or not source.rows:
        return write(source, rng)
    source.table.upsert([rng.choice(source.rows)])


def delete(source: Source, rng: Random) -> None:
    if source.is_keyed:
        ids = {rng.randint(0, 7) for _ in range(rng.randint(1, 3))}
        source.table.delete(sorted(ids))
        source.rows = tuple(row for row in source.rows if row["id"] not in ids)
        return
    column, value = rng.choice([("cust", 2), ("qty", 0), ("id", rng.randint(0, 9)), ("cust", 1)])
    source.table.delete(where=[(column, "=", value)])
    source.rows = tuple(row for row in source.rows if row[column] != value)


def replace_some(source: Source, rng: Random) -> None:
    """What UPDATE does to a table without a key: some rows go and others come, in one commit."""
    if source.is_keyed:
        return write(source, rng)
    value = rng.choice([1, 2])
    rows = [{**row, "cust": value} for row in _some(source, rng)]
    source.table.overwrite(rows, where=[("cust", "=", value)])
    source.rows = (*(row for row in source.rows if row["cust"] != value), *rows)


def empty(source: Source, rng: Random) -> None:
    source.table.truncate()
    source.rows = ()


def overwrite(source: Source, rng: Random) -> None:
    rows = _some(source, rng, 6)
    source.table.overwrite(rows)
    source.rows = tuple(_by_key(rows).values()) if source.is_keyed else tuple(rows)


def drop_partition(source: Source, rng: Random) -> None:
    if not (source.is_partitioned and source.has_lake):
        return delete(source, rng)
    day = rng.randint(0, 2)
    source.table.drop_partition({"day": day})
    source.rows = tuple(row for row in source.rows if row["day"] != day)


def roll_back(source: Source, rng: Random) -> None:
    version, rows = rng.choice(source.older_versions())
    source.table.rollback_to_version(version)
    source.rows = rows


def make_again(source: Source, rng: Random) -> None:
    """The table is dropped, and another one of its name has other rows."""
    source.house.others.drop_table(source.name)
    source._make()
    if rng.random() < 0.8:
        write(source, rng)


# -- what changes none ------------------------------------------------------------------------------------------------


def tier_partly(table: Table) -> None:
    """A round of few bytes, behind which the service ends: its lake is no state of the table."""
    job = TieringJob(table.log, table.open_lake(), world=table.world, bytes_per_bucket_max=1)
    run, rounds = run_tasks_locally(table.storage, table.settings, table.world), [1]

    def one_round(*given: Any) -> Any:
        if not rounds:
            raise _EndedError
        rounds.pop()
        return run(*given)

    with suppress(_EndedError):
        job.run(one_round)


class _EndedError(Exception):
    pass


def tier_rows(source: Source, rng: Random) -> None:
    if source.has_lake and source.house.seed % 2:
        tier_partly(source.table)
    elif source.has_lake:
        tier(source.table)


def maintain(source: Source, rng: Random) -> None:
    source.table.maintain()
    if not source.has_lake and not source.is_keyed:
        source.take_rows()  # old ones may be gone


def trim(source: Source, rng: Random) -> None:
    """Rows that the lake has leave the log."""
    if source.has_lake:
        tier(source.table)
        source.house.pass_ms(2 * HOUR_MS)
        source.table.maintain()


def clean(source: Source, rng: Random) -> None:
    """Days pass, so that files which nobody names are deleted."""
    for _ in range(2):
        source.house.pass_ms(25 * HOUR_MS)
        tier_rows(source, rng)
        maintain(source, rng)


def compact(source: Source, rng: Random) -> None:
    if source.has_lake:
        tier(source.table)
        source.table.lake.compact()


def expire(source: Source, rng: Random) -> None:
    if source.has_lake:
        tier(source.table)
        source.house.pass_ms(HOUR_MS)
        table = source.table
        table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())


def lake_anew(source: Source, rng: Random) -> None:
    """The lake is built again from the log. Rows that the log no longer has are given up, or it is refused."""
    if source.has_lake:
        source.table.retier(allow_loss=rng.random() < 0.5)
        source.take_rows()


def merge(source: Source, rng: Random) -> None:
    compact_inline_rows(source.table)


def change_columns(source: Source, rng: Random) -> None:
    """Columns that no query reads come and go, and those that queries read get wider."""
    if source.added and rng.random() < 0.4:
        source.table.drop_column(source.added.pop())
    elif rng.random() < 0.35 and source.table.schema.field("day").type == pa.int32() and not source.is_partitioned:
        source.table.widen_column("day", "bigint")
    else:
        source.added.append(f"more{len(source.added)}_{rng.randint(0, 99)}")
        source.table.add_columns(f"{source.added[-1]} INT")


Deed = Callable[[Source, Random], None]
ROWS: Mapping[Deed, int] = {
    write: 46, write_part: 8, same_again: 3, delete: 18, replace_some: 6, empty: 2, overwrite: 3, drop_partition: 4,
    roll_back: 4, make_again: 2,
}  # fmt: skip
UPKEEP: Mapping[Deed, int] = {
    tier_rows: 6, maintain: 4, trim: 4, clean: 1, compact: 2, expire: 2, merge: 3, lake_anew: 2, change_columns: 4,
}  # fmt: skip


def done(source: Source, rng: Random, deeds: Mapping[Deed, int]) -> str:
    """Do something to a source. Returns its name."""
    deed = rng.choices(list(deeds), list(deeds.values()))[0]
    before = source.rows
    try:
        deed(source, rng)
    except NOT_TO_BE as error:
        if deed not in (roll_back, compact, expire, lake_anew):
            raise
        source.rows = before
        source.note()
        return f"{deed.__name__} refused ({type(error).__name__})"
    source.note()
    return deed.__name__
