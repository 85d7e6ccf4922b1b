"""What merge engine ``aggregation`` makes of numbers is what Spark's own functions make of all of them at once."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.spark

NAN, INF = math.nan, math.inf
VALUES = {
    1: [1.5, NAN, -2.0],
    2: [NAN, None, NAN],
    3: [-INF, INF, None],
    4: [None, None],
    5: [-0.0, 0.0],
    6: [INF, NAN, -INF],
    7: [3.0],
}


@pytest.mark.long
def test_aggregated_floats_treat_nan_as_spark_does(spark, wh):
    functions = ("max", "min", "sum")
    columns = ", ".join(f"{name}_{kind} {kind}" for name in functions for kind in ("float", "double"))
    properties = {f"fields.{name}_{kind}.agg": name for name in functions for kind in ("float", "double")}
    properties["table.merge-engine"] = "aggregation"
    table = wh.create_table("sales.t", f"id bigint, {columns}", primary_key=["id"], properties=properties)
    rows = [(key, value) for key, values in VALUES.items() for value in values]
    for place in range(3):  # each write folds into what is stored
        batch = [(key, values[place]) for key, values in VALUES.items() if place < len(values)]
        table.upsert([{"id": key, **dict.fromkeys(table.schema.names[1:], value)} for key, value in batch])
    spark.createDataFrame(rows, "id bigint, v double").createOrReplaceTempView("all_values")
    asked = ", ".join(f"CAST({n}(CAST(v AS {k})) AS {k}) AS {n}_{k}" for n in functions for k in ("float", "double"))
    expected = spark.sql(f"SELECT id, {asked} FROM all_values GROUP BY id ORDER BY id").collect()
    found = table.to_arrow().sort_by("id").to_pylist()
    shown = [
        {name: repr(value + 0.0) if isinstance(value, float) else value for name, value in row.items()} for row in found
    ]
    assert shown == [
        {name: repr(value + 0.0) if isinstance(value, float) else value for name, value in row.asDict().items()}
        for row in expected
    ]
