"""Kill the writers of a table with a primary key, and prove that every acknowledged batch counts once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kills.keyed_workers import KEYED_NAME, columns_of, keyed_crew_of, properties_of, sums_of
from kills.rounds import ACKNOWLEDGED_MIN, Figures, acknowledged_by, journal, kill_processes, shared_records, worked
from kills.workers import read_journal
from kit.changelog_replay import folded
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.table.system_views import open_view

PROCESSES = (("keyed writer", 1), ("keyed writer", 2), ("keeper", 1), ("keyed reader", 1))


def keyed_kill_rounds(directory: Path, rounds: int, seed: int) -> Figures:
    """Raises `AssertionError` where a sum is wrong, a key is there twice, or a process failed by itself.

    ``STREAMHOUSE_CACHE_DIR`` says where all of them keep their rows by key.
    """
    location = str(directory / "warehouse")
    properties = {**properties_of((1, 2)), "table.log.ttl": "1s"}
    columns = columns_of((1, 2))
    Warehouse(location).create_table(KEYED_NAME, columns, primary_key=["id"], buckets=2, properties=properties)
    figures = Figures()
    done = lambda: worked(directory, "keyed writer", "keyed reader")  # noqa: E731
    kill_processes(directory, rounds, seed, PROCESSES, figures, until=done)
    table = Warehouse(location).table(KEYED_NAME)
    for number in (1, 2):
        _check_sums(table, directory, number, figures)
    figures.rows = table.to_arrow().num_rows
    figures.reads = sum(e["kind"] == "read" for e in read_journal(journal(directory, "keyed reader", 1)))
    close_tablets()
    return figures


def keyed_crew_kill_rounds(directory: Path, rounds: int, seed: int) -> Figures:
    """The same with two processes of several writing threads each, whose upserts share records; at the end the
    changelog makes the rows that are there.
    """
    location = str(directory / "warehouse")
    writers = (*keyed_crew_of(1), *keyed_crew_of(2))
    table = Warehouse(location).create_table(
        KEYED_NAME, columns_of(writers), primary_key=["id"], buckets=2, properties=properties_of(writers)
    )
    figures = Figures()

    def until() -> bool:
        done = acknowledged_by(directory, writers, "keyed writer")
        return done > ACKNOWLEDGED_MIN and shared_records(table) > 0

    kill_processes(directory, rounds, seed, (("keyed crew", 1), ("keyed crew", 2), ("keeper", 1)), figures, until=until)
    table = Warehouse(location).table(KEYED_NAME)
    for number in writers:
        _check_sums(table, directory, number, figures)
    rows = {(row["id"],): row for row in table.to_arrow().to_pylist()}
    assert folded(open_view(table, "changelog"), ["id"]) == rows, "the changelog makes other rows"
    figures.rows, figures.shared_records = len(rows), shared_records(table)
    close_tablets()
    return figures


def _check_sums(table: Table, directory: Path, number: int, figures: Figures) -> None:
    events = list(read_journal(journal(directory, "keyed writer", number)))
    acknowledged = max((e["batch"] for e in events if e["kind"] == "acknowledged"), default=0)
    attempted = max((e["batch"] for e in events if e["kind"] == "attempt"), default=0)
    figures.acknowledged += acknowledged
    figures.attempted += attempted
    allowed = [sums_of(number, range(1, last + 1)) for last in {acknowledged, attempted}]
    name = f"w{number}"
    rows = table.to_arrow(columns=["id", name]).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
    stored = Counter({row["id"]: row[name] for row in rows if row[name]})
    assert stored in allowed, f"the sums of writer {number} are of neither {acknowledged} nor {attempted} batches"
    found = table.lookup([row["id"] for row in rows], columns=[name]).to_pylist()
    assert Counter({row["id"]: row[name] for row in found if row[name]}) == stored, "lookups differ from the union read"
