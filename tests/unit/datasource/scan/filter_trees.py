"""Random filters as Spark pushes them, random rows, and what SQL says of the one for the other."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

SCHEMA = pa.schema([
    ("i", pa.int32()),
    ("n", pa.int64()),
    ("f", pa.float64()),
    ("g", pa.float32()),
    ("s", pa.string()),
    ("x", pa.binary()),
    ("c", pa.decimal128(9, 2)),
    ("d", pa.date32()),
    ("t", pa.timestamp("us", "UTC")),
    ("u", pa.timestamp("us")),
    ("b", pa.bool_()),
])  # fmt: skip
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SPARK_TYPES = {
    "i": "integer",
    "n": "long",
    "f": "double",
    "g": "float",
    "s": "string",
    "x": "binary",
    "c": "decimal(9,2)",
    "d": "date",
    "t": "timestamp",
    "u": "timestamp_ntz",
    "b": "boolean",
}
_TEXTS = st.text(alphabet="aábé\U0001f600z\uffff", max_size=20)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-4, 4) | st.integers(-(2**31), 2**31 - 1),
    "n": st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    "f": st.sampled_from([0.0, -0.0, 1.5, -2.0, math.nan, math.inf, -math.inf, 1e300]) | st.floats(),
    "g": st.sampled_from([0.0, -0.0, 1.5, -2.0, math.nan, math.inf]) | st.floats(width=32),
    "s": _TEXTS,
    "x": st.binary(max_size=20),
    "c": st.decimals(-9, 9, places=2),
    "d": st.dates(dt.date(1960, 1, 1), dt.date(1980, 1, 1)),
    "t": st.datetimes(dt.datetime(1969, 12, 30), dt.datetime(1970, 1, 3), timezones=st.just(dt.UTC)),
    "u": st.datetimes(dt.datetime(1969, 12, 30), dt.datetime(1970, 1, 3)),
    "b": st.booleans(),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), min_size=1, max_size=6
)


def literal(name: str, value: Any) -> dict[str, Any]:
    kind = _SPARK_TYPES[name]
    if kind.startswith("decimal") and value is not None:
        kind = f"decimal(12,{max(0, -value.as_tuple().exponent)})"
    return {"literal": wire(value), "type": f'"{kind}"'}


def wire(value: Any) -> Any:
    match value:
        case decimal.Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dt.datetime():
            return (value.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - dt.date(1970, 1, 1)).days
    return value


@st.composite
def leaves(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """A leaf, as the reference evaluator takes it and as JSON."""
    name = draw(st.sampled_from(list(VALUES)))
    column = {"column": [name]}
    value = VALUES[name] if name != "c" else VALUES[name] | st.decimals(-9, 9, places=4)
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", "text", "unknown"]))
    if kind == "null":
        operator = draw(st.sampled_from(["IS_NULL", "IS_NOT_NULL"]))
        return (operator, name, None), {"op": operator, "children": [column]}
    if kind == "in":
        members = draw(st.lists(st.none() | value, max_size=4))
        return ("IN", name, members), {"op": "IN", "children": [column, *(literal(name, m) for m in members)]}
    if kind == "text" or (kind == "unknown" and name == "s"):
        operator = draw(st.sampled_from(["STARTS_WITH", "ENDS_WITH", "CONTAINS"]))
        part = draw(st.text(alphabet="aábé\U0001f600z\uffff", max_size=3))
        return (operator, "s", part), {"op": operator, "children": [{"column": ["s"]}, literal("s", part)]}
    if kind == "unknown":
        return ("UNKNOWN", name, None), {"op": "MOD", "children": [column, {"unknown": "?"}]}
    operator = draw(st.sampled_from(["=", "<>", "<=>", "<", "<=", ">", ">="]))
    given = draw(st.none() | value)
    children = [column, literal(name, given)]
    if draw(st.booleans()):
        flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
        return (operator, name, given), {"op": flipped, "children": children[::-1]}
    return (operator, name, given), {"op": operator, "children": children}


def _branch(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def joined(operator: str, parts: list[Any]) -> Any:
        return (operator, [p[0] for p in parts]), {"op": operator, "children": [p[1] for p in parts]}

    return st.one_of(
        st.builds(joined, st.sampled_from(["AND", "OR"]), st.lists(children, min_size=2, max_size=3)),
        st.builds(lambda child: joined("NOT", [child]), children),
    )


TREES = st.recursive(leaves(), _branch, max_leaves=6)


def is_true(tree: Any, row: dict[str, Any], unknown: Any = True) -> bool | None:
    """The value of the filter for a row; ``unknown`` is what a part that is not understood is taken to be."""
    match tree:
        case ("AND", parts):
            found = [is_true(part, row, unknown) for part in parts]
            return False if False in found else None if None in found else True
        case ("OR", parts):
            found = [is_true(part, row, unknown) for part in parts]
            return True if True in found else None if None in found else False
        case ("NOT", [part]):
            found = is_true(part, row, unknown)
            return None if found is None else not found
        case ("UNKNOWN", _, _):
            return unknown
        case ("IS_NULL" | "IS_NOT_NULL" as operator, name, _):
            return (row[name] is None) == (operator == "IS_NULL")
        case ("IN", name, members):
            if row[name] is None:
                return None if members else False
            if any(m is not None and _rank(m) == _rank(row[name]) for m in members):
                return True
            return None if None in members else False
        case ("<=>", name, value):
            return _rank(row[name]) == _rank(value)
        case (operator, name, value):
            if row[name] is None or value is None:
                return None
            return _compared(operator, row[name], value)
    raise AssertionError(tree)


def _rank(value: Any) -> Any:
    """NaN is one value, above all others."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value


def _compared(operator: str, here: Any, value: Any) -> bool:
    left, right = _rank(here), _rank(value)
    match operator:
        case "=":
            return left == right
        case "<>":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case "STARTS_WITH":
            return here.startswith(value)
        case "ENDS_WITH":
            return here.endswith(value)
    return value in here
