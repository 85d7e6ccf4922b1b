"""Random UPDATE, DELETE and MERGE statements, and their effect on a dictionary id → ``(name, n)``."""

from __future__ import annotations

import random

from spark.dml import merge_into


def statement(rng: random.Random, model, name):
    """Return a statement, and the rows behind it. A table with few rows gets more."""
    if len(model) < 4:
        added = {k: (f"v{k}", k) for k in range(10) if k not in model}
        keys = ", ".join(map(str, added))
        insert = f"INSERT INTO {name} SELECT id, concat('v', id), id FROM range(10) WHERE id IN ({keys})"
        return insert, model | added
    return rng.choice([delete, update, merge, merge])(rng, model, name)


def null_safe(compute):
    """As SQL does it: null where a value is null."""
    return lambda *values: None if None in values else compute(*values)


def condition(rng, model, name, alias=""):
    """A condition in SQL and on ``(id, name, n)``."""
    k = rng.randrange(12)
    ns = {row[1] for key, row in model.items() if key < k}
    in_ns = lambda _id, _name, n: n is not None and n in ns  # noqa: E731 - one of a list
    return rng.choice(
        [
            (f"{alias}n > {k}", lambda _id, _name, n: bool(null_safe(lambda n: n > k)(n))),
            (f"{alias}id % 3 = {k % 3}", lambda key, _name, _n: key % 3 == k % 3),
            (f"{alias}name IS NULL OR {alias}n IS NULL", lambda _id, name, n: name is None or n is None),
            (f"NOT ({alias}n = {k})", lambda _id, _name, n: n is not None and n != k),
            (f"{alias}id IN ({k}, {k + 1}, {k + 2})", lambda key, _name, _n: k <= key <= k + 2),
            *([] if alias else [(f"n IN (SELECT n FROM {name} WHERE id < {k})", in_ns)]),
        ]
    )


def delete(rng, model, name):
    sql, holds = condition(rng, model, name)
    return f"DELETE FROM {name} WHERE {sql}", {k: v for k, v in model.items() if not holds(k, *v)}


def update(rng, model, name):
    sql, holds = condition(rng, model, name)
    plus, bang = null_safe(lambda n, key: n + key), null_safe(lambda text: text + "!")
    changed = {k: (bang(v[0]), plus(v[1], k)) if holds(k, *v) else v for k, v in model.items()}
    return f"UPDATE {name} SET n = n + id, name = concat(name, '!') WHERE {sql}", changed


def merge(rng, model, name):
    keys = rng.sample(range(16), rng.randint(1, 6))
    source = {k: (rng.choice([None, "s", "t"]), rng.choice([None, *range(12)])) for k in keys}
    text = ", ".join(
        f"({k}, {'NULL' if s is None else repr(s)}, {'NULL' if n is None else n})" for k, (s, n) in source.items()
    )
    deletes, updates, stale = (condition(rng, model, name, alias) for alias in ("s.", "t.", "t."))
    after = {}
    for key, row in model.items():
        if key not in source:
            if not stale[1](key, *row):
                after[key] = row
        elif deletes[1](key, *source[key]):
            pass
        elif updates[1](key, *row):
            after[key] = source[key]
        else:
            after[key] = (row[0], source[key][1])
    after |= {key: row for key, row in source.items() if key not in model and row[1] != 3}
    clauses = (
        f"WHEN MATCHED AND {deletes[0]} THEN DELETE WHEN MATCHED AND {updates[0]} THEN UPDATE SET * "
        "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED AND s.n IS DISTINCT FROM 3 THEN INSERT * "
        f"WHEN NOT MATCHED BY SOURCE AND {stale[0]} THEN DELETE"
    )
    return merge_into(name, text, clauses), after
