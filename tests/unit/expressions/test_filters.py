"""Filters and projections: the same rows as filtering everything with Arrow, from as few segments as possible."""

from __future__ import annotations

import datetime as dt
import decimal
import operator
import random
import re
from decimal import Decimal
from functools import reduce
from itertools import chain, product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, Warehouse
from streamhouse_spark.expressions.filters import ArrowFilter, filter_and_project, parse_filter
from streamhouse_spark.expressions.predicates import constant_bounds, may_match
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.log.segments.statistics import stats_bounds
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.write.auto_compaction import compact_inline_rows

DDL = (
    "k BIGINT NOT NULL, i INT, f DOUBLE, g FLOAT, s STRING, d DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, "
    "m DECIMAL(10,2), b BOOLEAN, raw BINARY"
)
UTC = dt.UTC
DAY = dt.date(2026, 1, 1)
SMALL = {
    "k": st.integers(-3, 3),
    "i": st.integers(-3, 3),
    "f": st.sampled_from([-1.5, -0.0, 0.0, 1.0, float("nan"), float("inf"), float("-inf")]),
    "g": st.sampled_from([-1.5, 0.1, 2.0, float("nan")]),
    "s": st.sampled_from(["", "a", "b", "ba", "ü", "x" * 70]),
    "d": st.integers(-2, 2).map(lambda n: DAY + dt.timedelta(days=n)),
    "ts": st.integers(-2, 2).map(lambda n: dt.datetime(2026, 1, 1, tzinfo=UTC) + dt.timedelta(microseconds=n)),
    "ntz": st.integers(-2, 2).map(lambda n: dt.datetime(2026, 1, 1) + dt.timedelta(hours=n)),
    "m": st.integers(-2, 2).map(lambda n: decimal.Decimal(n) / 4),
    "b": st.booleans(),
    "raw": st.sampled_from([b"", b"\x00", b"\xff"]),
}
"""Few values, so that random filters often match, miss, and meet the bounds."""
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)
OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def row_of(draw):
    def value(name):
        return draw(SMALL[name] if name == "k" else st.one_of(st.none(), SMALL[name]))

    return {name: value(name) for name in SMALL}


@st.composite
def batches(draw):
    """Batches of rows; each becomes a segment. Often all alike, so that bounds are narrow."""
    return [
        [row_of(draw)] * draw(st.integers(1, 2)) if draw(st.booleans()) else [row_of(draw), row_of(draw)]
        for _ in range(draw(st.integers(1, 5)))
    ]


@st.composite
def predicates(draw):
    name = draw(st.sampled_from(sorted(SMALL)))
    kind = draw(st.sampled_from([*OPERATORS, "in", "is null", "not null"]))
    if name in ("b", "raw") and kind in ("<", "<=", ">", ">="):
        kind = "="
    if kind == "in":
        return name, kind, draw(st.lists(st.one_of(st.none(), SMALL[name]), max_size=3))
    return name, kind, draw(SMALL[name]) if kind in OPERATORS else None


def as_expression(predicate, schema, *, as_in_sql=False):
    """What Arrow makes of it; ``as_in_sql`` null is in no list, and no number is rounded, as with predicates."""
    name, kind, value = predicate
    field, of_type = pc.field(name), schema.field(name).type
    if as_in_sql and pa.types.is_floating(of_type):
        field, of_type = field.cast(pa.float64()), pa.float64()  # 0.1 is no FLOAT
    if kind == "in":
        value = [v for v in value if v is not None or not as_in_sql]
        return field.isin(pa.array(value, of_type))
    if kind == "is null":
        return field.is_null()
    if kind == "not null":
        return field.is_valid()
    return OPERATORS[kind](field, pa.scalar(value, of_type))


@st.composite
def conditions(draw):
    """Predicates and how each is joined to what stands before it; ``~`` negates all of it."""
    return [(draw(st.sampled_from(["&", "|", "~"])), draw(predicates())) for _ in range(draw(st.integers(1, 4)))]


def joined(condition, schema):
    whole = as_expression(condition[0][1], schema)
    for how, predicate in condition[1:]:
        term = as_expression(predicate, schema)
        whole = {"&": lambda a, b: a & b, "|": lambda a, b: a | b, "~": lambda a, b: ~a & b}[how](whole, term)
    return ~whole if condition[0][0] == "~" else whole


