"""Descriptions of data files as planners read them from a Paimon manifest."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from pypaimon.schema.data_types import AtomicType, DataField
from pypaimon.table.row.binary_row import BinaryRow

from streamhouse_spark.lake.paimon.scan import _statistics

DAY = DataField(0, "day", AtomicType("DATE"))


def row_of(days: int) -> BinaryRow:
    """Return the binary row as Paimon's Java library writes it."""
    return BinaryRow(struct.pack(">i", 1) + bytes(8) + struct.pack("<q", days & 0xFFFFFFFF), [DAY])


@pytest.mark.parametrize(
    ("low", "high", "bounds"),
    [
        (5, 2_932_896, (5, 2_932_896)),
        (5, 2**31 - 1, (5, None)),
        (-(2**31), 5, (None, 5)),
    ],
)
def test_a_bound_outside_of_pythons_years_is_unknown(low, high, bounds):
    stats = SimpleNamespace(min_values=row_of(low), max_values=row_of(high), null_counts=[0])
    entry = SimpleNamespace(file=SimpleNamespace(value_stats=stats, row_count=3))
    [(_, found)] = _statistics(entry)
    assert (found.low, found.high) == bounds
