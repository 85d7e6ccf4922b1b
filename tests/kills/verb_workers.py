"""Processes that get killed: a verb that is run until it ends, whoever builds the lake anew, and statements by key."""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
import pyarrow as pa

from kills.workers import NAME, Journal
from kit import keyed_writes
from kit.tables import tier
from streamhouse_spark import CommitConflictError, InvalidOptionError, Warehouse, relocate
from streamhouse_spark.log.gc.retention import expire_transactions
from streamhouse_spark.log.read_version import ReadVersion

COUNTED = "sales.counted"
KEYS = list(range(10))
OTHER_KEY = 1000
PAUSE_S = 0.01
"""Who never pauses keeps a process that begins from its first step, where cores are few."""


def relocator(location: str, journal_path: str, number: int) -> None:
    """Relocate once; number 2 makes a copy another warehouse."""
    journal = Journal(journal_path)
    journal.write("begun")
    with suppress(InvalidOptionError):  # a copy that is done but for the answer is no copy any more
        relocate(location, copy=number == 2)
    journal.write("ended")


def rebuilder(location: str, journal_path: str, _number: int) -> None:
    """Build the lake anew, tier, switch it off and on, and let writers expire, for ever."""
    journal = Journal(journal_path)
    table = Warehouse(location).table(NAME)
    while True:
        table.alter_properties({"table.datalake.enabled": "true"})
        table.retier()
        tier(table)
        table.alter_properties({"table.datalake.enabled": "false"})
        if writers := expire_transactions(table.log, table.properties.transactions_ttl_ms):
            journal.write("expired", writers=writers)
        table.maintain()
        with suppress(InvalidOptionError):
            tier(table)
            raise AssertionError("a lake that is off was tiered into")
        table.alter_properties({"table.datalake.enabled": "true"})
        tier(table)
        journal.write("rebuilt")
        time.sleep(PAUSE_S)


def updater(location: str, journal_path: str, _number: int) -> None:
    """``UPDATE SET n = n + 1`` of some keys, again where another was in between."""
    journal = Journal(journal_path)
    table = Warehouse(location).table(COUNTED)
    while True:
        state = table.refresh()
        base = ReadVersion.of(state)
        found = table.to_arrow(filter=[("id", "<", len(KEYS))])
        if table.state.version != state.version:
            continue  # a statement reads one state
        n = [value + 1 for value in found["n"].to_pylist()]
        rows = pa.table({"id": found["id"], "n": pa.array(n, pa.int64())})
        journal.write("attempt")
        try:
            keyed_writes.rewrite(table, rows, np.zeros(len(n), np.bool_), read=base)
        except CommitConflictError:
            journal.write("conflict")
            time.sleep(PAUSE_S)
        else:
            journal.write("acknowledged")
            time.sleep(PAUSE_S)


def neighbour(location: str, journal_path: str, number: int) -> None:
    """Upsert another key again and again."""
    journal = Journal(journal_path)
    table = Warehouse(location).table(COUNTED)
    key = OTHER_KEY + number
    row = table.lookup_one(key)
    n = row["n"] if row is not None else 0
    while True:
        n += 1
        journal.write("attempt", n=n)
        table.upsert([{"id": key, "n": n}])
        journal.write("acknowledged", n=n)
        time.sleep(PAUSE_S)


VERB_ROLES = {"relocator": relocator, "rebuilder": rebuilder, "updater": updater, "neighbour": neighbour}
