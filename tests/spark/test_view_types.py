"""Views in which columns of two types meet are what Spark says, after changes of one side alone."""

from __future__ import annotations

import pytest

import streamhouse_spark as sh
from spark.function_views import FunctionHistory
from spark.typed_views import MEETINGS, TypedHistory
from spark.view_histories import require_right

pytestmark = [pytest.mark.spark, pytest.mark.classic]

PAIRS = [
    ("DECIMAL(10,2)", "DECIMAL(12,4)"),
    ("INT", "DECIMAL(12,4)"),
    ("CHAR(2)", "CHAR(4)"),
    ("STRING", "CHAR(4)"),
    ("BIGINT", "STRING"),
    ("DATE", "TIMESTAMP_NTZ"),
    ("DATE", "TIMESTAMP"),
    ("TIMESTAMP", "TIMESTAMP_NTZ"),
    ("FLOAT", "DOUBLE"),
    ("BIGINT", "DOUBLE"),
    ("DOUBLE", "DECIMAL(38,18)"),
    ("TINYINT", "BIGINT"),
]
"""Types of the two sides of UNION, JOIN, IN, COALESCE and CASE."""


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_columns_of_two_types_meet_as_in_spark(spark, left, right):
    history = TypedHistory(spark, 1, types=(left, right), refreshes=2)
    history.run(MEETINGS)
    assert history.checks > len(MEETINGS)


@pytest.mark.parametrize("seed", range(3))
def test_random_views_of_two_types_answer_as_spark_does(spark, seed):
    history = TypedHistory(spark, seed)
    history.run()


def test_random_views_with_functions_answer_as_spark_does(spark):
    history = FunctionHistory(spark, 104, refreshes=2)
    history.run()
    assert history.checks


def test_a_comparison_with_char_is_padded(spark, wh):
    """In every read of a table, as in its changes, so that a view finds the rows that go and those that come."""
    name = "views.of_chars"
    table = wh.create_table(name, "id BIGINT, c CHAR(3)", primary_key=["id"])
    table.upsert([{"id": 1, "c": "a"}, {"id": 2, "c": "b"}])
    path = f"streamhouse.{name}"
    frames = [
        spark.table(path),
        spark.table("streamhouse.views.`of_chars$changelog`"),
        spark.read.format("streamhouse").option("warehouse", wh.url).load(name),
        spark.read.format("streamhouse").option("warehouse", wh.url).load(f"{name}$changelog"),
        spark.read.format("streamhouse").option("warehouse", wh.url).option("readChangeFeed", "true").load(name),
    ]
    assert [[row.id for row in frame.where("c = 'a'").collect()] for frame in frames] == [[1]] * len(frames)
    query = f"SELECT id FROM {path} WHERE c = 'a'"
    view = sh.materialize(spark, f"{name}_a", query)
    table.upsert([{"id": 2, "c": "a"}, {"id": 1, "c": "b"}])
    assert view.refresh().rows_deleted == 1
    require_right(spark, view, query)


def test_two_texts_that_are_one_number_are_two_rows_of_a_join(spark, wh):
    """The key of the side with texts is no key of the join: one row of the other side finds both."""
    wh.create_table("views.of_numbers", "id BIGINT, n BIGINT", primary_key=["id"]).upsert([{"id": 1, "n": 5}])
    texts = wh.create_table("views.of_texts", "k STRING, x INT", primary_key=["k"])
    texts.upsert([{"k": "5", "x": 1}, {"k": "05", "x": 2}])
    numbers, keyed = "streamhouse.views.of_numbers", "streamhouse.views.of_texts"
    query = f"SELECT n.id AS id, t.x AS x FROM {numbers} n JOIN {keyed} t ON n.n = t.k"
    view = sh.materialize(spark, "views.of_both", query)
    require_right(spark, view, query)
    texts.upsert([{"k": "005", "x": 3}, {"k": "05", "x": 4}])
    assert view.refresh().rows_deleted == 1
    require_right(spark, view, query)
