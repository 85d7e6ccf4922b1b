"""Random histories of tables whose columns change inside, against rows that know their fields by identity.

Two processes append, or upsert and delete, and add, rename, drop and widen fields of structs, of structs in arrays and
in maps, in turn; the lake follows now and then. Whatever schema wrote a row, it has the fields of now.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from faults.scenarios import LAKE, NO_LAKE, PAIMON
from faults.sim import SimClock
from interop.keyed_cases import read_by_pypaimon
from kit.rows import rows_by_id
from kit.tables import tier
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark.schema.ddl import quote_identifier
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows

NAMES = ("a", "b", "c", "D", "e f", "g.h")
WIDER = {"tinyint": "int", "int": "bigint", "float": "double"}


class Part:
    """A type: a plain one by its name, or an ``array``, ``map`` or ``struct`` of others."""

    def __init__(self, kind: str, *, element: Part | None = None, fields: list[Part] | None = None, name: str = ""):
        self.kind, self.element, self.fields, self.name = kind, element, fields or [], name

    def ddl(self) -> str:
        if self.kind == "struct":
            return f"struct<{','.join(f'{quote_identifier(f.name)}:{f.ddl()}' for f in self.fields)}>"
        if self.element is None:
            return self.kind
        return f"array<{self.element.ddl()}>" if self.kind == "array" else f"map<string,{self.element.ddl()}>"

    def value(self, rng: random.Random) -> Any:
        """A value, with each struct as a mapping of its fields themselves, whatever they are called."""
        if rng.random() < 0.2:
            return None
        if self.kind == "struct":
            return {field: field.value(rng) for field in self.fields if rng.random() < 0.8}
        if self.kind == "array":
            return [self.element.value(rng) for _ in range(rng.randrange(3))]
        if self.kind == "map":
            return [(key, self.element.value(rng)) for key in ("k", "l")[: rng.randrange(3)]]
        return rng.choice(
            {"string": ["", "x"], "tinyint": [-5, 7], "int": [1, -(2**31)], "bigint": [2**40]}.get(
                self.kind, [0.5, -2.0]
            )
        )

    def shown(self, value: Any, *, whole: bool) -> Any:
        """The value by the names of now; ``whole`` with null for fields that it lacks."""
        if value is None:
            return None
        if self.kind == "struct":
            there = [f for f in self.fields if whole or f in value]
            return {f.name: f.shown(value.get(f), whole=whole) for f in there}
        if self.kind == "array":
            return [self.element.shown(item, whole=whole) for item in value]
        if self.kind == "map":
            return [(key, self.element.shown(item, whole=whole)) for key, item in value]
        return value

    def without_null_lists(self, value: Any) -> Any:
        """The value with an empty array, or map, for null: pyiceberg gives that where it adds a field inside."""
        if self.kind in ("array", "map"):
            if self.kind == "map":
                return [(key, self.element.without_null_lists(item)) for key, item in value or ()]
            return [self.element.without_null_lists(item) for item in value or ()]
        if value is None or self.kind != "struct":
            return value
        return {field.name: field.without_null_lists(value[field.name]) for field in self.fields}

    def below(self, path: tuple[str, ...]) -> Iterator[tuple[Part, Part, tuple[str, ...]]]:
        """Each part inside, with the one that it lies in and its path."""
        inner = [(f.name, f) for f in self.fields]
        inner += [("element" if self.kind == "array" else "value", self.element)] if self.element is not None else []
        for name, part in inner:
            yield self, part, (*path, name)
            yield from part.below((*path, name))


class History:
    def __init__(self, seed: int, storage: Any, properties: dict[str, str], *, key: bool) -> None:
        self.rng = random.Random(seed)
        clock = SimClock()
        opened = storage or new_store(seed, clock)
        hosts = [open_warehouse(opened, seed + n, clock) for n in range(2)]
        self.key = key
        self.columns = [self.struct(0, "s"), Part("array", element=self.struct(1, ""), name="items")]
        self.columns.append(Part("map", element=self.struct(1, ""), name="m"))
        columns = ", ".join(["id bigint not null", *(f"{c.name} {c.ddl()}" for c in self.columns)])
        hosts[0].create_table("t", columns, primary_key=["id"] if key else (), buckets=2, properties=properties)
        self.tables = [host.table("t") for host in hosts]
        self.rows: dict[int, dict[Part, Any]] = {}
        self.remembered: list[tuple[str, list[dict[str, Any]]]] = []

    def struct(self, depth: int, name: str) -> Part:
        names = self.rng.sample(NAMES, self.rng.randrange(1, 4))
        return Part("struct", fields=[self.part(depth + 1, n) for n in names], name=name)

    def part(self, depth: int, name: str) -> Part:
        if depth < 3 and self.rng.random() < 0.35:
            kind = self.rng.choice(["struct", "array", "map"])
            made = self.struct(depth, name)
            return made if kind == "struct" else Part(kind, element=made, name=name)
        return Part(self.rng.choice(["string", "tinyint", "int", "float"]), name=name)

    def inside(self) -> list[tuple[Part, Part, str]]:
        found = [part for column in self.columns for part in column.below((column.name,))]
        return [(holder, part, ".".join(map(quote_identifier, path))) for holder, part, path in found]

    def structs(self) -> list[tuple[Part, str]]:
        return [(c, c.name) for c in self.columns if c.kind == "struct"] + [
            (part, path) for _, part, path in self.inside() if part.kind == "struct"
        ]

    def step(self) -> None:
        table = self.rng.choice(self.tables)
        changes = ["add"] * 2 + ["rename", "swap", "drop", "widen"]
        what = self.rng.choice(["write"] * 5 + changes + ["tier"] + ["delete"] * self.key + ["remember"])
        getattr(self, what)(table)

    def write(self, table: Any) -> None:
        first = len(self.rows)
        for _ in range(self.rng.randrange(1, 4)):
            is_new = not self.key or not self.rows or self.rng.random() < 0.7
            key = max(self.rows, default=0) + 1 if is_new else self.rng.choice(list(self.rows))
            self.rows[key] = {column: column.value(self.rng) for column in self.columns}
            row = {c.name: c.shown(v, whole=False) for c, v in self.rows[key].items()}
            (table.upsert if self.key else table.append)([{"id": key, **row}])
        assert len(self.rows) >= first

    def delete(self, table: Any) -> None:
        if len(self.rows) > 3:
            key = self.rng.choice(list(self.rows))
            del self.rows[key]
            table.delete([key])

    def free(self, struct: Part) -> str | None:
        taken = {field.name.casefold() for field in struct.fields}
        names = [name for name in NAMES if name.casefold() not in taken]
        return self.rng.choice(names) if names else None

    def add(self, table: Any) -> None:
        struct, path = self.rng.choice(self.structs())
        if (name := self.free(struct)) is not None:
            field = self.part(2, name)
            struct.fields.append(field)
            table.add_columns(f"{path}.{quote_identifier(name)} {field.ddl()}")

    def fields(self) -> list[tuple[Part, Part, str]]:
        return [found for found in self.inside() if found[0].kind == "struct"]

    def rename(self, table: Any) -> None:
        struct, field, path = self.rng.choice(self.fields())
        if (name := self.free(struct)) is not None:
            field.name = name
            table.rename_column(path, name)

    def swap(self, table: Any) -> None:
        structs = [(struct, path) for struct, path in self.structs() if len(struct.fields) > 1]
        if structs:
            struct, path = self.rng.choice(structs)
            one, other = self.rng.sample(struct.fields, 2)
            names = {f"{path}.{quote_identifier(f.name)}": g.name for f, g in ((one, other), (other, one))}
            one.name, other.name = other.name, one.name
            table.alter(rename_columns=names)

    def drop(self, table: Any) -> None:
        several = [(struct, field, path) for struct, field, path in self.fields() if len(struct.fields) > 1]
        if several:
            struct, field, path = self.rng.choice(several)
            struct.fields.remove(field)
            if self.rng.random() < 0.5:
                table.drop_column(path)
            else:  # another field of its name comes in the same step
                struct.fields.append(new := self.part(3, field.name))
                table.alter(drop_columns=[path], add_columns=f"{path} {new.ddl()}")

    def widen(self, table: Any) -> None:
        narrow = [(part, path) for _, part, path in self.inside() if part.kind in WIDER]
        if narrow:
            part, path = self.rng.choice(narrow)
            part.kind = WIDER[part.kind]
            table.widen_column(path, part.kind)

    def tier(self, table: Any) -> None:
        if table.properties.datalake_enabled:
            table.refresh()
            tier(table)
            if self.rng.random() < 0.3:
                table.lake.compact()
        elif not self.key:
            compact_inline_rows(table)

    def remember(self, table: Any) -> None:
        tag = f"tag{len(self.remembered)}"
        table.create_tag(tag)
        self.remembered.append((tag, self.expected()))

    def expected(self) -> list[dict[str, Any]]:
        return [
            {"id": key, **{c.name: c.shown(row.get(c), whole=True) for c in self.columns}}
            for key, row in sorted(self.rows.items())
        ]

    def without_null_lists(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        named = {column.name: column for column in self.columns}
        return [{n: named[n].without_null_lists(v) if n in named else v for n, v in row.items()} for row in rows]

    def check(self) -> None:
        for table in self.tables:
            table.refresh()
            assert rows_by_id(table.to_arrow()) == self.expected()
            if self.key:
                found = table.lookup([{"id": key} for key in self.rows])
                assert rows_by_id(found.select(table.schema.names)) == self.expected()
        for tag, expected in self.remembered:
            assert rows_by_id(self.tables[0].read_version(tag)) == expected


def check_others(history: History, table: Any, warehouse: str) -> None:
    """The libraries of the lake's format, which know nothing of us, read the same rows."""
    if table.properties.datalake_format == "paimon":
        assert rows_by_id(read_by_pypaimon(table.storage, table.name)) == history.expected()
        return
    found = rows_by_id(StaticTable.from_metadata(f"{warehouse}/lake/default/t").scan().to_arrow().cast(table.schema))
    assert history.without_null_lists(found) == history.without_null_lists(history.expected())


@pytest.mark.parametrize("key", [False, True], ids=["log", "keyed"])
@pytest.mark.parametrize(
    ("lake", "seeds"),
    [
        (NO_LAKE, 3),
        (LAKE, 1),
        (PAIMON, 1),
        pytest.param(LAKE, 40, marks=pytest.mark.long),
        pytest.param(PAIMON, 40, marks=pytest.mark.long),
    ],
    ids=["none", "iceberg", "paimon", "iceberg, many", "paimon, many"],
)
def test_random_changes_of_nested_columns_agree_with_a_model(tmp_path, own_cache, key, lake, seeds):
    num_fields = 0
    for seed in range(seeds):
        storage = LocalStorage(str(tmp_path / f"{seed}")) if lake is not NO_LAKE else None
        history = History(seed * 10, storage, lake, key=key)
        for _ in range(30):
            history.step()
        history.check()
        num_fields += len(history.tables[0].state.schemas)
        if lake is not NO_LAKE:
            history.tier(history.tables[0])
            history.check()
            check_others(history, history.tables[0], str(tmp_path / f"{seed}"))
    assert num_fields > 5 * seeds
