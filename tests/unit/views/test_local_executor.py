"""Groups that the driver brings forward, beside a model that computes them from all rows."""

from __future__ import annotations

import hashlib
import random
from decimal import Decimal

import pyarrow as pa
import pytest

from streamhouse_spark.views import local_executor
from streamhouse_spark.views.ivm.aggregates import RECOMPUTE, IncrementalAggregate, group_column
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, find_indexed_sides
from streamhouse_spark.views.ivm.logical_plan import SourceColumns
from streamhouse_spark.views.ivm.query_parser import build_plan, parse_sql, prune_columns
from streamhouse_spark.views.ivm.refresh_sql import IS_DELETED, KEY, RefreshStatements, choose_identity
from streamhouse_spark.views.local_executor import LocalInputs, merge_aggregates

SOURCES = {
    "t0": SourceColumns(("id", "g", "x", "d", "s"), ("id",), frozenset({"id"})),
    "t1": SourceColumns(("id", "name"), ("id",), frozenset({"id"})),
}
IDS = {"db.t": "t0", "db.u": "t1"}
TYPES = {"id": "bigint", "g": "int", "x": "int", "d": "decimal(12,2)", "s": "string", "name": "string"}
ARROW = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "decimal(12,2)": pa.decimal128(12, 2),
         "decimal(22,2)": pa.decimal128(22, 2)}  # fmt: skip
FUNCTIONS = {
    "count(*)": (len, "bigint"),
    "count(x)": (lambda rows: sum(row["x"] is not None for row in rows), "bigint"),
    "sum(x)": (lambda rows: total(row["x"] for row in rows), "bigint"),
    "sum(d)": (lambda rows: total(row["d"] for row in rows), "decimal(22,2)"),
    "min(s)": (lambda rows: min((row["s"] for row in rows if row["s"] is not None), default=None), "string"),
    "max(x)": (lambda rows: max((row["x"] for row in rows if row["x"] is not None), default=None), "int"),
}
NAMES = {1: "one", 2: "two"}


def total(values):
    there = [value for value in values if value is not None]
    return sum(there) if there else None


class View:
    """A view over rows of t0, joined with names of t1 where ``joined`` says how."""

    def __init__(self, group: str, functions: list[str], joined: str = "") -> None:
        self.group, self.functions, self.joined = group, functions, joined
        columns = [group, *functions]
        join = f"{joined} JOIN db.u ON t.g = u.id" if joined else ""
        shown = ", ".join(f"{text} AS n{number}" for number, text in enumerate(columns))
        self.root = prune_columns(
            build_plan(parse_sql(f"SELECT {shown} FROM db.t {join} GROUP BY {group}"), SOURCES, IDS)
        )
        self.names = tuple(f"n{number}" for number in range(len(columns)))
        self.types = {
            **dict.fromkeys(self.root.child.columns, "int"),
            self.root.groups[0]: TYPES[group],
            **dict(zip(self.root.columns, [TYPES[group], *(FUNCTIONS[f][1] for f in functions)], strict=True)),
        }
        self.added = IncrementalAggregate.of(
            RefreshStatements(self.root, self.names, self.types, choose_identity(self.root, self.types))
        )
        assert self.added is not None

    def answer(self, rows) -> dict:
        if self.joined:
            rows = [{**row, "name": NAMES.get(row["g"])} for row in rows if self.joined == "LEFT" or row["g"] in NAMES]
        groups: dict = {}
        for row in rows:
            groups.setdefault(row[self.group], []).append(row)
        return {key: [FUNCTIONS[f][0](of) for f in self.functions] for key, of in groups.items()}

    def find(self, answer):
        by_key = {self.hashed(key): (key, values) for key, values in answer.items()}

        def look(keys: pa.Table) -> pa.Table:
            found = [by_key.get(key) for key in keys[KEY].to_pylist()]
            columns = [[None if f is None else [f[0], *f[1]][i] for f in found] for i in range(len(self.names))]
            kinds = [self.types[name] for name in self.root.columns]
            arrays = [pa.array(c, ARROW[kind]) for c, kind in zip(columns, kinds, strict=True)]
            there = pa.array([f is not None for f in found], pa.bool_())
            return pa.Table.from_arrays([keys[KEY], *arrays, there], names=[KEY, *self.names, "_found"])

        return look

    @staticmethod
    def hashed(value) -> str:
        text = "n" if value is None else f"{len(str(value))}:{value}"
        return hashlib.sha256(text.encode()).hexdigest()

    def merged(self, before, came, went):
        changes = {column: [row[column] for row in (*came, *went)] for column in ("id", "g", "x", "d", "s")}
        columns = {column: pa.array(values, ARROW[TYPES[column]]) for column, values in changes.items()}
        weights = pa.array([1] * len(came) + [-1] * len(went), pa.int64())
        uses = find_indexed_sides(self.root, {"t0"}, {"t1": ("id",)})
        names = pa.table({"id": pa.array(NAMES, pa.int32()), "name": list(NAMES.values())})
        local = LocalInputs({"t0"}, {"t0": pa.table({**columns, WEIGHT: weights})}, dict.fromkeys(uses, names))
        return merge_aggregates(self.added, local, self.find(self.answer(before)))


