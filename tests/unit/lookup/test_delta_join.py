"""Delta joins: what each change writes, and which joins are refused. Random histories are in tests/property."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from kit.keyed_writes import change
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, Transaction
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.lookup.delta_join import DELETE, KIND_COLUMN, DeltaPlan, Join, JoinLookups

pytestmark = pytest.mark.usefixtures("own_cache")


class Joined:
    def __init__(self, wh, left, right, target, on, how="inner", prefix=""):
        self.tables = {
            name: wh.create_table(name, ddl, primary_key=key)
            for name, (ddl, key) in {"left": left, "right": right, "into": target}.items()
        }
        self.left, self.right, self.into = self.tables.values()
        self.plan = DeltaPlan.of(Join.of(self.left.state, self.right.state, on, how, prefix), self.into.state)

    def changes(self, side, *keys):
        columns = {
            "left": self.plan.columns_of("left"), "right": self.plan.columns_of("right"), "into": self.plan.target_key
        }  # fmt: skip
        find = [
            partial(BatchLookup(t.keyed).matches, columns=columns[n], max_staleness_ms=0)
            for n, t in self.tables.items()
        ]
        key = self.plan.left_key if side == "left" else self.plan.right_key
        schema = pa.schema([self.tables[side].schema.field(name) for name in key])
        rows = [dict(zip(key, values, strict=True)) for values in keys]
        return self.plan.changes(side, pa.Table.from_pylist(rows, schema=schema), JoinLookups(*find))

    def write(self, number, changes):
        deleted = np.array([kind == DELETE for kind in changes[KIND_COLUMN].to_pylist()], np.bool_)
        rows = changes.drop_columns([KIND_COLUMN])
        change(self.into, rows, deleted, transaction=Transaction("delta_join", number, "query"))

    def rows(self):
        return [tuple(row.values()) for row in self.into.to_arrow().to_pylist()]


def shown(changes):
    return sorted((tuple(row.values()) for row in changes.to_pylist()), key=str)


ORDERS = ("customer INT, id INT, amount INT", ["customer", "id"])
PAYMENTS = ("payer INT, no INT, paid INT", ["payer", "no"])
PEOPLE = ("id INT, name STRING", ["id"])


@pytest.fixture
def pairs(wh):
    target = ("customer INT, id INT, no INT, paid INT", ["customer", "id", "no"])
    return Joined(wh, ORDERS, PAYMENTS, target, {"customer": "payer"})


@pytest.fixture
def named(wh):
    target = ("customer INT, id INT, amount INT, p_name STRING", ["customer", "id"])
    return Joined(wh, ORDERS, PEOPLE, target, {"customer": "id"}, "left", "p_")


def test_a_change_is_joined_with_what_the_other_side_has(pairs):
    pairs.left.upsert([{"customer": 1, "id": i, "amount": i} for i in (1, 2)])
    assert shown(pairs.changes("left", (1, 1), (1, 2))) == []
    pairs.right.upsert([{"payer": 1, "no": 7, "paid": 70}, {"payer": 2, "no": 7, "paid": 71}])
    assert shown(pairs.changes("left", (1, 1), (1, 1))) == [("upsert", 1, 1, 7, 70)]
    expected = [("upsert", 1, 1, 7, 70), ("upsert", 1, 2, 7, 70)]
    assert shown(pairs.changes("right", (2, 7), (1, 7))) == expected
    pairs.write(0, pairs.changes("right", (1, 7)))
    pairs.left.delete([{"customer": 1, "id": 1}])
    assert shown(pairs.changes("left", (1, 1))) == [("delete", 1, 1, 7, None)]
    pairs.right.upsert([{"payer": 1, "no": 8, "paid": 80}])
    pairs.right.delete([{"payer": 1, "no": 7}])
    expected = [("delete", 1, 1, 7, None), ("delete", 1, 2, 7, None)]
    assert shown(pairs.changes("right", (1, 7))) == expected
    assert shown(pairs.changes("right", (1, 8))) == [("upsert", 1, 2, 8, 80)]  # not those of other payments


def test_rows_without_a_partner_are_joined_with_nulls(named):
    named.left.upsert([{"customer": 1, "id": 1, "amount": 5}])
    assert shown(named.changes("left", (1, 1))) == [("upsert", 1, 1, 5, None)]
    assert shown(named.changes("right", (1,))) == [("upsert", 1, 1, 5, None)]
    named.right.upsert([{"id": 1, "name": "ann"}])
    named.write(0, named.changes("right", (1,)))
    assert named.rows() == [(1, 1, 5, "ann")]
    named.right.delete([1])
    named.write(1, named.changes("right", (1,)))
    assert named.rows() == [(1, 1, 5, None)]
    named.left.delete([{"customer": 1, "id": 1}])
    assert shown(named.changes("right", (1,))) == [("delete", 1, 1, None, None)]


def test_what_an_earlier_run_computed_counts_for_nothing_once_its_batch_is_stored_even_empty(pairs):
    pairs.left.upsert([{"customer": 1, "id": 1}])
    pairs.right.upsert([{"payer": 1, "no": 7}])
    late = pairs.changes("left", (1, 1))
    assert late.num_rows
    pairs.left.delete([{"customer": 1, "id": 1}])
    pairs.write(0, pairs.changes("left", (1, 1)))  # nothing
    second = pairs.changes("left", (1, 1))
    pairs.write(0, late)
    pairs.write(1, second)
    assert pairs.rows() == []


def test_delta_joins_that_cannot_be_maintained_are_rejected(wh):
    left = wh.create_table("l", "j INT, a INT, v INT, d DOUBLE NOT NULL", primary_key=["j", "a"]).state
    right = wh.create_table("r", "j INT, b INT, v INT", primary_key=["j", "b"]).state
    big = wh.create_table("big", "j BIGINT, v INT", primary_key=["j"]).state

    def join(other=right, on="j", how="inner", prefix="r_"):
        return Join.of(left, other, on, how, prefix)

    def into(ddl, key, properties=None, columns=None, prefix="r_"):
        target = wh.create_table(f"t{len(wh.tables())}", ddl, primary_key=key, properties=properties or {}).state
        return DeltaPlan.of(join(prefix=prefix), target, columns)

    with pytest.raises(
        SchemaMismatchError, match=r"column 'j' of default\.l is int, but 'j' of default\.big is bigint"
    ):
        join(big)
    with pytest.raises(SchemaMismatchError, match=r"looked up by the primary key \(j, a\)"):
        join(on=["v"])
    with pytest.raises(SchemaMismatchError, match=r"looked up by the primary key \(j, b\)"):
        join(on={"j": "j", "a": "v"})
    with pytest.raises(InvalidOptionError, match=r"whole primary key of the right table default\.r \(j, b\)"):
        join(how="left")
    with pytest.raises(InvalidOptionError, match=r"'left' or 'inner'"):
        join(how="outer")
    assert join().ddl() == (
        "j INT NOT NULL, a INT NOT NULL, v INT, d DOUBLE NOT NULL, r_b INT NOT NULL, r_v INT, PRIMARY KEY (j, a, r_b)"
    )
    assert into("J INT, A INT, r_b INT, r_v INT, v INT", ["J", "A", "r_b"]).target_key == ("J", "A", "r_b")
    with pytest.raises(InvalidOptionError, match=r"PRIMARY KEY \(j, a, r_b\)"):
        into("j INT, a INT, r_b INT", ["j", "r_b", "a"])
    with pytest.raises(InvalidOptionError, match="merge engine first_row"):
        into("j INT, a INT, r_b INT", ["j", "a", "r_b"], {"table.merge-engine": "first_row"})
    with pytest.raises(
        SchemaMismatchError, match=r"'x' of .* is not in the join, expected only its columns: j, a, v, d, r_b, r_v"
    ):
        into("j INT, a INT, r_b INT, x INT", ["j", "a", "r_b"])
    with pytest.raises(SchemaMismatchError, match=r"'v' of .* is bigint, expected the type of the join: int"):
        into("j INT, a INT, r_b INT, v BIGINT", ["j", "a", "r_b"])
    with pytest.raises(SchemaMismatchError, match=r"'v' of .* is NOT NULL, but it may be null in the join"):
        into("j INT, a INT, r_b INT, v INT NOT NULL", ["j", "a", "r_b"])
    with pytest.raises(SchemaMismatchError, match=r"'d' of .* is missing from columns="):
        into("j INT, a INT, r_b INT, d DOUBLE NOT NULL, v INT", ["j", "a", "r_b"], columns=["v"])
    with pytest.raises(SchemaMismatchError, match=r"columns= names 'x', expected columns of the join: j, "):
        into("j INT, a INT, r_b INT", ["j", "a", "r_b"], columns=["x"])
    with pytest.raises(SchemaMismatchError, match="no column 'v'"):
        into("j INT, a INT, r_b INT", ["j", "a", "r_b"], columns=["v"])
    with pytest.raises(
        InvalidOptionError, match=r"'v' of .* is ambiguous: default.l and default.r have it; set prefix="
    ):
        into("j INT, a INT, b INT, v INT", ["j", "a", "b"], prefix="")
    plain = wh.create_table("plain", "j INT").state
    with pytest.raises(InvalidOptionError, match="has no primary key"):
        join(plain)
    with pytest.raises(InvalidOptionError, match="with no primary key, expected the key columns of"):
        DeltaPlan.of(join(), plain)


def test_a_column_that_is_left_out_is_refused_where_the_table_has_it(wh):
    """Each upsert would make it null, whoever filled it."""
    target = ("customer INT, id INT, no INT, paid INT, amount INT", ["customer", "id", "no"])
    pairs = Joined(wh, ORDERS, PAYMENTS, target, {"customer": "payer"})
    join = Join.of(pairs.left.state, pairs.right.state, {"customer": "payer"}, "inner", "")
    with pytest.raises(
        SchemaMismatchError, match=r"'amount' of default.into is missing from columns=, .* write null to the column"
    ):
        DeltaPlan.of(join, pairs.into.state, ["paid"])
    wh.table("default.into").alter(drop_columns=["amount"])
    pairs.plan = DeltaPlan.of(join, pairs.into.refresh(), ["paid"])
    assert pairs.plan.columns_of("left") == ["customer", "id"]
    pairs.left.upsert([{"customer": 1, "id": 1, "amount": 5}])
    pairs.right.upsert([{"payer": 1, "no": 7, "paid": 70}])
    assert shown(pairs.changes("left", (1, 1))) == [("upsert", 1, 1, 7, 70)]
