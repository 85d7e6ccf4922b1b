"""Input that nobody should send: valid bytes that are damaged, odd texts, deep nesting, huge numbers."""

from __future__ import annotations

import json
import string
from contextlib import suppress

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from streamhouse_spark import StreamhouseError

SECRET = "canary-secret-4711"
"""Given to what is fuzzed as a credential; no text may have it."""
COLUMNS = (
    "id BIGINT NOT NULL, s STRING, d DECIMAL(9,2), t TIMESTAMP, b BOOLEAN, f DOUBLE, l ARRAY<INT>, "
    "x STRUCT<a: INT, b: STRING>, m MAP<STRING, INT>, y DATE, z BINARY"
)
NAMES = ["id", *"sdtbflxmyz"]
FEW, MANY = 30, 1_000
"""Examples of the fast suite, and of the long one."""

PATHS = ["", ".", "..", "../x", "s.t/../../y", "/etc/passwd", "s.t\0", "%00", "%2e%2e%2f", "S.T", "ſ.t", "𝒔.t", "s.t$",
         "$", "s..t", "s.t$lake$x", "s.t$history", "tables.x", "lake.x", ".virtual.x",
         "a" * 9_000, "s.t\n", "\u202es"]  # fmt: skip
NUMBERS = ["-1", "0", "1", "9" * 400, "9" * 5_000, "0" * 20 + "9" * 30, "1e400", "nan", "inf", "-0", "0x1", "1_0", "١"]
DEEP = ["[" * 9_000, '{"a":' * 5_000, "(" * 3_000 + "id=1" + ")" * 3_000, "NOT " * 3_000 + "id = 1", "'" * 4_001,
        "a " + "ARRAY<" * 800 + "INT" + ">" * 800, " AND ".join(["id=1"] * 3_000)]  # fmt: skip
WORDS = ["id", "s", "d", "x.a", "l", "m", "y", "(", ")", "<", "=", "AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "'",
         "'a'", "1", "-1", "1e5", ",", ".", "*", "DATE", "TIMESTAMP", "'2020-01-01'", "ARRAY<", "STRUCT<", "MAP<", ">",
         "DECIMAL(", "INT", "BIGINT", "COMMENT", "DEFAULT", "NOT NULL", "GENERATED", "`", '"', "--", "/*", "\0", "\\",
         "%", "CAST(", "current_timestamp()", "[", "{", "X'ff'", "latest", "earliest", "append", "upsert"]  # fmt: skip

fragments = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), max_size=10).flatmap(
    lambda words: st.sampled_from([" ".join(words), "".join(words)])
)
texts = st.one_of(fragments, st.sampled_from([*PATHS, *NUMBERS, *DEEP, *WORDS]), st.text(max_size=20))
names = st.one_of(
    st.sampled_from(["s.t", "s.k"]),
    st.sampled_from(PATHS),
    st.text(string.printable, max_size=12),
    st.lists(st.sampled_from([".", "$", "/", "..", "s", "t", "\0", "%2e", "\n"]), max_size=6).map("".join),
)
json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["\ud800", "2020-01-01", "99999-01-01", "0001-01-01T00:00:00Z", "1e50", *NUMBERS]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)
json_rows = st.lists(
    st.dictionaries(st.sampled_from([*NAMES, "ID", "nope", "_log_offset"]), json_values, max_size=5), max_size=3
)


def damaged(*wholes: bytes) -> st.SearchStrategy[bytes]:
    """One of these with a few bytes changed, and perhaps cut."""

    def broken(whole: bytes, flips: list[tuple[int, int]], cut: float | None) -> bytes:
        data = bytearray(whole)
        for at, mask in flips:
            data[at % len(data)] ^= mask
        return bytes(data) if cut is None else bytes(data[: int(cut * len(data))])

    flips = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=4)
    return st.builds(broken, st.sampled_from(wholes), flips, st.one_of(st.none(), st.floats(0, 1)))


def changed_json(value: object) -> st.SearchStrategy[object]:
    """This value with one part, anywhere in it, that is something else, missing, or under another name."""
    paths = list(_paths(value))
    odd = st.one_of(json_values, st.sampled_from([10**30, -(10**30), "../../x", "/etc/passwd", "9" * 5_000, [[]], {}]))

    def changed(path: tuple[object, ...], new: object, how: str) -> object:
        if not path:
            return new
        copy = json.loads(json.dumps(value))
        at = copy
        for part in path[:-1]:
            at = at[part]
        if how == "missing":
            del at[path[-1]]
        else:
            at[path[-1]] = new
        return copy

    return st.builds(changed, st.sampled_from(paths), odd, st.sampled_from(["other", "other", "missing"]))


def _paths(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inner for found in _paths(one, (*path, key)))]


def profile(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def refuses_or_answers(call, *arguments, **named):
    """Call; an error of the package is as good as an answer. Any other exception is a failure."""
    with suppress(StreamhouseError):
        return call(*arguments, **named)
    return None
