"""Each query sees what others committed before it, also where the session keeps what it planned of the last state."""

from __future__ import annotations

import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]
UNION = "streamhouse.catalog_freshness.rows"
LAKE = "streamhouse.catalog_freshness.`rows$lake`"


def answers(spark, name: str) -> list[tuple[int | None, ...]]:
    """A count that metadata answers, a sum that is read, and rows of one key: each asked twice, with one answer."""
    queries = (
        f"SELECT count(*), max(id) FROM {name}",
        f"SELECT sum(v) FROM {name} WHERE v >= 0",
        f"SELECT count(v) FROM {name} WHERE id = 1 AND v >= 0",
    )
    found = [[tuple(row) for row in spark.sql(query).collect()] for query in (*queries, *queries)]
    assert found[:3] == found[3:]
    return [row for rows in found[:3] for row in rows]


def test_a_query_sees_what_another_process_committed_since_the_last(spark, wh):
    wh.create_table("catalog_freshness.rows", "id BIGINT, v BIGINT", properties={"bucket.num": "2", "bucket.key": "id"})
    table = Warehouse(wh.url).table("catalog_freshness.rows")
    assert answers(spark, UNION) == [(0, None), (None,), (0,)]
    table.append([{"id": i, "v": i} for i in range(10)])
    assert answers(spark, UNION) == [(10, 9), (45,), (1,)]
    assert answers(spark, LAKE) == [(0, None), (None,), (0,)]
    tier(spark, wh.url, ["catalog_freshness.rows"])
    assert answers(spark, UNION) == answers(spark, LAKE) == [(10, 9), (45,), (1,)]
    first_use = spark.table(UNION)
    assert first_use.count() == 10
    table.append([{"id": 1, "v": 100}])
    assert answers(spark, UNION) == [(11, 9), (145,), (2,)]
    assert answers(spark, LAKE) == [(10, 9), (45,), (1,)]
    other = spark.newSession()
    assert answers(other, UNION) == [(11, 9), (145,), (2,)]
    table.truncate()
    assert answers(spark, UNION) == answers(other, UNION) == [(0, None), (None,), (0,)]


def test_a_table_of_the_same_name_is_another_one(spark, wh):
    name = "catalog_freshness.again"
    for rows in (3, 4):
        wh.create_table(name, "id BIGINT")
        wh.table(name).append([{"id": i} for i in range(rows)])
        assert [row[0] for row in spark.sql(f"SELECT sum(id) FROM streamhouse.{name}").collect()] == [sum(range(rows))]
        wh.drop_table(name)
    wh.create_table(f"{name}_old", "id BIGINT")
    wh.table(f"{name}_old").append([{"id": 7}])
    assert spark.sql(f"SELECT id FROM streamhouse.{name}_old").collect()[0][0] == 7
    wh.rename_table(f"{name}_old", name)
    assert spark.sql(f"SELECT id FROM streamhouse.{name}").collect()[0][0] == 7
    wh.create_table(f"{name}_old", "other STRING")
    assert spark.sql(f"SELECT * FROM streamhouse.{name}_old").columns == ["other"]
