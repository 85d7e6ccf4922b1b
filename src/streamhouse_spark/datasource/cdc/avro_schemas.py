"""Avro events: their schemas, and the JVM function that converts them to JSON.

The function is in the package's jar and uses Spark's own Avro library. It writes values as text that SQL can parse,
according to the schemas, so all later steps are the same as for JSON events.

A registry with Confluent's REST API has the schemas by id. The schema of an id never changes, so each is fetched once
per query, and only by the driver. Tasks need no access to the registry, and credentials stay on the driver. Sources:
Confluent's "Schema Registry API Reference", ``GET /schemas/ids/{id}`` and its errors. Apicurio (below
``/apis/ccompat/v7``), Karapace and Redpanda implement it too.
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pyspark.sql import Column

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.cdc.event_formats import missing_jar_error
from streamhouse_spark.errors import InvalidOptionError, StorageError, StorageRefusedError, quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS: Final = "io.streamhouse.spark.cdc.AvroEvents"
_FETCHES_MAX: Final = 1_000
"""Maximum number of schema ids that a batch fetches, because damaged bytes may contain any id."""
Auth = Sequence[str] | str
"""A user and password, or a token."""
_ACCEPTED: Final = "application/vnd.schemaregistry.v1+json, application/json"
_TIMEOUT_S: Final = 10
_RETRY_MS: Final = 30_000
"""How long the registry may be unavailable before the query fails."""
_RESPONSE_BYTES_MAX: Final = 8 << 20
_NOT_FOUND: Final = range(40_400, 40_500)
"""Error codes in a 404 of a registry: no such schema, subject or version. Any other 404 is from another server."""


@dataclass(frozen=True, slots=True)
class AvroSchemas:
    """The schemas of a query's events: one schema for all events, or the schemas of a registry, cached by id."""

    schema_text: str | None
    registry: SchemaRegistry | None
    by_id: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, session: SparkSession, registry: str | None, auth: Auth | None, schema_text: str | None, world: World
    ) -> AvroSchemas:
        """Validate the arguments. Raises `InvalidOptionError` if the session does not have the jar, and for missing or
        invalid schemas.
        """
        if (registry is None) == (schema_text is None):
            raise InvalidOptionError(
                "Avro events require a schema: set registry to the URL of the schema registry, or avro_schema to the "
                "schema of events without schema ids"
            )
        if auth is not None and registry is None:
            raise InvalidOptionError("registry_auth requires registry; set registry, or omit registry_auth")
        java_class = _java_class(session)
        if schema_text is not None and (problem := java_class.problem(schema_text)) is not None:
            raise InvalidOptionError(f"avro_schema is not a schema of Debezium events: {problem}")
        return cls(schema_text, None if registry is None else SchemaRegistry.of(registry, auth, world))

    def read(self, session: SparkSession, events: Column, rejected: Mapping[int, str]) -> Column:
        """Return the ``text`` of each event, the ``reason`` if it has no text, and the id of an ``unknown`` schema."""
        function = _java_class(session).read
        return spark_versions.java_function(function, events, dict(self.by_id), dict(rejected), self.schema_text)

    def fetch(self, numbers: Iterable[int]) -> dict[int, str]:
        """Fetch schemas. Returns id → reason for ids without a schema. Raises the errors of `SchemaRegistry.schema`."""
        assert self.registry is not None, "only a registry has schema ids"
        rejected = {}
        # Registry ids are small; ids in damaged bytes are mostly large or negative.
        for place, number in enumerate(sorted(numbers, key=lambda number: (number < 0, number))):
            if number < 0 or place >= _FETCHES_MAX:
                rejected[number] = (
                    f"its schema {number} was not fetched: a batch may have {_FETCHES_MAX} new schema ids"
                )
                continue
            answer = self.registry.schema(number)
            if answer.schema is None:
                rejected[number] = answer.reason
            else:
                self.by_id[number] = answer.schema
        return rejected


def _java_class(session: SparkSession) -> Any:
    """Return the Java class of the function. Raises `InvalidOptionError` in a session without the jar."""
    java_class = spark_versions.java_class(session, _CLASS)
    if java_class is None:
        raise missing_jar_error()
    return java_class


@dataclass(frozen=True, slots=True)
class RegistrySchema:
    """The schema of an id, or the reason why it is missing or cannot be used."""

    schema: str | None
    reason: str = ""


