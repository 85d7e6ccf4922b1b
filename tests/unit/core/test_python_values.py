"""Arrow values as Python has them: all of them, where Python's dates and times end."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamhouse_spark.core.python_values import (
    DAYS,
    MICROS,
    first_beyond_python,
    from_text,
    is_beyond_python,
    iso_date,
    iso_timestamp,
    python_date,
    python_timestamp,
    to_python,
    to_python_list,
    to_python_rows,
    to_ticks,
)

DATE, NTZ, UTC = pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")


@given(st.integers(*DAYS), st.integers(*MICROS))
@example(DAYS[0], MICROS[0])
@example(DAYS[1], MICROS[1])
def test_texts_are_those_of_python_within_its_years(days, micros):
    assert iso_date(days) == python_date(days).isoformat() == pa.scalar(days, DATE).as_py().isoformat()
    assert iso_timestamp(micros) == python_timestamp(micros, zoned=False).isoformat()
    assert python_timestamp(micros, zoned=True) == pa.scalar(micros, UTC).as_py()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.scalar(2**31 - 1, DATE), "+5881580-07-11"),
        (pa.scalar(-(2**31), DATE), "-5877641-06-23"),
        (pa.scalar(DAYS[0] - 1, DATE), "0000-12-31"),
        (pa.scalar(DAYS[0] - 367, DATE), "-0001-12-31"),
        (pa.scalar(DAYS[1] + 1, DATE), "+10000-01-01"),
        (pa.scalar(2**63 - 1, UTC), "+294247-01-10T04:00:54.775807Z"),
        (pa.scalar(-(2**63), NTZ), "-290308-12-21T19:59:05.224192"),
        (pa.scalar(MICROS[1] + 1, NTZ), "+10000-01-01T00:00:00"),
    ],
)
def test_texts_beyond_are_those_of_java(value, text):
    assert to_python(value) == text
    assert from_text(text, value.type).equals(value)
    assert is_beyond_python(pa.array([value], value.type))
    assert first_beyond_python(pa.array([None, pa.scalar(0, value.type), value], value.type)).equals(value)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_a_text_comes_back(days, micros):
    for value in (pa.scalar(days, DATE), pa.scalar(micros, NTZ), pa.scalar(micros, UTC)):
        found = to_python(value)
        text = found if isinstance(found, str) else found.isoformat().replace("+00:00", "Z")
        assert from_text(text, value.type).equals(value)
        assert to_ticks(value).as_py() == (days if value.type == DATE else micros)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("+5881580-07-12", DATE),
        ("+10000-02-30", DATE),
        ("+10000-01-01T00:00:00", DATE),
        ("+294247-01-10T04:00:54.775808Z", UTC),
        ("+10000-01-01T00:00:00", UTC),
        ("+10000-01-01T00:00:00Z", NTZ),
        ("+10000-01-01T24:00:00", NTZ),
        ("+10000-01-01", NTZ),
        ("+10000-01-01", pa.int64()),
        ("infinity", DATE),
    ],
)
def test_a_text_that_is_no_value_of_the_type(text, kind):
    with pytest.raises(pa.ArrowInvalid):
        from_text(text, kind)


def test_rows_keep_what_python_has():
    far, near = pa.scalar(2**31 - 1, DATE), dt.date(2026, 1, 31)
    rows = pa.table({"d": pa.array([far, near, None], DATE), "n": [1, 2, 3]})
    expected = [{"d": "+5881580-07-11", "n": 1}, {"d": near, "n": 2}, {"d": None, "n": 3}]
    assert to_python_rows(rows) == to_python_rows(rows.to_batches()[0]) == expected
    assert to_python_list(rows.column("d")) == ["+5881580-07-11", near, None]
    assert to_python_rows(rows.slice(1)) == expected[1:]
    assert not is_beyond_python(rows.slice(1).column("d"))
    assert not is_beyond_python(rows.column("n"))
    assert not is_beyond_python(pa.array([None], DATE))
