"""The record that creates a table, and the state that its creator has of it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse_spark.log.record import RECORD_BYTES_MAX


@pytest.mark.parametrize("columns", [1, RECORD_BYTES_MAX // 100])
def test_the_creator_knows_the_table_as_everybody_who_opens_it(wh, other_process, columns):
    """Also where the columns are too many for the record, so that it names a manifest, which has to stay."""
    schema = pa.schema([(f"column_{number:0100d}", pa.int64()) for number in range(columns)])
    made = wh.create_table("t", schema).state
    opened = other_process().table("t").state
    assert made == opened
    assert (len(made.manifests) == 1) == (columns > 1)
