"""A row that is taken as it is becomes the rows that its conversion alone gives; one that is refused there never is."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import event, given
from hypothesis import strategies as st

from streamhouse_spark import SchemaMismatchError, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.producer.accumulator import BufferedRows, concat_buffered_rows

EDGES = [sign * ((1 << bits) + more) for bits in (7, 15, 31, 63, 127) for sign in (-1, 1) for more in (-1, 0, 1)]
ZONES = (None, dt.UTC, dt.timezone(dt.timedelta(hours=1)), dt.timezone(dt.timedelta(0)))
DECIMALS = st.builds(
    lambda digits, exponent, sign: Decimal((sign, tuple(digits), exponent)),
    st.lists(st.integers(0, 9), max_size=40),
    st.integers(-40, 4),
    st.integers(0, 1),
)
TEXTS = st.text(st.characters(codec=None), max_size=4)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(EDGES),
    st.integers(),
    st.floats(),
    TEXTS,
    st.binary(max_size=4),
    st.dates(),
    st.datetimes(timezones=st.sampled_from(ZONES)),
    st.decimals(),
    DECIMALS,
    st.sampled_from([np.int64(3), np.float64(1.5), np.bool_(True), np.str_("a"), [1], {"a": 1}, bytearray(b"a")]),
)

LIKELY = {
    "TINYINT": st.integers(-129, 128),
    "SMALLINT": st.integers(-(2**15) - 1, 2**15),
    "INT": st.integers(-(2**31) - 1, 2**31),
    "BIGINT": st.integers(-(2**63) - 1, 2**63),
    "FLOAT": st.floats(width=32),
    "DOUBLE": st.floats(),
    "BOOLEAN": st.booleans(),
    "STRING": TEXTS,
    "VARCHAR(3)": TEXTS,
    "CHAR(3)": TEXTS,
    "BINARY": st.binary(max_size=4),
    "DATE": st.dates(),
    "TIMESTAMP": st.datetimes(timezones=st.sampled_from(ZONES)),
    "TIMESTAMP_NTZ": st.datetimes(),
    "DECIMAL(5,2)": st.decimals(-1000, 1000, places=2),
    "DECIMAL(38,0)": DECIMALS,
    "DECIMAL(38,38)": DECIMALS,
    "ARRAY<INT>": st.lists(st.integers(0, 9), max_size=2),
    "STRUCT<a: INT>": st.just({"a": 1}),
}
"""Types of columns, each with values that mostly fit."""


def mostly(likely: st.SearchStrategy) -> st.SearchStrategy:
    return st.integers(0, 5).flatmap(lambda die: VALUES if die == 0 else likely)


def told(rows: pa.Table) -> tuple[str, str]:
    """Schema and values as texts, in which a NaN is like another and 0.0 is not like -0.0."""
    return str([(field, field.nullable) for field in rows.schema]), str(rows.to_pylist())


@given(st.data())
def test_a_plain_row_is_the_row_that_its_conversion_gives(data):
    kinds = data.draw(st.lists(st.sampled_from(list(LIKELY)), min_size=1, max_size=3))
    columns = [f"c{number} {kind} {data.draw(st.sampled_from(['', 'NOT NULL']))}" for number, kind in enumerate(kinds)]
    values = {f"c{number}": mostly(LIKELY[kind]) for number, kind in enumerate(kinds)}
    if data.draw(st.booleans()):
        columns.append("more INT NOT NULL DEFAULT 3")
        values["more"] = LIKELY["INT"]
    table = Warehouse("wh", storage=MemoryStorage(World())).create_table("a.b", ", ".join(columns))
    names = data.draw(st.permutations(table.schema.names))
    names = names[: len(names) - data.draw(st.integers(0, 1))]
    rows = data.draw(st.lists(st.fixed_dictionaries({name: values[name] for name in names}), max_size=5))
    plain_rows = BufferedRows()
    with table.writer() as writer:
        taken, alone = [], []
        for row in rows:
            found = plain_rows.buffer(row, table.state)
            if found is None:
                event("not plain")
                continue
            event("plain")
            try:
                converted = writer._convert([row])
            except SchemaMismatchError as error:
                raise AssertionError(f"{row} is refused where it is converted: {error}") from error
            plain, _ = found
            assert told(concat_buffered_rows([plain])) == told(converted)
            taken.append(plain)
            alone.append(converted)
        if taken:
            assert told(concat_buffered_rows(taken)) == told(concat_buffered_rows(alone))
            assert told(concat_buffered_rows([*alone, *taken, *alone])) == told(
                concat_buffered_rows([*alone, *alone, *alone])
            )
