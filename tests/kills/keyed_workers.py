"""The processes on a table with a primary key that get killed: writers, one that maintains it, and a reader.

All are of one host: they share the tablets. Each writer sums into a column of its own, so that a batch which is lost or
counted twice shows.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from kills.workers import Journal, in_crew, read_journal
from streamhouse_spark import Table, Transaction, Warehouse
from streamhouse_spark.kv import kv_snapshots

KEYED_NAME = "sales.sums"
KEYS = 500
KEYED_CREW = 4


def columns_of(writers: Iterable[int]) -> str:
    """The columns of a table into which these writers sum."""
    return ", ".join(["id BIGINT", "text STRING", *(f"w{number} BIGINT" for number in writers)])


def properties_of(writers: Iterable[int]) -> dict[str, str]:
    sums = {f"fields.w{number}.agg": "sum" for number in writers}
    return {"table.merge-engine": "aggregation", "table.datalake.enabled": "false", **sums}


def keys_of(writer: int, batch: int) -> list[int]:
    """The keys that a batch adds one to, few or many, some of them twice; the same whenever it is sent."""
    chance = random.Random(writer * 1_000_003 + batch)
    return [chance.randrange(KEYS) for _ in range(chance.choice((1, 20, 400)))]


def sums_of(writer: int, batches: range) -> Counter[int]:
    return Counter(key for batch in batches for key in keys_of(writer, batch))


def keyed_writer(location: str, journal_path: str, number: int) -> None:
    """Send batch after batch, and after a restart the last one again, under its own identity."""
    sum_on(Warehouse(location).table(KEYED_NAME), journal_path, number)


def keyed_crew(location: str, journal_path: str, number: int) -> None:
    """The same with several threads, whose changes to the same keys go into common records."""
    in_crew(Warehouse(location).table(KEYED_NAME), journal_path, "keyed writer", keyed_crew_of(number), sum_on)


def keyed_crew_of(number: int) -> range:
    """Return the numbers of the writers of a crew."""
    return range(10 * number, 10 * number + KEYED_CREW)


def sum_on(table: Table, journal_path: str, number: int) -> None:
    """Send batch after batch, from the last one in the journal on."""
    sent = [e["batch"] for e in read_journal(Path(journal_path)) if e["kind"] == "attempt"]
    journal = Journal(journal_path)
    batch = sent[-1] if sent else 1
    while True:
        journal.write("attempt", batch=batch)
        keys = keys_of(number, batch)
        rows = pa.table({"id": pa.array(keys, pa.int64()), f"w{number}": pa.array([1] * len(keys), pa.int64())})
        table.upsert(rows, columns=[f"w{number}"], transaction=Transaction(f"writer-{number}", batch))
        journal.write("acknowledged", batch=batch)
        batch += 1


def keeper(location: str, journal_path: str, _number: int) -> None:
    """Publish snapshots, trim, merge and clean for ever."""
    kv_snapshots.CHANGES_MIN = 50
    journal = Journal(journal_path)
    table = Warehouse(location).table(KEYED_NAME)
    while True:
        journal.write("kept", snapshots=table.maintain().snapshots)
        time.sleep(0.05)


def keyed_reader(location: str, journal_path: str, _number: int) -> None:
    """Read the union and look up: each key once, no sum smaller than before, and lookups at least as new."""
    journal = Journal(journal_path)
    table = Warehouse(location).table(KEYED_NAME)
    before: dict[int, tuple[int, int]] = {}
    while True:
        rows = table.to_arrow(columns=["id", "w1", "w2"]).to_pylist()
        found = {row["id"]: (row["w1"] or 0, row["w2"] or 0) for row in rows}
        assert len(found) == len(rows), f"{len(rows) - len(found)} keys twice"
        looked_up = table.lookup(list(found), columns=["w1", "w2"]).to_pylist() if found else []
        later = {row["id"]: (row["w1"] or 0, row["w2"] or 0) for row in looked_up}
        for older, newer in ((before, found), (found, later)):
            for key, sums in older.items():
                assert key in newer, f"key {key} vanished"
                assert newer[key][0] >= sums[0], f"key {key} had {sums}, then {newer[key]}"
                assert newer[key][1] >= sums[1], f"key {key} had {sums}, then {newer[key]}"
        before = found
        journal.write("read", rows=len(rows))


KEYED_ROLES = {"keyed writer": keyed_writer, "keyed crew": keyed_crew, "keeper": keeper, "keyed reader": keyed_reader}