def new_table(parts, *, buckets=1, codec="none"):
    world = sim_world(0)
    wh = Warehouse("wh", storage=MemoryStorage(world), world=world)
    properties = {"table.statistics.columns": "*", "table.log.arrow.compression.type": codec}
    if buckets > 1:
        properties["bucket.key"] = "s"
    table = wh.create_table("t", DDL, buckets=buckets, properties=properties)
    for part in parts:
        table.append(part)
    return table


# Comparing floats with NaN in Python is useless: compare the text of the rows.
def shown(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    batches(),
    conditions(),
    st.lists(predicates(), min_size=1, max_size=3),
    st.lists(st.sampled_from(sorted(SMALL)), unique=True, max_size=3),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_any_filter_gives_what_arrow_gives_on_everything(parts, condition, asked, columns, buckets, merged):
    table = new_table(parts, buckets=buckets)
    if merged:
        compact_inline_rows(table)
    everything = table.to_arrow()
    assert shown(everything) == shown(pa.Table.from_pylist(list(chain.from_iterable(parts)), table.schema))

    expression = joined(condition, table.schema)
    assert shown(table.to_arrow(filter=expression)) == shown(everything.filter(expression))

    expected = everything.filter(reduce(operator.and_, [as_expression(p, table.schema, as_in_sql=True) for p in asked]))
    assert shown(table.to_arrow(filter=asked)) == shown(expected)
    found = table.to_arrow(filter=asked, columns=columns)
    assert found.column_names == columns
    assert found.num_rows == expected.num_rows
    assert shown(found) == shown(expected.select(columns))


PRUNED = [
    ([("k", "=", 3)], [3]),
    ([("k", ">=", 8)], [8, 9]),
    ([("k", "in", [2, 6])], [2, 6]),
    ([("k", "<", 5), ("k", ">", 3)], [4]),
    ([("s", "=", "name-9")], [9]),
    ([("d", "<=", DAY)], [0]),
    ([("ts", ">", dt.datetime(2026, 1, 9, tzinfo=UTC))], [9]),
    ([("m", "=", decimal.Decimal(6))], [6]),
    ([("i", "is null", None)], [4]),
    ([("f", "=", 1.5)], [3, 5]),  # NaN leaves no bounds: the segment is looked at
    ((pc.field("k") == 1) | (pc.field("s") == "name-2"), [1, 2]),
    (~(pc.field("k") > 0), [0]),
    (pc.field("k") == 77, []),
]


class TestPruning:
    """Segments that cannot match are never opened: here they are gone, and the read still works."""

    @pytest.fixture
    def table(self, memory, world):
        wh = Warehouse("wh", storage=memory, world=world)
        return wh.create_table("t", DDL, properties={"table.statistics.columns": "*"})

    def fill(self, table, memory):
        for i in range(10):
            day = DAY + dt.timedelta(days=i)
            n = 5000
            table.append(
                pa.table(
                    {
                        "k": [i] * n,
                        "i": [None] * n if i == 4 else [i] * n,
                        "f": [float("nan")] * n if i == 5 else [i / 2] * n,
                        "s": [f"name-{i}"] * n,
                        "d": [day] * n,
                        "ts": [dt.datetime(2026, 1, 1 + i, tzinfo=UTC)] * n,
                        "m": [decimal.Decimal(i)] * n,
                    }
                )
            )
        return [f for f in table.inspect.segments()["file"].to_pylist() if f is not None]

    @pytest.mark.parametrize(("filter_", "needed"), PRUNED, ids=str)
    def test_only_what_can_match_is_read(self, table, memory, world, filter_, needed):
        files = self.fill(table, memory)
        assert len(files) == 10
        expected = table.to_arrow().filter(pc.field("k").isin(pa.array(needed, pa.int64())))
        for i, file in enumerate(files):
            if i not in needed:
                memory.delete(file)
        found = table.to_arrow(filter=filter_)
        assert found.num_rows == (5000 * len(needed) if needed != [3, 5] else 5000)
        assert set(found["k"].to_pylist()) <= set(expected["k"].to_pylist())

    def test_the_storage_reads_are_few(self, memory, world):
        counting = FaultyStorage(memory)
        wh = Warehouse("wh", storage=counting, world=world)
        table = wh.create_table("t", DDL, properties={"table.statistics.columns": "k"})
        self.fill(table, memory)

        def reads(**asked):
            counting.trace.clear()
            table.to_arrow(**asked)
            return sum("/segments/" in key for _, _, key in counting.trace)

        all_reads = reads()
        assert reads(filter=[("k", "=", 3)]) * 10 == all_reads
        assert reads(filter=[("k", "=", 99)]) == 0
        assert reads(filter=[("i", "=", 3)]) >= 10, "there are no statistics of i"

    def test_merged_segments_keep_the_bounds_of_columns(self, table, memory):
        for k in (5, 1, 3):
            table.append([{"k": k, "s": None}, {"k": k, "s": f"n{k}"}])
        compact_inline_rows(table)
        (segment,) = table.state.live_segments()
        assert segment.stats["k"] == [1, 5, 0]
        assert segment.stats["s"] == ["n1", "n5", 3]
        memory.delete(table.inspect.segments()["file"][0].as_py())
        assert table.to_arrow(filter=[("k", ">", 5)]).num_rows == 0

    def test_statistics_default_to_keys_partitions_and_times(self, wh):
        table = wh.create_table("x", DDL, partition_by=["s"], buckets=2, properties={"bucket.key": "k"})
        assert table.properties.statistics_columns == ("k", "s", "d", "ts", "ntz")


class TestProjection:
    @pytest.fixture
    def table(self, wh):
        table = wh.create_table("t", "a INT, B STRING, c DOUBLE")
        table.append([{"a": 1, "B": "x", "c": 0.5}, {"a": 2, "B": "y", "c": None}])
        table.append(pa.table({"a": range(40_000), "B": ["z"] * 40_000}))
        return table

    def test_order_and_spelling_are_those_asked_for_and_the_tables(self, table):
        found = table.to_arrow(columns=["C", "b"])
        assert found.column_names == ["c", "B"]
        assert found.num_rows == 40_002
        assert table.to_arrow(columns=["B", "a", "c"]).slice(0, 1).to_pylist() == [{"B": "x", "a": 1, "c": 0.5}]

    def test_no_column_still_counts(self, table):
        assert table.to_arrow(columns=[]).num_rows == 40_002
        assert table.to_arrow(columns=[], filter=[("a", "<=", 1)]).num_rows == 3
        assert table.to_arrow(columns=[]).column_names == []

    def test_the_filter_may_use_columns_that_are_not_asked_for(self, table):
        assert table.to_arrow(columns=["B"], filter=[("a", "=", 2), ("c", "is null", None)]).to_pylist() == [
            {"B": "y"},
            {"B": "z"},
        ]
        assert table.to_arrow(columns=["c"], filter=pc.field("a") == 1).to_pylist() == [{"c": 0.5}, {"c": None}]

    def test_predicates_ignore_case_as_columns_do(self, table):
        assert table.to_arrow(columns=["a"], filter=[("b", "=", "y")]).to_pylist() == [{"a": 2}]
        assert table.to_arrow(columns=["a"], filter=[("A", "==", 2), ("C", "NOT NULL", None)]).num_rows == 0

    def test_an_empty_filter_is_none(self, table):
        assert table.to_arrow(filter=[]).num_rows == 40_002

    def test_values_of_the_wrong_kind_of_number_are_compared_as_numbers(self, table):
        assert table.to_arrow(filter=[("a", "=", 2.0)]).num_rows == 2
        assert table.to_arrow(filter=[("c", "=", decimal.Decimal("0.5"))]).num_rows == 1

    def test_a_filter_with_null_matches_nothing(self, table):
        assert table.to_arrow(filter=[("a", "=", None)]).num_rows == 0
        assert table.to_arrow(filter=[("a", "in", [])]).num_rows == 0
        assert table.to_arrow(filter=[("a", "in", [None, 2])]).num_rows == 2
        assert table.to_arrow(filter=[("c", "in", [None])]).num_rows == 0

    @pytest.mark.parametrize("columns", [["nope"], ["a", "nope"], [""]])
    def test_a_projection_of_unknown_columns_is_rejected(self, table, columns):
        with pytest.raises(SchemaMismatchError, match="there is no column"):
            table.to_arrow(columns=columns)

    def test_a_projection_with_a_repeated_column_is_rejected(self, table):
        with pytest.raises(SchemaMismatchError, match="'a' is requested twice"):
            table.to_arrow(columns=["a", "A"])

    @pytest.mark.parametrize(
        "filter_", [[("nope", "=", 1)], pc.field("nope") == 1, (pc.field("a") == 1) & (pc.field("nope") == 1)], ids=str
    )
    def test_a_filter_of_an_unknown_column_is_rejected(self, table, filter_):
        with pytest.raises(SchemaMismatchError, match=r"nope.*The columns are a, B, c"):
            table.to_arrow(filter=filter_)

    @pytest.mark.parametrize(
        "filter_",
        [
            [("a", "like", "x%")],
            [("a", "=")],
            [["a", "=", 1]],
            ["a = 1"],
            5,
            {"a": 1},
            [("a", None, 1)],
            [("a", "in", 5)],
            [("a", "in", "text")],
            [("a", "=", "text")],
            [("B", "<", 5)],
            [("B", "=", [1, 2])],
            [("B", "=", ENDLESS)],
            [("B", "in", [ENDLESS])],
            [("a", "=", object())],
            [(5, "=", 1)],
            pc.field("a") == "text",
            pc.field("a") + 1,
            pc.field("B"),
            pc.add(pc.field("B"), pc.field("B")),
        ],
        ids=lambda f: re.sub("0x[0-9a-f]+", "…", repr(f)),
    )
    def test_filters_that_are_none(self, table, filter_):
        with pytest.raises(InvalidOptionError, match="filter"):
            table.to_arrow(filter=filter_)


def test_pruned_reads_of_random_data_over_many_segments():
    rng = random.Random(4)
    parts = [
        [{"k": base + rng.randrange(20), "s": rng.choice("abc"), "f": rng.random()} for _ in range(30)]
        for base in rng.sample(range(0, 1000, 10), 40)
    ]
    table = new_table(parts, buckets=3)
    everything = table.to_arrow()
    for low in range(0, 1000, 37):
        asked = [("k", ">=", low), ("k", "<", low + 25)]
        expected = everything.filter((pc.field("k") >= low) & (pc.field("k") < low + 25))
        assert table.to_arrow(filter=asked).equals(expected.combine_chunks())


NUMBERS = {
    "TINYINT": [-128, -1, 0, 5, 127],
    "BIGINT": [-(2**63), -1, 0, 5, 2**53 + 1, 2**63 - 1],
    "DECIMAL(5,2)": [decimal.Decimal(t) for t in ("-999.99", "-0.01", "0", "5", "5.01", "999.99")],
    "DECIMAL(38,10)": [decimal.Decimal(t) for t in ("-1e27", "0", "5", "5.0000000001", "9" * 28 + "." + "9" * 10)],
}
OPERANDS = [
    *(-(2**63), -129, -1, 0, 5, 127, 128, 2**53 + 1, 2**63 - 1, 10**30, -(10**60)),
    *map(decimal.Decimal, ("5", "5.00", "5.005", "-0.005", "1e-40", "-1e40", "1e400", "999.99", "9007199254740993.5")),
]


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_are_compared_exactly(memory, world, kind, name):
    table = Warehouse("wh", storage=memory, world=world).create_table(
        "t", f"n {kind}", properties={"table.statistics.columns": "*"}
    )
    values = NUMBERS[kind]
    table.append([{"n": v} for v in [None, *values]])
    for operand in OPERANDS:
        expected = [v for v in values if OPERATORS[name](v, operand)]
        assert table.to_arrow(filter=[("n", name, operand)])["n"].to_pylist() == expected, operand
    equal = [v for v in values if any(v == o for o in OPERANDS)]
    assert table.to_arrow(filter=[("n", "in", [None, *OPERANDS])])["n"].to_pylist() == equal


@pytest.mark.parametrize("operand", [decimal.Decimal("1.5"), 1.5, decimal.Decimal("-0.5"), 2], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_segment_of_one_value_is_read_where_the_value_matches(name, operand):
    bound = parse_filter([("n", name, operand)]).bind(pa.schema([("n", pa.int32())]))
    for value in range(-2, 4):
        assert may_match(bound.node, {"n": constant_bounds(value)}) or not OPERATORS[name](value, operand), value


FLOATS = [float("-inf"), -1e300, -2.5, -0.0, 1e-40, 0.5, 2.0**62, 1e300, float("inf"), float("nan")]


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_are_compared_with_floats(memory, world, kind, name):
    table = Warehouse("wh", storage=memory, world=world).create_table("t", f"n {kind}")
    values = NUMBERS[kind]
    table.append([{"n": v} for v in [None, *values]])
    for operand in [*FLOATS, *map(np.float32, (0.5, 5)), np.int64(5), decimal.Decimal("NaN"), decimal.Decimal("inf")]:
        expected = [v for v in values if OPERATORS[name](float(v), float(operand))]
        assert table.to_arrow(filter=[("n", name, operand)])["n"].to_pylist() == expected, operand


MOMENT = dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
PRUNED = {
    "i INT": [0, 1, 2**31 - 1],
    "n BIGINT": [0, -(2**63), 2**63 - 1],
    "m DECIMAL(9,2)": [decimal.Decimal(v) for v in ("0", "0.01", "-9999999.99")],
    "g FLOAT": [0.0, float(np.float32(0.1)), float("inf"), float("-inf"), float("nan")],
    "f DOUBLE": [0.0, 0.1, float("inf"), float("-inf"), float("nan")],
    "d DATE": [dt.date(1970, 1, 1), dt.date(1969, 12, 31)],
    "t TIMESTAMP": [MOMENT, dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(1970, 1, 1, 1, tzinfo=UTC)],
    "z TIMESTAMP_NTZ": [dt.datetime(1970, 1, 1), dt.datetime(1969, 12, 31, 23)],
    "s STRING": ["", "a", "\U0001f600"],
    "b BOOLEAN": [True, False],
    "raw BINARY": [b"", b"\xff"],
}
ODD = [dt.datetime(1970, 1, 1), 0.1, -1e300, 1e39, 5e-324, float("nan"), 10**400, decimal.Decimal("0.001")]


@pytest.mark.parametrize("lake_format", ["iceberg", pytest.param("paimon", marks=pytest.mark.long)])
def test_lake_files_are_pruned_of_no_row(memory, world, lake_format):
    """A file for each value, asked for with all values and with those of other types."""
    columns = [ddl.split()[0] for ddl in PRUNED]
    made = Warehouse("wh", storage=memory, world=world).create_table(
        "t", ", ".join(PRUNED), properties={"table.datalake.format": lake_format}
    )
    for i in range(max(map(len, PRUNED.values()))):
        made.append([{c: v[i % len(v)] for c, v in zip(columns, PRUNED.values(), strict=True)}])
        tier_table(made, run_tasks_locally(memory, {}, world))
    pair = [0.5, float("nan")]  # in one file, whose bounds speak of one of them
    made.append([{"f": value, "g": value} for value in pair])
    tier_table(made, run_tasks_locally(memory, {}, world))
    everything = made.to_arrow()
    assert made.inspect.buckets()["lag"].to_pylist() == [0]
    for column, values in zip(columns, PRUNED.values(), strict=True):
        own = product([*OPERATORS, "in"] if values[0] == 0 else ["=", ">", "in"], values)
        odd = product(("<", "in"), ODD if values[0] == 0 else ODD[:1])
        for name, value in chain(own, odd):
            asked = [(column, name, [value] if name == "in" else value)]
            try:
                expected = filter_and_project(everything, None, parse_filter(asked))
            except InvalidOptionError:
                with pytest.raises(InvalidOptionError):
                    made.to_arrow(filter=asked)
                continue
            found = made.to_arrow(columns=[column], filter=asked).column(column)
            assert str(found.to_pylist()) == str(expected.column(column).to_pylist()), asked


@pytest.mark.parametrize("name", [*OPERATORS, "in"])
def test_a_number_that_is_no_float_is_not_rounded_to_one(wh, name):
    """The FLOAT nearest to 0.1 is larger than 0.1. An expression with a literal of type FLOAT means that one."""
    table = wh.create_table("t", "g FLOAT", properties={"table.statistics.columns": "*"})
    near = float(np.float32(0.1))
    for value in (near, -1.5, 2.0):  # a segment each, so that the bounds decide too
        table.append([{"g": value}])
    everything = table.to_arrow()
    for literal in (0.1, near, np.float32(0.1), pa.scalar(0.1, pa.float32()), pa.scalar(0.1)):
        number = literal.as_py() if isinstance(literal, pa.Scalar) else float(literal)
        expected = [v for v in (near, -1.5, 2.0) if (v == number if name == "in" else OPERATORS[name](v, number))]
        asked = [("g", name, [literal] if name == "in" else literal)]
        assert table.to_arrow(filter=asked)["g"].to_pylist() == expected, literal
        if name != "in":
            expression = OPERATORS[name](pc.field("g"), literal)
            assert everything.filter(expression)["g"].to_pylist() == expected, literal
            assert table.to_arrow(filter=expression)["g"].to_pylist() == expected, literal


def test_zoned_and_plain_times_are_not_compared(wh):
    table = wh.create_table("t", "t TIMESTAMP, z TIMESTAMP_NTZ")
    table.append([{"t": MOMENT, "z": dt.datetime(1970, 1, 1)}])
    for column, value in (("t", dt.datetime(1970, 1, 1)), ("z", MOMENT)):
        with pytest.raises(InvalidOptionError, match=f"column '{column}'"):
            table.to_arrow(filter=[(column, "<", value)])


def test_in_lists_match_values_of_other_numeric_types(wh):
    table = wh.create_table("t", "i INT, g FLOAT, d DATE, ts TIMESTAMP, s STRING, b BOOLEAN")
    moment = dt.datetime(2026, 1, 1, tzinfo=UTC)
    table.append([{"i": 1, "g": 0.5, "d": DAY, "ts": moment, "s": "x", "b": True}, {}])
    matching = {
        "i": [1, 1.0, decimal.Decimal("1.0")],
        "g": [0.5, decimal.Decimal("0.5")],
        "d": [DAY],
        "ts": [moment, moment.astimezone(dt.timezone(dt.timedelta(hours=3)))],
        "s": ["x"],
        "b": [True],
    }
    for name, values in matching.items():
        for value in values:
            assert table.to_arrow(filter=[(name, "in", [value])]).num_rows == 1
            assert table.to_arrow(filter=[(name, "=", value)]).num_rows == 1
            assert table.to_arrow(filter=[(name, "in", pa.array([value]))]).num_rows == 1
    assert table.to_arrow(filter=[("i", "in", [1.5, float("nan")])]).num_rows == 0
    table.append([{"g": 0.1}, {"g": 0.0}, {"g": float("inf")}])
    for value in (0.1, 5e-324, 1e39, 10**400):  # none of them is a FLOAT
        assert table.to_arrow(filter=[("g", "in", [value])]).num_rows == 0
    for name, value in [("i", "1"), ("i", True), ("d", moment), ("ts", dt.datetime(2026, 1, 1)), ("s", 1), ("b", 1)]:
        with pytest.raises(InvalidOptionError, match=f"column '{name}'"):
            table.to_arrow(filter=[(name, "in", [value])])


# -- filters that are expressions of Arrow ----------------------------------------------------------------------------


SCHEMA = pa.schema(
    [("i", pa.int32()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC")), ("m", pa.decimal128(9, 2))]
)
FIVE = {"i": [5, 5, 0]}
F = pc.field("i")


@pytest.mark.parametrize(
    ("stats", "filter_", "expected"),
    [
        (FIVE, F == 5, True),
        (FIVE, F == 6, False),
        (FIVE, F < 5, False),
        (FIVE, F <= 5, True),
        (FIVE, F > 4.5, True),
        (FIVE, F.is_null(), False),
        ({"i": [5, 5, 1]}, F.is_null(), True),
        ({"i": [5, 5, 1]}, F == 6, False),
        ({"i": [5, 5, 1]}, F.isin([1, 2]), False),
        ({"i": [5, 5, 1]}, F.isin([1, None]), True),
        ({"i": [5, 5, 1]}, (F == 6) | F.is_null(), True),
        ({"i": [None, None, 3]}, F == 5, False),
        ({"i": [None, None, 3]}, F.is_null(), True),
        ({"i": [None, None, 3]}, F.is_valid(), False),
        (FIVE, F.isin([1, 2]), False),
        (FIVE, F.isin([1, 5]), True),
        (FIVE, (F == 6) | (pc.field("s") == "x"), True),
        (FIVE, (F == 6) & (pc.field("s") == "x"), False),
        ({"i": [0, 9, 0], "s": ["b", "d", 0]}, pc.field("s") == "a", False),
        ({"m": ["1.00", "2.00", 0]}, pc.field("m") > pa.scalar(Decimal("2.00"), pa.decimal128(9, 2)), False),
        ({"t": [0, 0, 0]}, pc.field("t") == dt.datetime(1970, 1, 1, tzinfo=dt.UTC), True),
        ({"t": [0, 0, 0]}, pc.field("t") > dt.datetime(1970, 1, 1, tzinfo=dt.UTC), False),
        ({"gone": [1, 1, 0]}, F == 5, True),
        ({}, F == 5, True),
    ],
    ids=str,
)
def test_arrow_excludes_what_bounds_exclude(stats, filter_, expected):
    bounds = {
        name: stats_bounds(found, SCHEMA.field(name).type if name in SCHEMA.names else pa.int64(), 3)
        for name, found in stats.items()
    }
    assert may_match(ArrowFilter(filter_, SCHEMA), bounds) is expected
