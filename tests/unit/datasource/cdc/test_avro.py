"""The schemas of a query's events: which are asked for, and what is told of the others."""

from __future__ import annotations

import pytest

from faults.sim import sim_world
from kit.schema_registry import running_registry
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.datasource.cdc import avro_schemas
from streamhouse_spark.datasource.cdc.avro_schemas import AvroSchemas, SchemaRegistry


class JavaPackage:
    """What py4j gives for a name that is none of a class."""

    def __getattr__(self, _: str) -> JavaPackage:
        return self


class Session:
    _jvm = JavaPackage()


def test_a_session_without_the_jar():
    with pytest.raises(InvalidOptionError, match=r"create the session with streamhouse_spark\.configure, or"):
        AvroSchemas.of(Session(), "http://r", None, None, sim_world())


def test_ids_are_asked_for_once_and_so_many_at_most(monkeypatch):
    monkeypatch.setattr(avro_schemas, "_FETCHES_MAX", 3)
    with running_registry() as server:
        schemas = AvroSchemas(None, SchemaRegistry.of(server.url, None, sim_world()))
        numbers = [server.register("{}"), server.register("{}")]
        refused = schemas.fetch({-1, -(2**31), 2**31 - 1, *numbers, 5})
        assert server.asked == [5, *numbers], "those of a registry are small numbers"
    assert schemas.by_id == dict.fromkeys(numbers, "{}")
    assert refused == {
        5: "its schema 5 is not in the registry",
        **{
            number: f"its schema {number} was not fetched: a batch may have 3 new schema ids"
            for number in (2**31 - 1, -1, -(2**31))
        },
    }
