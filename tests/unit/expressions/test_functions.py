"""Fields and beginnings of dates and times: those of Python's calendar, and the same rules in the years beyond."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.core.python_values import DAYS, MICROS
from streamhouse_spark.expressions.functions import FIELDS, extract_date, extract_field, truncate_time

UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
NTZ = pa.timestamp("us")
CYCLE_DAYS = 146_097
"""Days of 400 years, after which months and weekdays come again."""


def dates(*days):
    return pa.array(days, pa.int32()).cast(pa.date32())


def times(*micros):
    return pa.array(micros, pa.int64()).cast(NTZ)


def fields_of(day: dt.date) -> dict[str, int]:
    of_year = day.timetuple().tm_yday
    return {
        "year": day.year,
        "quarter": (day.month + 2) // 3,
        "month": day.month,
        "day": day.day,
        "dayofmonth": day.day,
        "dayofyear": of_year,
        "dayofweek": day.isoweekday() % 7 + 1,
        "weekofyear": day.isocalendar().week,
    }


@given(st.integers(*DAYS))
def test_fields_are_those_of_python(days):
    day = pa.scalar(days, pa.date32()).as_py()
    assert {name: extract_field(dates(days), name)[0].as_py() for name in FIELDS} == fields_of(day)
    assert {name: extract_field(times(days * 86_400_000_000), name)[0].as_py() for name in FIELDS} == fields_of(day)


@given(st.integers(-(2**31), 2**31 - 1))
def test_fields_come_again_after_400_years(days):
    cycles = days // CYCLE_DAYS
    for name in FIELDS:
        near = extract_field(dates(days - cycles * CYCLE_DAYS), name)[0].as_py()
        assert extract_field(dates(days), name)[0].as_py() == near + (400 * cycles if name == "year" else 0)


@given(st.integers(*MICROS))
def test_beginnings_are_those_of_arrow(micros):
    for unit in UNITS:
        expected = pc.floor_temporal(times(micros), unit=unit, week_starts_monday=True)
        assert truncate_time(times(micros), unit).equals(expected), unit


@pytest.mark.parametrize("unit", UNITS)
def test_a_beginning_before_the_least_time_is_an_error(unit):
    if unit == "microsecond":
        assert truncate_time(times(-(2**63)), unit).equals(times(-(2**63)))
        return
    with pytest.raises(pa.ArrowInvalid, match="before the first timestamp"):
        truncate_time(times(-(2**63)), unit)


def test_nulls_stay_in_arrays_and_chunks():
    column = pa.chunked_array([dates(None, 0), dates(2**31 - 1)])
    assert extract_field(column, "year").to_pylist() == [None, 1970, 5881580]
    assert truncate_time(column, "year").cast(pa.int32()).to_pylist() == [None, 0, 2**31 - 1 - 192]
    assert extract_date(times(None, -1, 2**63 - 1)).cast(pa.int32()).to_pylist() == [None, -1, 106751991]
