"""`delta_join` on Spark: two tables that change, restarts from the checkpoint, and what is refused."""

from __future__ import annotations

import random

import pytest
from pyspark.errors import PySparkException

from spark.session import forget_commit
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, TableNotFoundError, delta_join
from streamhouse_spark.datasource import spark_versions

pytestmark = pytest.mark.spark


def make(wh, name, ddl, key, buckets=1):
    return wh.create_table(f"delta.{name}", ddl, primary_key=key, buckets=buckets)


def rows(table):
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


@pytest.mark.spark41
@pytest.mark.long
def test_it_is_the_join_after_every_trigger(spark, wh, checkpoint):
    """Both sides change between triggers; the last micro-batch before the second one is repeated."""
    orders = make(wh, "orders", "customer BIGINT, id INT, amount INT, at TIMESTAMP", ["customer", "id"])
    payments = make(wh, "payments", "payer BIGINT, no INT, amount INT", ["payer", "no"], 2)
    paid = make(
        wh, "paid", "customer BIGINT, id INT, p_no INT, amount INT, p_amount INT", ["customer", "id", "p_no"], 2
    )
    chance = random.Random(1)

    def run():
        query = delta_join(
            spark, orders.name, payments.name, on={"customer": "payer"}, into=paid.name, checkpoint=checkpoint,
            warehouse=wh.url, prefix="p_", columns=["amount", "p_amount"], trigger={"availableNow": True},
        )  # fmt: skip
        query.awaitTermination()

    def change(table, key):
        for _ in range(2):
            chosen = [{name: chance.randint(0, 4) for name in table.state.primary_key} for _ in range(12)]
            table.upsert([{**row, "amount": chance.randint(0, 99)} for row in chosen])
            table.delete([{name: chance.randint(0, 4) for name in table.state.primary_key} for _ in range(4)])

    def expected():
        theirs = payments.to_arrow().to_pylist()
        return sorted(
            (o["customer"], o["id"], p["no"], o["amount"], p["amount"])
            for o in orders.to_arrow().to_pylist() for p in theirs if p["payer"] == o["customer"]
        )  # fmt: skip

    for number in range(2):
        change(orders, "customer")
        change(payments, "payer")
        if number == 1:
            forget_commit(checkpoint)
            if not spark_versions.HAS_ADMISSION_CONTROL:
                run()  # there AvailableNow is one micro-batch, the repeated one
        run()
        assert rows(paid) == expected()
        assert expected()
    orders.delete([{"customer": c, "id": i} for c in range(5) for i in range(5)])
    run()
    assert rows(paid) == []


@pytest.mark.long
def test_a_query_that_goes_on_while_both_sides_change(spark, wh, checkpoint):
    people = make(wh, "people", "id INT, name STRING", ["id"])
    pets = make(wh, "pets", "owner INT, pet INT, kind STRING", ["owner", "pet"])
    both = make(wh, "owned", "owner INT, pet INT, kind STRING, name STRING", ["owner", "pet"])
    query = delta_join(
        spark, pets.name, people.name, on={"owner": "id"}, into=both.name, checkpoint=checkpoint, warehouse=wh.url,
        how="left", trigger={"processingTime": "0 seconds"},
    )  # fmt: skip
    try:
        for number in range(8):
            pets.upsert([{"owner": number % 3, "pet": number % 4, "kind": f"k{number}"}])
            people.upsert([{"id": number % 3, "name": f"n{number}"}])
            if number % 4 == 3:
                people.delete([0])
                pets.delete([{"owner": 1, "pet": 1}])
        query.processAllAvailable()
    finally:
        query.stop()
    names = {p["id"]: p["name"] for p in people.to_arrow().to_pylist()}
    expected = sorted((p["owner"], p["pet"], p["kind"], names.get(p["owner"])) for p in pets.to_arrow().to_pylist())
    assert rows(both) == expected
    other = delta_join(
        spark, pets.name, people.name, on={"owner": "id"}, into=both.name, checkpoint=f"{checkpoint} 2",
        warehouse=wh.url, how="left", trigger={"availableNow": True},
    )  # fmt: skip
    with pytest.raises(PySparkException, match="belongs to query"):
        other.awaitTermination()


def test_what_is_refused_before_anything_runs(spark, wh, checkpoint):
    left = make(wh, "l", "j INT, a INT, v STRING NOT NULL", ["j", "a"])
    right = make(wh, "r", "j INT, b INT", ["j", "b"])

    def refused(error, match, **options):
        given = {"on": "j", "into": "delta.missing", "checkpoint": checkpoint, "warehouse": wh.url, **options}
        with pytest.raises(error, match=match):
            delta_join(spark, left.name, right.name, **given)

    create = r"CREATE TABLE streamhouse\.delta\.missing \(j INT NOT NULL, a INT NOT NULL, v STRING NOT NULL, b INT NOT "
    refused(TableNotFoundError, create + r"NULL, PRIMARY KEY \(j, a, b\)\)")
    refused(InvalidOptionError, r"into is delta\.l with the primary key \(j, a\)", into=left.name)
    refused(InvalidOptionError, "whole primary key of the right table", how="left")
    refused(SchemaMismatchError, "no column 'x'", on="x")


def test_a_batch_that_writes_nothing_is_stored_under_its_name(spark, wh, checkpoint):
    """What an earlier run of a query computed for it must not be written after it."""
    left = make(wh, "few", "j INT, v INT", ["j"])
    right = make(wh, "none", "j INT, w INT", ["j"])
    into = make(wh, "empty", "j INT, v INT, w INT", ["j"])
    left.upsert([{"j": 1}])
    delta_join(
        spark, left.name, right.name, on="j", into=into.name, checkpoint=checkpoint, warehouse=wh.url,
        trigger={"availableNow": True},
    ).awaitTermination()  # fmt: skip
    assert rows(into) == []
    assert into.refresh().transactions["delta_join"].version == 0
