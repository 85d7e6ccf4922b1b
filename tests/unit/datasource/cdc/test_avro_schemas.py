"""A schema registry: its answers, its failures, and the schemas that a query requests."""

from __future__ import annotations

import pytest

from faults.sim import sim_world
from kit.schema_registry import running_registry
from streamhouse_spark.datasource.cdc import avro_schemas
from streamhouse_spark.datasource.cdc.avro_schemas import AvroSchemas, RegistrySchema, SchemaRegistry
from streamhouse_spark.errors import InvalidOptionError, StorageError, StorageRefusedError

SCHEMA = '{"type": "string"}'


@pytest.fixture
def server():
    with running_registry() as registry:
        yield registry


@pytest.fixture
def registry(server, clock):
    return SchemaRegistry.of(f"{server.url}/", None, sim_world(0, clock))


def test_a_registry_gives_a_schema_by_its_id(server, registry):
    assert registry.schema(server.register(SCHEMA)) == RegistrySchema(SCHEMA)
    assert registry.schema(server.register(SCHEMA, schemaType="AVRO")) == RegistrySchema(SCHEMA)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"schemaType": "PROTOBUF"}, "has type 'PROTOBUF', expected AVRO"),
        ({"references": [{"name": "other", "subject": "s", "version": 1}]}, "refers to other schemas"),
    ],
)
def test_schemas_that_read_no_event(server, registry, more, reason):
    found = registry.schema(server.register(SCHEMA, **more))
    assert found.schema is None
    assert reason in found.reason


def test_an_id_that_is_not_there(registry):
    assert registry.schema(7) == RegistrySchema(None, "its schema 7 is not in the registry")


BASIC = "Basic YW5uOnBhOnNz"


@pytest.mark.parametrize(
    ("auth", "header"), [(("ann", "pa:ss"), BASIC), (["ann", "pa:ss"], BASIC), ("t0k", "Bearer t0k")]
)
def test_credentials_are_sent_to_the_schema_registry(server, clock, auth, header):
    server.wanted = header
    number = server.register(SCHEMA)
    registry = SchemaRegistry.of(server.url, auth, sim_world(0, clock))
    assert registry.schema(number).schema == SCHEMA
    assert server.authorizations == {header}
    assert "t0k" not in repr(registry)
    assert "YW5u" not in repr(registry)


@pytest.mark.parametrize("failure", [(503, b""), (429, b""), (200, b"<html>"), (200, b"[]"), (200, b"{}"), (0, b"")])
def test_it_is_asked_again_after_a_failure(server, registry, clock, failure):
    number = server.register(SCHEMA)
    server.answers = [failure, failure]
    assert registry.schema(number).schema == SCHEMA
    assert server.asked == [number] * 3
    assert len(clock.slept_ms) == 2


def test_one_that_stays_away_ends_the_wait(server, registry, clock):
    server.answers = [(500, b"")] * 1_000
    begin_ms = clock.boot_ms()
    with pytest.raises(StorageError, match=r"SCHEMA_REGISTRY_UNAVAILABLE: .* it answered 500; nothing of this batch"):
        registry.schema(7)
    assert 30_000 <= clock.boot_ms() - begin_ms < 35_000


def test_one_that_is_not_there(clock):
    with running_registry() as gone:
        url = gone.url
    with pytest.raises(StorageError, match=r"has not answered \d+ requests for schema 7: URLError"):
        SchemaRegistry.of(url, None, sim_world(0, clock)).schema(7)


def test_a_refusal_is_told_at_once(server, registry, clock):
    server.wanted = "Basic other"
    with pytest.raises(StorageRefusedError, match=r"SCHEMA_REGISTRY_REFUSED: .* answered 401 .* set registry_auth"):
        registry.schema(7)
    server.wanted = None
    elsewhere = SchemaRegistry.of(f"{server.url}/subjects", None, sim_world(0, clock))
    with pytest.raises(StorageRefusedError, match=r"answered 404 .* set registry to the URL"):
        elsewhere.schema(7)
    assert clock.slept_ms == []


@pytest.mark.parametrize(
    ("url", "auth", "says"),
    [
        ("registry:8081", None, "expected a URL"),
        ("file:///etc/passwd", None, "expected a URL"),
        ("http://", None, "expected a URL"),
        ("http://ann:secret@registry", None, "error messages would show"),
        ("http://registry", "", "is an invalid str, expected \\(user, password\\)"),
        ("http://registry", "secret\nX: y", "is an invalid str, expected \\(user, password\\)"),
        ("http://registry", ("ann",), "is an invalid tuple, expected \\(user, password\\)"),
        ("http://registry", ("ann", 5), "is an invalid tuple, expected \\(user, password\\)"),
        ("http://registry", 5, "is an invalid int, expected \\(user, password\\)"),
    ],
)
def test_what_is_none_is_refused_without_its_secret(url, auth, says):
    with pytest.raises(InvalidOptionError, match=says) as raised:
        SchemaRegistry.of(url, auth, sim_world())
    assert "secret" not in str(raised.value)


class JavaPackage:
    """What py4j gives for a name that is none of a class."""

    def __getattr__(self, _: str) -> JavaPackage:
        return self


class Session:
    _jvm = JavaPackage()


def test_avro_without_the_jar_is_rejected():
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
