"""Tables with branches, for the tests of branches and of their publication."""

from __future__ import annotations

from kit.tables import tier

HOT = {"table.datalake.enabled": "false"}
DAY_MS = 24 * 3600 * 1000


def rows(*numbers, n=0):
    return [{"id": number, "n": n} for number in numbers]


def new_table(wh, *, keyed=False, lake="iceberg", name="d.t", **more):
    how = {"primary_key": ["id"]} if keyed else {}
    properties = {**(HOT if lake is None else {"table.datalake.format": lake}), "table.log.ttl": "3650d", **more}
    return wh.create_table(name, "id BIGINT NOT NULL, n INT", buckets=2, properties=properties, **how)


def add(table, *numbers, n=0):
    (table.upsert if table.state.primary_key else table.append)(rows(*numbers, n=n))


def delete(table, *numbers):
    if table.state.primary_key:
        table.delete(list(numbers))
    else:
        table.delete(where=[("id", "in", list(numbers))])


def found(table):
    return sorted(zip(*table.to_arrow().to_pydict().values(), strict=True))


def begun(wh, *, keyed, lake, numbers=range(6)):
    """A table, half of it tiered where it has a lake, and a branch of it."""
    table = new_table(wh, keyed=keyed, lake=lake)
    add(table, *list(numbers)[:3])
    if lake:
        tier(table)
    add(table, *list(numbers)[3:])
    made = table.create_branch("Audit")
    assert (made.name, made.version) == ("audit", table.state.version - 2)
    return table, table.branch("audit")
