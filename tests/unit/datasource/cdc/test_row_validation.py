"""Rows that a table's writers would refuse are told apart, each with its reason."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from streamhouse_spark import SchemaMismatchError, Warehouse
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.cdc.row_validation import RowRules, validate_rows

pytestmark = pytest.mark.usefixtures("own_cache")
DDL = "id BIGINT, amount INT, code VARCHAR(3), twice BIGINT"
PROPERTIES = {"table.constraint.positive": "amount > 0", "table.generated.twice": "CAST(amount AS BIGINT) * 2"}
ROW = pa.struct([("id", pa.int64()), ("amount", pa.int32()), ("code", pa.string()), ("twice", pa.int64())])
CHANGE = pa.struct([("kind", pa.string()), ("row", ROW), ("wrong", pa.list_(pa.string()))])
SCHEMA = pa.schema([("changes", pa.list_(CHANGE)), ("reason", pa.string()), ("event", pa.string())])


def columns_of(table):
    return spark_versions.spark_schema_of(table.state.schema.arrow)


@pytest.fixture
def table(tmp_path):
    return Warehouse(str(tmp_path / "w")).create_table("d.t", DDL, primary_key=["id"], properties=PROPERTIES)


@pytest.fixture
def rules(table):
    found = RowRules.of(table, columns_of(table))
    assert found is not None
    return found


def change(kind="update_after", **row):
    return {"kind": kind, "row": {"id": 1, "amount": 1, "code": None, "twice": None, **row}, "wrong": []}


def reasons(rules, *events):
    batch = pa.RecordBatch.from_pylist(list(events), SCHEMA)
    (found,) = validate_rows(rules, "update_after", [batch])
    assert found.schema == batch.schema
    assert found.drop_columns(["reason"]) == batch.drop_columns(["reason"])
    return found.column("reason").to_pylist()


def event(*changes, reason=None):
    return {"changes": list(changes), "reason": reason, "event": "e"}


def test_each_violated_rule_is_a_reason(rules):
    found = reasons(
        rules,
        event(change()),
        event(change(amount=-1)),
        event(change(code="long")),
        event(change(twice=3)),
        event(change(amount=None)),
        event(change(twice=2)),
        event(change("delete", amount=-1, code="long")),
        event(change(amount=-5), reason="it was bad before"),
        event(change("delete"), change(id=2, amount=0)),
        {"changes": None, "reason": None, "event": None},
        event(),
    )
    assert [place for place, reason in enumerate(found) if reason is not None] == [1, 2, 3, 7, 8]
    breach = "its row violates constraint 'positive' CHECK (amount > 0)"
    assert (found[1], found[7], found[8]) == (breach, "it was bad before", breach)
    assert "column 'code'" in found[2]
    assert "generated column 'twice'" in found[3]


def test_a_slice_of_a_batch_is_validated_alone(rules):
    events = [event(change(amount=-1)), event(change()), event(change(amount=-1)), event(change())]
    batch = pa.RecordBatch.from_pylist(events, SCHEMA).slice(1, 2)
    (found,) = validate_rows(rules, "update_after", [batch])
    assert [reason is not None for reason in found.column("reason").to_pylist()] == [False, True]


@pytest.mark.parametrize("seed", range(20))
def test_the_refused_rows_are_those_that_the_table_refuses_alone(table, rules, seed):
    chance = random.Random(seed)
    rows = [
        {
            "id": number,
            "amount": chance.choice([None, -1, 1, 2]),
            "code": chance.choice([None, "abc", "abcd"]) if chance.random() < 0.2 else None,
            "twice": chance.choice([None, 2]) if chance.random() < 0.2 else None,
        }
        for number in range(chance.randrange(40))
    ]
    found = rules.find_rejected_rows(pa.Table.from_pylist(rows, pa.schema(list(ROW))))
    for place, row in enumerate(rows):
        if place in found:
            with pytest.raises(SchemaMismatchError):
                table.upsert([row])
        else:
            table.upsert([row])


def test_a_table_without_rules_has_none(tmp_path):
    plain = Warehouse(str(tmp_path / "w")).create_table("d.plain", "id BIGINT, code STRING", primary_key=["id"])
    assert RowRules.of(plain, columns_of(plain)) is None


def test_a_table_that_lacks_a_column_by_now_blames_no_row(table):
    columns = columns_of(table)
    table.alter(drop_columns=["code"])
    with pytest.raises(SchemaMismatchError, match="column 'code' of the rows is not in"):
        RowRules.of(table, columns)
