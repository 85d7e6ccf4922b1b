"""A fault at each write and every second read of real refreshes, whose statements run in DuckDB: changes are added up,
rows are looked up, and groups are computed again. See `test_view_calls` for the commit alone.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from pyspark.errors import PySparkException

from faults.faulty_storage import WRITES, Fault, FaultyStorage, sweep
from faults.sequential import one_thing_at_a_time
from faults.share import Share
from streamhouse_spark import StorageError
from streamhouse_spark.table.refresh_commit import last_refresh
from view_histories.house import House, create_and_refresh

READS = frozenset({"read", "read_ranges", "size_bytes", "list", "list_names", "ensure_durable"})
HOT = {"table.datalake.enabled": "false"}
QUERIES = {
    "groups": "SELECT cust, count(*) AS n, sum(qty) AS q FROM streamhouse.db.o GROUP BY cust",
    "rows": "SELECT o.id, k.note FROM streamhouse.db.o o LEFT JOIN streamhouse.db.k k ON o.cust = k.id",
    "again": "SELECT note, max(id) AS m, count(DISTINCT cust) AS d FROM streamhouse.db.k GROUP BY note",
}
ORDERS = [(1, 1, 3), (2, 2, 4), (3, None, 5)]
MORE = [(3, 1, None), (4, 2, 9), (4, 2, 9)]
KEYED = {0: (None, "a"), 1: (2, "a"), 2: (2, "b"), 3: (1, "b")}
CHANGED = {1: (5, "b"), 4: (None, None)}
GONE = [3]


def answer(name, orders, keyed):
    """The answers as Python finds them."""
    if name == "groups":
        of = {cust: [qty for _, c, qty in orders if c == cust] for cust in {cust for _, cust, _ in orders}}
        return Counter((cust, len(q), sum(filter(None, q)) if any(q) else None) for cust, q in of.items())
    if name == "rows":
        return Counter((number, keyed[cust][1] if cust in keyed else None) for number, cust, _ in orders)
    of = {note: [n for n, (_, its) in keyed.items() if its == note] for note in {note for _, note in keyed.values()}}
    return Counter(
        (note, max(ids), len({keyed[n][0] for n in ids} - {None})) for note, ids in of.items()
    )  # fmt: skip


def answers(name):
    after = {number: row for number, row in (KEYED | CHANGED).items() if number not in GONE}
    return answer(name, ORDERS, KEYED), answer(name, ORDERS + MORE, after)


def orders_of(rows):
    return [{"id": number, "cust": cust, "qty": qty} for number, cust, qty in rows]


def keyed_of(rows):
    return [{"id": number, "cust": cust, "note": note} for number, (cust, note) in rows.items()]


def filled(name, step_rows=None):
    """A store with a view, behind whose last refresh both sources changed."""
    house = House(3)
    with house.open():
        orders = house.others.create_table("db.o", "id BIGINT NOT NULL, cust INT, qty INT", properties=HOT, buckets=2)
        keyed = house.others.create_table(
            "db.k", "id BIGINT, cust INT, note STRING", primary_key=["id"], properties=HOT, buckets=2
        )
        orders.append(orders_of(ORDERS))
        keyed.upsert(keyed_of(KEYED))
        process = house.process
        create_and_refresh(
            process.session, process.connection, "db.v", QUERIES[name], "1min", "incremental", HOT, step_rows
        )
        orders.append(orders_of(MORE))
        keyed.upsert(keyed_of(CHANGED))
        keyed.delete(GONE)
    return house.store


def refresh(house, storage):
    with house.open():
        process = house.start(storage)
        try:
            return process.refresher("db.v")
        except PySparkException as error:  # with the text of a fault
            raise StorageError(str(error)) from error


def rows_and_versions(house, name):
    table = house.table("db.v")
    _, lineage = last_refresh(table.refresh())
    names = {"groups": ["cust", "n", "q"], "rows": ["id", "note"], "again": ["note", "m", "d"]}[name]
    rows = Counter(tuple(row.values()) for row in table.to_arrow(columns=names).to_pylist())
    return rows, tuple(source.version for source in lineage.sources)


@pytest.mark.long
@pytest.mark.parametrize("name", QUERIES)
def test_a_view_and_its_lineage_agree_whichever_call_of_a_refresh_fails(name, own_cache):
    with one_thing_at_a_time():
        store, (before, after), houses = filled(name), answers(name), []
        begun = rows_and_versions(House(4, copy_of=store), name)
        assert begun[0] == before

        def new_store():
            houses.append(House(4, copy_of=store))
            return houses[-1].store

        def scenario(storage: FaultyStorage):
            refresh(houses[-1], storage)

        of_writes = sweep(new_store, scenario, methods=WRITES)
        before_reads = (Fault.CRASH_BEFORE, Fault.ERROR_BEFORE)
        of_reads = sweep(new_store, scenario, faults=before_reads, methods=READS, share=Share(2))
        for attempt in itertools.chain(of_writes, of_reads):
            house = houses.pop()
            found, versions = rows_and_versions(house, name)
            is_new = versions != begun[1]
            assert found == (after if is_new else before), attempt
            assert is_new or attempt.raised, attempt
            again = refresh(house, FaultyStorage(house.store))
            assert again.changed is not is_new, attempt
            assert rows_and_versions(house, name)[0] == after, attempt
            assert refresh(house, FaultyStorage(house.store)).changed is False, attempt


@pytest.mark.long
def test_each_failed_step_of_a_refresh_is_continued_by_the_next(own_cache):
    """Whatever a fault leaves is a step: as many rows as the lineage names. The next refresh goes on from there."""
    with one_thing_at_a_time():
        store, houses, seen = filled("groups", step_rows=2), [], Counter()

        def new_store():
            houses.append(House(4, copy_of=store))
            return houses[-1].store

        def scenario(storage: FaultyStorage):
            refresh(houses[-1], storage)

        of_writes = sweep(new_store, scenario, methods=WRITES)
        of_reads = sweep(new_store, scenario, faults=(Fault.CRASH_BEFORE,), methods=READS, share=Share(4))
        for attempt in itertools.chain(of_writes, of_reads):
            house = houses.pop()
            (lineage,) = last_refresh(house.table("db.v").refresh())[1].sources
            rows, _ = rows_and_versions(house, "groups")
            taken = sum(lineage.ends.values())
            assert sum(n for _, n, _ in rows) == taken, attempt
            assert taken == 6 or attempt.raised, attempt
            seen[taken] += 1
            again = refresh(house, FaultyStorage(house.store))
            assert (again.steps, again.whole_because) == (-(-(6 - taken) // 2), None), attempt
            assert rows_and_versions(house, "groups")[0] == answers("groups")[1], attempt
        assert seen.keys() == {3, 5, 6}