def require_right(view, before, came, went):
    """Rows that are sure are those of the model, and all that changed are there. Returns how many are not sure."""
    merged = view.merged(before, came, went)
    assert merged is not None
    after = [row for row in before if row not in went] + came
    old, new = view.answer(before), view.answer(after)
    found = {}
    for row in merged.to_pylist():
        key = row[group_column(view.root.groups[0])]
        assert row[KEY] == view.hashed(key)
        found[key] = (
            "again" if row[RECOMPUTE] else "gone" if row[IS_DELETED] else [row[name] for name in view.names[1:]]
        )
    for key in {*old, *new}:
        expected = None if old.get(key) == new.get(key) else new.get(key, "gone")
        assert found.pop(key, None) in (expected, "again")
    assert not found, "rows of groups that neither were nor are"
    return sum(1 for row in merged.to_pylist() if row[RECOMPUTE])


def row(chance, number):
    return {
        "id": number,
        "g": chance.choice([None, 1, 2, 3]),
        "x": chance.choice([None, 0, 1, -1, 5]),
        "d": chance.choice([None, Decimal("1.25"), Decimal("-1.25"), Decimal("0.00")]),
        "s": chance.choice([None, "a", "b", "ä", ""]),
    }


VIEWS = [
    View("g", ["count(*)", "sum(x)", "sum(d)", "min(s)", "max(x)"]),
    View("g", ["sum(x)"]),
    View("s", ["count(x)", "sum(x)", "max(x)"]),
    View("s", []),
    View("name", ["count(*)", "sum(d)"], "INNER"),
    View("name", ["sum(x)", "min(s)"], "LEFT"),
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.group} {view.functions} {view.joined}")
def test_rows_are_those_of_the_model(view):
    chance, again, rows = random.Random(3), 0, 0
    for _ in range(150):
        before = [row(chance, number) for number in range(chance.randint(0, 8))]
        went = chance.sample(before, chance.randint(0, min(3, len(before))))
        came = [row(chance, 100 + number) for number in range(chance.randint(0, 3))]
        rows += len(view.answer([*went, *came]))
        again += require_right(view, before, came, went)
    assert again < rows / 2


def the_number_of_values_is_overlooked(patched):
    patched.setattr(local_executor._NewValue, "result", lambda self, _: self.value)


def a_maximum_that_went_stays(patched):
    real = local_executor._NewValue.is_known

    def known(self, new):
        return pa.array([True] * len(self.value)) if self.part.kind == "max" else real(self, new)

    patched.setattr(local_executor._NewValue, "is_known", known)


def empty_groups_stay(patched):
    patched.setattr(local_executor, "_count_rows", lambda number: pa.array([True] * len(number)))


def texts_without_their_length(patched):
    real = local_executor.pc.utf8_length
    patched.setattr(local_executor.pc, "utf8_length", lambda text: pa.compute.binary_length(text) if real else None)


