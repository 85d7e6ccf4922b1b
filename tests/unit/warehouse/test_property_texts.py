"""Values of properties that cannot be texts."""

from __future__ import annotations

import pytest

from streamhouse_spark import InvalidOptionError, LogPosition, Warehouse


def test_a_number_of_too_many_digits_in_a_list(tmp_path):
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
