"""The record that creates a table, and property values that are not texts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse_spark import InvalidOptionError, LogPosition, Warehouse
from streamhouse_spark.log.record import RECORD_BYTES_MAX


@pytest.mark.parametrize("columns", [1, RECORD_BYTES_MAX // 100])
def test_the_creator_knows_the_table_as_everybody_who_opens_it(wh, other_process, columns):
    """Also where the columns are too many for the record, so that it names a manifest, which has to stay."""
    schema = pa.schema([(f"column_{number:0100d}", pa.int64()) for number in range(columns)])
    made = wh.create_table("t", schema).state
    opened = other_process().table("t").state
    assert made == opened
    assert (len(made.manifests) == 1) == (columns > 1)


def test_a_property_with_too_many_digits_is_rejected(tmp_path):
    warehouse = Warehouse(str(tmp_path))
    with pytest.raises(InvalidOptionError, match="cannot format a property as a string"):
        warehouse.create_table("s.t", "id INT", properties={"comment": [10**5_000]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": float("inf")},
        {"version": 1, "table": "x", "offsets": {"0": float("inf")}, "history": None},
        {"version": 1, "table": "x", "offsets": {"0": "9" * 5_000}, "history": None},
        ["9" * 100_000],
    ],
)
def test_positions_that_are_none(wrong):
    with pytest.raises(InvalidOptionError, match="expected the result of LogPosition") as refused:
        LogPosition.from_json(wrong)
    assert len(str(refused.value)) < 1_000
