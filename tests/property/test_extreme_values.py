"""Rows whose values lie anywhere in their types, most at the ends: a table answers as Arrow does over its rows."""

from __future__ import annotations

import itertools
import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from kit.tables import require_verified, tier
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.core.python_values import from_text, is_beyond_python, to_python
from streamhouse_spark.expressions.filters import parse_filter

OPERATORS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
NUMBERS = {
    "DATE": (pa.date32(), 31),
    "TIMESTAMP": (pa.timestamp("us", "UTC"), 63),
    "TIMESTAMP_NTZ": (pa.timestamp("us"), 63),
}
PYTHON_ENDS = [-719_163, -719_162, 2_932_896, 2_932_897]


def ticks(kind: str) -> st.SearchStrategy[pa.Scalar]:
    """Draw dates or times, half of them at an end of the type or of Python's range."""
    data_type, bits = NUMBERS[kind]
    unit = 1 if kind == "DATE" else 86_400_000_000
    ends = [
        -(1 << bits),
        -(1 << bits) + 1,
        (1 << bits) - 1,
        0,
        *(day * unit + more for day in PYTHON_ENDS for more in (-1, 0)),
    ]
    numbers = st.sampled_from(ends) | st.integers(-(1 << bits), (1 << bits) - 1)
    return numbers.map(lambda number: pa.scalar(number, data_type))


VALUES = {kind: ticks(kind) for kind in NUMBERS} | {
    "DECIMAL(38,9)": st.decimals(-(10**29) + 1, 10**29 - 1, places=9, allow_nan=False, allow_infinity=False),
    "DOUBLE": st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324]) | st.floats(),
    "BIGINT": st.sampled_from([-(1 << 63), (1 << 63) - 1]) | st.integers(-(1 << 63), (1 << 63) - 1),
    "STRING": st.text(max_size=80),
    "BINARY": st.binary(max_size=80),
}
SEEDS = itertools.count()
"""Identities of tables: one cache has the rows of all of them."""
ROLES = ("column", "partition", "key")
NO_ROLE = {
    "paimon": {
        "partition": {"TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(38,9)", "DOUBLE", "BINARY"},
        "key": {"DECIMAL(38,9)", "DOUBLE"},
    }
}
"""Types that a lake's tables cannot have in a role."""


def told(column: pa.ChunkedArray) -> list[str]:
    return sorted(repr(to_python(value)) for value in column)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.usefixtures("own_cache")
def test_a_table_answers_as_arrow_does(data):
    kind, lake, role = (data.draw(st.sampled_from(some)) for some in (list(VALUES), ["iceberg", "paimon"], ROLES))
    if kind in NO_ROLE.get(lake, {}).get(role, ()):
        role = "column"
    values = data.draw(st.lists(VALUES[kind], min_size=1, max_size=6))
    seed = next(SEEDS)
    table = open_warehouse(new_store(seed), seed).create_table(
        "d.t",
        f"id BIGINT, v {kind}{' NOT NULL' if role == 'key' else ''}",
        partition_by=["v"] if role == "partition" else [],
        primary_key=["v"] if role == "key" else [],
        properties={"table.datalake.format": lake},
    )
    column = pa.array(values, table.schema.field("v").type)
    rows = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": column})
    write = table.upsert if role == "key" else table.append
    if lake == "paimon" and role != "column" and is_beyond_python(column):
        event("refused")
        with pytest.raises(SchemaMismatchError, match="the years 1 to 9999"):
            write(rows)
        assert table.refresh().num_rows == 0
        return
    write(rows)
    if role == "key":
        rows = table.to_arrow()
        found = table.lookup(rows.select(["v"]))
        assert told(found.column("v")) == told(rows.column("v"))
        assert all(found.column("_found").to_pylist())
    for _ in range(2):
        assert told(table.to_arrow().column("v")) == told(rows.column("v"))
        value = data.draw(st.sampled_from(range(rows.num_rows)).map(lambda place: rows.column("v")[place]))
        operator = data.draw(st.sampled_from(list(OPERATORS)))
        expected = rows.filter(OPERATORS[operator](rows.column("v"), value))
        assert told(table.to_arrow(filter=[("v", operator, value)]).column("id")) == told(expected.column("id"))
        tier(table)
    require_verified(table)


@given(st.data())
def test_a_filter_is_bound_to_what_its_text_says(data):
    kind = data.draw(st.sampled_from(list(NUMBERS)))
    value, other = data.draw(ticks(kind)), data.draw(ticks(kind))
    python = to_python(value)
    text = python if isinstance(python, str) else python.isoformat().replace("+00:00", "Z")
    assert from_text(text, value.type).equals(value)
    rows = pa.table({"v": pa.array([other], other.type)})
    for operator, compare in OPERATORS.items():
        bound = parse_filter([("v", operator, value)]).bind(rows.schema)
        assert rows.filter(bound.expression).num_rows == compare(other, value).as_py()
