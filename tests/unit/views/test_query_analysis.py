"""A view's query is compiled again where something that it rests on is another."""

from __future__ import annotations

from dataclasses import replace

from streamhouse_spark import Warehouse
from streamhouse_spark.config.table_properties import ViewDefinition
from streamhouse_spark.views.query_analysis import PlanCache

DEFINITION = ViewDefinition("SELECT a FROM db.t", "incremental", 1_000, ("a",), "bag", {"zone": "UTC"})


def test_what_a_compiled_query_rests_on(tmp_path):
    table = Warehouse(str(tmp_path / "wh")).create_table("db.t", "a INT")
    plans, made = PlanCache(), []

    def compiled(definition=DEFINITION, view="db.v") -> int:
        """The number of the compilation that is used."""
        plans.compile(view, definition, {"db.t": table.refresh()}, lambda: made.append(len(made) + 1) or made[-1])
        return plans.compile(view, definition, {"db.t": table.state}, lambda: "never")

    assert compiled() == 1
    table.append([{"a": 1}])
    assert compiled() == 1, "rows are no reason"
    table.alter(add_columns="b INT")
    assert compiled() == 2
    assert compiled(replace(DEFINITION, query="SELECT a + 1 AS a FROM db.t")) == 3
    assert compiled(replace(DEFINITION, session={"zone": "Asia/Tokyo"})) == 4
    assert compiled(view="db.other") == 5
    parsed = plans.parse("db.v", DEFINITION.query)
    assert plans.parse("db.v", DEFINITION.query) is parsed
    assert plans.parse("db.v", "SELECT b FROM db.u").sources == ("db.u",)
