"""Any printable text can name a column: whatever it is called it partitions, buckets, keys, filters and tiers."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from contract.house import in_order, rows
from streamhouse_spark.schema.ddl import quote_identifier

NAMES = [
    "région",
    "a b",
    "a.b",
    "a$b",
    "a`b",
    ".lead",
    ".a.b",
    "1x",
    "select",
    "A-b",
    "'q",
    "%p/c",
    "\\x[0]",
    "a=b&c",
    "..",
    "*",
]


@pytest.mark.parametrize("name", NAMES)
class TestNames:
    def test_a_log_table_is_partitioned_and_bucketed_by_an_odd_name(self, house, name):
        quoted, other = quote_identifier(name), quote_identifier(f"{name}2")
        table = house.table(
            "names",
            f"id BIGINT, {quoted} STRING, {other} BIGINT",
            partition_by=[name],
            properties={"bucket.key": other, "table.statistics.columns": "*"},
            buckets=2,
        )
        expected = [{"id": i, name: ("x", "y z")[i % 2], f"{name}2": i} for i in range(6)]
        table.append(expected[:4])
        house.tier(table)
        table.append(expected[4:])
        assert rows(table.to_arrow()) == in_order(expected)
        assert table.to_arrow(filter=[(name, "=", "x")]).num_rows == 3
        assert table.to_arrow(filter=pc.field((name,)) == "y z", columns=["id"]).num_rows == 3
        assert table.to_arrow(filter=[(f"{name}2", ">", 3)], columns=[name]).num_rows == 2
        partitions = house.wh.view("names$partitions").to_arrow()
        assert dict(zip(partitions[name].to_pylist(), partitions["lake_rows"].to_pylist(), strict=True)) == {
            "x": 2,
            "y z": 2,
        }
        house.tier(table)
        house.agree(table, expected)
        table.drop_partition({name: "x"})
        assert set(table.to_arrow()[name].to_pylist()) == {"y z"}

    def test_a_table_is_keyed_by_an_odd_name(self, house, name):
        quoted, other = quote_identifier(name), quote_identifier(f"{name}2")
        table = house.table("names", f"{quoted} STRING, {other} BIGINT", primary_key=[name], buckets=2)
        table.upsert([{name: key, f"{name}2": 1} for key in "abcd"])
        house.tier(table)
        table.upsert([{name: "a", f"{name}2": 2}])
        table.delete([{name: "b"}])
        assert table.lookup([{name: "a"}])[f"{name}2"].to_pylist() == [2]
        assert table.lookup_one("c")[f"{name}2"] == 1
        house.tier(table)
        expected = [{name: "a", f"{name}2": 2}, {name: "c", f"{name}2": 1}, {name: "d", f"{name}2": 1}]
        house.agree(table, expected)
        table.alter(rename_columns={f"{name}2": f"{name}3"})
        house.tier(table)
        assert table.to_arrow(filter=[(f"{name}3", "=", 2)])[name].to_pylist() == ["a"]