@pytest.mark.parametrize(
    ("bug", "view"),
    [
        (the_number_of_values_is_overlooked, VIEWS[1]),
        (a_maximum_that_went_stays, VIEWS[0]),
        (empty_groups_stay, VIEWS[0]),
        (texts_without_their_length, VIEWS[2]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_planted_bugs_are_found(bug, view, monkeypatch):
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        test_rows_are_those_of_the_model(view)


def test_what_is_not_surely_the_same_is_left_to_spark():
    big = {"id": 1, "g": 1, "x": 1, "d": Decimal("1.25"), "s": "a"}
    view = View("g", ["sum(x)"])
    assert view.merged([], [big], []) is not None
    view.types[view.root.columns[1]] = "double"
    assert IncrementalAggregate.of(RefreshStatements(view.root, view.names, view.types, "hash")) is not None
    view.added = IncrementalAggregate.of(RefreshStatements(view.root, view.names, view.types, "hash"))
    assert view.merged([], [big], []) is None, "a sum of floating point numbers"
    filtered = View("g", ["count(*)"])
    root = prune_columns(
        build_plan(parse_sql("SELECT g, count(*) AS n FROM db.t WHERE x > 0 GROUP BY g"), SOURCES, IDS)
    )
    types = {**dict.fromkeys((*root.columns, *root.child.columns), "int")}
    filtered.added = IncrementalAggregate.of(RefreshStatements(root, ("g", "n"), types, "hash"))
    assert filtered.merged([], [big], []) is None, "a condition"


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64()], ids=str)
def test_a_join_by_floats_is_left_to_spark(kind):
    """Spark finds 0.0 beside -0.0, and Arrow compares bytes."""
    query = "SELECT t.g AS g, count(*) AS n FROM db.t t JOIN db.u u ON t.g = u.id AND t.x = u.name GROUP BY t.g"
    root = prune_columns(build_plan(parse_sql(query), SOURCES, IDS))
    added = IncrementalAggregate.of(
        RefreshStatements(root, ("g", "n"), dict.fromkeys((*root.columns, *root.child.columns), "int"), "hash")
    )
    changed = pa.table({"g": pa.array([1], pa.int32()), "x": pa.array([0], kind), WEIGHT: pa.array([1], pa.int64())})
    beside = pa.table({"id": pa.array([1], pa.int32()), "name": pa.array([0], kind)})
    uses = dict.fromkeys(find_indexed_sides(root, {"t0"}, {"t1": ("id",)}), beside)

    def find(keys):
        return pa.table({KEY: keys[KEY], "g": pa.nulls(1, pa.int32()), "n": pa.nulls(1, pa.int64()), "_found": [False]})

    merged = merge_aggregates(added, LocalInputs({"t0"}, {"t0": changed}, uses), find)
    assert (merged is None) is pa.types.is_floating(kind)


@pytest.mark.parametrize(
    ("day", "is_left"), [(-719_162, False), (2_932_896, False), (-719_163, True), (2_932_897, True)]
)
def test_a_year_that_spark_writes_with_a_sign_is_left_to_it(day, is_left):
    root = prune_columns(build_plan(parse_sql("SELECT g, count(*) AS n FROM db.t GROUP BY g"), SOURCES, IDS))
    types = dict.fromkeys((*root.columns, *root.child.columns), "date")
    added = IncrementalAggregate.of(RefreshStatements(root, ("g", "n"), types, "hash"))
    days = pa.array([day, None], pa.int32()).cast(pa.date32())
    changed = pa.table({"g": days, WEIGHT: pa.array([1, 1], pa.int64())})

    def find(keys):
        return pa.table(
            {KEY: keys[KEY], "g": pa.nulls(2, pa.date32()), "n": pa.nulls(2, pa.int64()), "_found": [False] * 2}
        )

    assert (merge_aggregates(added, LocalInputs({"t0"}, {"t0": changed}, {}), find) is None) is is_left
