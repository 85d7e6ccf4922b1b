"""Views beside Spark's own answer, and the steps of random histories of their sources."""

from __future__ import annotations

import collections
import datetime as dt
from decimal import Decimal

import streamhouse_spark as sh
from kills.workers import tier as tier_table


def answer(spark, query):
    return collections.Counter(tuple(row) for row in spark.sql(query).collect())


def require_right(spark, view, query):
    """The view's rows are those of the query, run over the newest rows of its sources."""
    shown = ", ".join(f"`{name}`" for name in spark.sql(query).columns)
    assert answer(spark, f"SELECT {shown} FROM streamhouse.{view.name}") == answer(spark, query)


def order(number, cust=1, amount="1.50", qty=1):
    at = dt.datetime(2026, 1, 1, 10, number % 60, tzinfo=dt.UTC)
    return {"id": number, "cust": cust, "amount": Decimal(amount), "qty": qty, "at": at}


def kept(spark, source, select):
    query = select.replace("SOURCE", f"streamhouse.{source.name}")
    view = sh.materialize(spark, f"gold.v_{source.name.split('_')[-1]}", query)
    require_right(spark, view, query)
    return view, query


def fill(orders, keyed):
    """Give the sources of a random history their first rows."""
    orders.append([order(1, 1), order(1, 1), order(2, None)])
    keyed.upsert([{"id": i, "cust": i % 3, "amount": 1.0, "note": "a"} for i in range(4)])


def change(chance, orders, keyed):
    """A step of a random history: rows come, change their group, go, and come again."""
    for _ in range(chance.randint(1, 2)):
        match chance.randint(0, 3):
            case 0:
                some = [chance.randint(0, 9) for _ in range(3)]
                orders.append([order(n, chance.choice([None, 1, 2, 3]), "1.25", chance.randint(0, 3)) for n in some])
            case 1 | 2:
                ids = {chance.randint(0, 6) for _ in range(3)}
                amounts, notes = [None, 1.0, 2.5, -1.0], [None, "a", "b"]
                keyed.upsert([
                    {
                        "id": i,
                        "cust": chance.choice([None, 1, 2, 3]),
                        "amount": chance.choice(amounts),
                        "note": chance.choice(notes),
                    }
                    for i in ids
                ])  # fmt: skip
            case 3:
                keyed.delete([chance.randint(0, 6), chance.randint(0, 6)])


def upkeep(chance, orders, keyed):
    """A step after which changes do not tell all, or lie elsewhere."""
    match chance.randint(0, 6):
        case 0:
            orders.truncate()
        case 1:
            orders.delete(where=[("cust", "=", 2)])
        case 2 | 3:
            tier_table(chance.choice([orders, keyed]))
        case 4:
            keyed.alter(add_columns=f"c{len(keyed.schema.names)} INT")
        case 5 | 6:
            chance.choice([orders, keyed]).maintain()


FROMS = {
    "SOURCE o": "o",
    "KEYED k": "k",
    "SOURCE o JOIN KEYED k ON o.cust = k.id": "ok",
    "SOURCE o LEFT JOIN KEYED k ON o.cust = k.id AND k.cust > 0": "ok",
    "KEYED k RIGHT JOIN SOURCE o ON k.id = o.cust": "ok",
    "SOURCE o FULL JOIN KEYED k ON o.cust = k.id": "ok",
    "SOURCE o JOIN KEYED k ON o.cust = k.cust": "ok",
    "KEYED k JOIN KEYED j ON k.cust = j.id": "kj",
    "KEYED k LEFT JOIN KEYED j ON j.id = k.cust": "kj",
    "SOURCE o JOIN KEYED k ON o.cust = k.id LEFT JOIN KEYED j ON j.id = k.cust": "okj",
    "SOURCE o JOIN (SELECT id AS i, note, cust, amount FROM KEYED WHERE cust > 0) k ON k.i = o.cust": "ok",
}
COLUMNS = {
    "o": ["o.cust", "o.qty", "o.id", "o.qty % 2", "o.at"],
    "k": ["k.note", "k.cust", "k.amount", "upper(k.note)"],
    "j": ["j.note", "j.cust + 1", "j.id"],
}
AGGREGATES = {
    "o": ["sum(o.amount)", "sum(o.qty)", "max(o.at)", "min(o.qty)", "count(o.cust)", "avg(o.qty)"],
    "k": ["sum(k.cust)", "sum(k.amount)", "min(k.note)", "max(k.amount)", "count(k.note)", "count(DISTINCT k.note)"],
    "j": ["sum(j.id)", "max(j.note)", "count_if(j.cust > 1)", "sum(j.cust) * 2"],
}
CONDITIONS = {
    "o": ["o.qty > 0", "EXISTS (SELECT 1 FROM KEYED e WHERE e.id = o.cust)"],
    "k": [
        "k.note IS NULL OR k.note <> 'a'",
        "k.amount > 0",
        "NOT EXISTS (SELECT 1 FROM SOURCE e WHERE e.cust = k.cust)",
    ],
    "j": ["j.cust > 0"],
}


def random_query(chance):
    """A query over SOURCE and KEYED: groups, or rows, of one table or of several."""
    begin = chance.choice(list(FROMS))
    sides = FROMS[begin]

    def some(parts, least, most):
        every = [part for side in sides for part in parts[side]]
        return chance.sample(every, chance.randint(least, min(most, len(every))))

    conditions = some(CONDITIONS, 0, 1)
    where = f" WHERE {' AND '.join(f'({part})' for part in conditions)}" if conditions else ""
    kind = chance.choice(["groups"] * 5 + ["rows", "rows", "distinct"])
    columns = some(COLUMNS, 0 if kind == "groups" else 1, 2)
    named = [f"{part} AS c{number}" for number, part in enumerate(columns)]
    if kind != "groups":
        return f"SELECT {'DISTINCT ' if kind == 'distinct' else ''}{', '.join(named)} FROM {begin}{where}"
    found = [*some(AGGREGATES, 0, 3), *(["count(*)"] if chance.random() < 0.6 or not columns else [])]
    named += [f"{part} AS a{number}" for number, part in enumerate(found)]
    by = f" GROUP BY {', '.join(columns)}" if columns else ""
    having = " HAVING count(*) > 1" if columns and chance.random() < 0.15 else ""
    return f"SELECT {', '.join(named)} FROM {begin}{where}{by}{having}"
