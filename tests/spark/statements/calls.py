"""Random calls in Python that change rows, each with its meaning for the reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from spark.statements.columns import literal
from spark.statements.grammar import Grammar, Statement, Target


def called(rng: Random, target: Target, *, guarded: bool) -> Statement:
    """A call that writes, replaces or deletes rows; ``guarded`` as in `Grammar`."""
    kinds: list[Callable[[Random, Target, Grammar], Statement]] = [_overwrite, _overwrite_where, _overwrite_partitions]
    kinds += [_upsert, _upsert, _partial, _delete_keys] if target.form.key else [_append, _append, _delete_where]
    return rng.choice(kinds)(rng, target, Grammar(rng, target, guarded=guarded))


def _append(rng: Random, target: Target, grammar: Grammar) -> Statement:
    columns = [c for c in target.columns if c.name in ("id", "day") or rng.random() < 0.7]
    query = grammar.values(columns, rng.randint(1, 12))
    return Statement("Table.append", query, grammar.loaded(query), way="Table.append")


def _upsert(rng: Random, target: Target, grammar: Grammar) -> Statement:
    query = grammar.values(target.columns, rng.randint(1, 12))
    return Statement("Table.upsert", query, grammar.loaded(query), way="Table.upsert")


def _partial(rng: Random, target: Target, grammar: Grammar) -> Statement:
    """Some columns of rows by key; the others stay, or have their default where the key is new."""
    key = target.form.key
    others = [c for c in target.changeable if rng.random() < 0.5] or target.changeable[:1]
    chosen = [c for c in target.columns if c.name in key or c in others]
    query = grammar.values(chosen, rng.randint(1, 10))
    same = " AND ".join(f"t.{name} = fresh.{name}" for name in key)
    sets = ", ".join(f"{c.name} = fresh.{c.name}" for c in others)
    names = ", ".join(c.name for c in chosen)
    is_new = f"NOT EXISTS (SELECT 1 FROM {{t}} AS t WHERE {same})"
    model = (
        f"CREATE OR REPLACE TEMP TABLE fresh AS {query}",
        f"UPDATE {{t}} AS t SET {sets} FROM fresh WHERE {same}",
        f"INSERT INTO {{t}} ({names}) SELECT {names} FROM fresh WHERE {is_new}",
    )
    where = json.dumps([c.name for c in others])
    return Statement("Table.upsert of columns", query, model, way="Table.upsert", where=where)


def _overwrite(rng: Random, target: Target, grammar: Grammar) -> Statement:
    query = grammar.values(target.columns, rng.randint(1, 8))
    return Statement("Table.overwrite", query, grammar.loaded(query, "TRUE"), way="Table.overwrite", gone="TRUE")


def _overwrite_where(rng: Random, target: Target, grammar: Grammar) -> Statement:
    """The rows of a day, which with a primary key has to be a partition."""
    if target.form.key and target.form.partition != "day":
        return _overwrite(rng, target, grammar)
    day = str(rng.randrange(4))
    query = grammar.values(target.columns, rng.randint(1, 8), day=day)
    gone = f"t.day = {day}"
    where = json.dumps([["day", "=", int(day)]])
    model = grammar.loaded(query, gone)
    return Statement("Table.overwrite(where)", query, model, way="Table.overwrite", where=where, gone=gone)


def _overwrite_partitions(rng: Random, target: Target, grammar: Grammar) -> Statement:
    form = target.form
    if form.partition is None:
        return _overwrite(rng, target, grammar)
    query = grammar.values(target.columns, rng.randint(1, 8))
    gone = f"{form.partition_of('t.')} IN (SELECT {form.partition_of(is_new=True)} FROM fresh)"
    way = "Table.overwrite_partitions"
    return Statement(way, query, grammar.loaded(query, gone), way=way, gone=gone)


def _delete_where(rng: Random, target: Target, grammar: Grammar) -> Statement:
    number = rng.randrange(12)
    condition, where = rng.choice(
        [
            (f"id = {number}", [["id", "=", number]]),
            (f"id >= {number} AND id < {number + 6}", [["id", ">=", number], ["id", "<", number + 6]]),
            (f"day = {number % 3} AND id < 500", [["day", "=", number % 3], ["id", "<", 500]]),
        ]
    )
    way = "Table.delete(where)"
    return Statement(way, "", (f"DELETE FROM {{t}} WHERE {condition}",), way=way, where=json.dumps(where))


def _delete_keys(rng: Random, target: Target, grammar: Grammar) -> Statement:
    key = [target.column(name) for name in target.form.key]
    ids = rng.sample(range(30), rng.randint(1, 8))
    rows = ", ".join(f"({', '.join(str(i) if c.name == 'id' else literal(rng, c) for c in key)})" for i in ids)
    names = ", ".join(c.name for c in key)
    cast = ", ".join(f"CAST({c.name} AS {c.kind}) AS {c.name}" for c in key)
    query = f"SELECT {cast} FROM (VALUES {rows}) AS v({names})"
    same = " AND ".join(f"t.{c.name} = fresh.{c.name}" for c in key)
    model = (
        f"CREATE OR REPLACE TEMP TABLE fresh AS {query}",
        f"DELETE FROM {{t}} AS t WHERE EXISTS (SELECT 1 FROM fresh WHERE {same})",
    )
    return Statement("Table.delete(keys)", query, model, way="Table.delete(keys)")
