"""Views through random histories of their sources, refreshed on Spark and beside its own answers."""

from __future__ import annotations

import pytest

from view_histories.history import History
from view_histories.house import House

pytestmark = [pytest.mark.spark, pytest.mark.classic, pytest.mark.long]


@pytest.mark.parametrize("seed", range(5000, 5003))
def test_views_are_what_spark_says(spark, warehouse_url, seed):
    history = History(House(seed, spark=spark, url=warehouse_url), steps=4)
    history.run()
    assert history.figures.checks["beside Spark's own answer"] > 1