class _UnavailableError(Exception):
    """The registry did not answer; a retry may succeed."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A registry at a URL."""

    url: str
    authorization: str | None = field(repr=False)
    world: World = field(default_factory=World)

    @classmethod
    def of(cls, url: str, auth: Auth | None, world: World) -> SchemaRegistry:
        """Validate the URL and credentials. Raises `InvalidOptionError`, which shows no secret."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidOptionError(f"registry is {quote(url)}, expected a URL such as 'https://registry:8081'")
        if parts.username or parts.password:
            raise InvalidOptionError(
                "registry has a user or password in its URL, which error messages would show; set "
                "registry_auth=(user, password)"
            )
        return cls(url.rstrip("/"), None if auth is None else _authorization(auth), world)

    def schema(self, number: int) -> RegistrySchema:
        """Return the schema of an id.

        A registry that fails or does not answer is retried for 30 seconds. Raises `StorageError` if it is still
        unavailable, and `StorageRefusedError` if it rejects the client or the URL is not a registry.
        """
        begin_ms = self.world.clock.boot_ms()
        attempt = 0
        while True:
            try:
                return self._request(number)
            except _UnavailableError as error:
                attempt += 1
                if self.world.clock.boot_ms() - begin_ms >= _RETRY_MS:
                    raise StorageError(
                        f"the schema registry {self.url} has not answered {attempt} requests for schema {number}: "
                        f"{error}; nothing of this batch was written; restart the query when the registry is available",
                        condition="SCHEMA_REGISTRY_UNAVAILABLE",
                    ) from error
            self.world.wait_to_retry(attempt)

    def _request(self, number: int) -> RegistrySchema:
        request = urllib.request.Request(f"{self.url}/schemas/ids/{number}", headers={"Accept": _ACCEPTED})  # noqa: S310 - `of`
        if self.authorization is not None:
            request.add_unredirected_header("Authorization", self.authorization)  # not sent on redirects
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as before
                body = answer.read(_RESPONSE_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                return self._handle_http_error(number, error.code, error.read(_RESPONSE_BYTES_MAX))
        except (OSError, http.client.HTTPException) as error:
            raise _UnavailableError(f"{type(error).__name__}: {error}") from error
        return _parse_answer(_parse_object(body), number)

    def _handle_http_error(self, number: int, status: int, body: bytes) -> RegistrySchema:
        if status == 429 or status >= 500:
            raise _UnavailableError(f"it answered {status}")
        if status == 404 and _error_code(body) in _NOT_FOUND:
            return RegistrySchema(None, f"its schema {number} is not in the registry")
        advice = "set registry_auth" if status in (401, 403) else "set registry to the URL of a schema registry"
        raise StorageRefusedError(
            f"the schema registry {self.url} answered {status} to a request for schema {number}; nothing of this batch "
            f"was written; {advice} and restart the query",
            condition="SCHEMA_REGISTRY_REFUSED",
        )


def _authorization(auth: Auth) -> str:
    if isinstance(auth, str) and auth.isascii() and auth.isprintable() and auth.strip():
        return f"Bearer {auth}"
    if isinstance(auth, list | tuple) and len(auth) == 2 and all(isinstance(part, str) for part in auth):
        return "Basic " + base64.b64encode(f"{auth[0]}:{auth[1]}".encode()).decode()
    raise InvalidOptionError(f"registry_auth is an invalid {type(auth).__name__}, expected (user, password) or a token")


def _parse_answer(answer: dict[str, Any], number: int) -> RegistrySchema:
    kind, schema = answer.get("schemaType", "AVRO"), answer.get("schema")
    if kind != "AVRO":
        return RegistrySchema(None, f"its schema {number} has type {quote(kind)}, expected AVRO")
    if answer.get("references"):
        return RegistrySchema(None, f"its schema {number} refers to other schemas, which is not supported")
    if not isinstance(schema, str):
        raise _UnavailableError("its response has no schema")
    return RegistrySchema(schema)


def _parse_object(body: bytes) -> dict[str, Any]:
    if len(body) > _RESPONSE_BYTES_MAX:
        raise _UnavailableError(f"its response has more than {_RESPONSE_BYTES_MAX >> 20} MiB")
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _UnavailableError("its response is not a JSON object")
    return answer


def _error_code(body: bytes) -> int:
    try:
        answer = json.loads(body)
    except ValueError:
        return 0
    code = answer.get("error_code") if isinstance(answer, dict) else None
    return code if isinstance(code, int) else 0
