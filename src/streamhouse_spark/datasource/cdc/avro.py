"""Avro events: their schemas, and the JVM function that converts them to JSON.

The function is in the package's jar and uses Spark's own Avro library. It writes values as text that SQL can parse,
according to the schemas, so all later steps are the same as for JSON events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.cdc.schema_registry import Auth, SchemaRegistry
from streamhouse_spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS: Final = "io.streamhouse.spark.cdc.AvroEvents"
_ASKED_MAX: Final = 1_000
"""Maximum ids that one batch fetches. Damaged bytes may contain any id."""


@dataclass(frozen=True, slots=True)
class AvroSchemas:
    """The schemas of a query's events: one given schema, or those of a registry, cached by id."""

    schema_text: str | None
    registry: SchemaRegistry | None
    by_id: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, session: SparkSession, registry: str | None, auth: Auth | None, schema_text: str | None, world: World
    ) -> AvroSchemas:
        """Validate the arguments. Raises `InvalidOptionError` if the session lacks the jar, and for missing or invalid
        schemas.
        """
        if (registry is None) == (schema_text is None):
            raise InvalidOptionError(
                "events in Avro need their schemas: give the URL of their registry as registry=, or the schema of "
                "events without a schema's id as avro_schema="
            )
        if auth is not None and registry is None:
            raise InvalidOptionError("registry_auth is given without registry, the URL that it is for")
        java_class = _java_class(session)
        if schema_text is not None and (problem := java_class.problem(schema_text)) is not None:
            raise InvalidOptionError(f"avro_schema is no schema of Debezium's events: {problem}")
        return cls(schema_text, None if registry is None else SchemaRegistry.of(registry, auth, world))

    def read(self, session: SparkSession, events: Column, refused: Mapping[int, str]) -> Column:
        """Return the ``text`` of each event, the ``reason`` why it has none, and the id of an ``unknown`` schema."""
        function = _java_class(session).read
        return spark_versions.java_function(function, events, dict(self.by_id), dict(refused), self.schema_text)

    def fetch(self, numbers: Iterable[int]) -> dict[int, str]:
        """Fetch schemas, and return the ids without one, with the reason. Raises as `SchemaRegistry.schema`."""
        assert self.registry is not None, "only events with ids lack schemas"
        refused = {}
        # Registry ids are small; ids in damaged bytes are mostly large or negative.
        for place, number in enumerate(sorted(numbers, key=lambda number: (number < 0, number))):
            if number < 0 or place >= _ASKED_MAX:
                refused[number] = f"its schema {number} was not asked for: a batch may have {_ASKED_MAX} new ones"
                continue
            answer = self.registry.schema(number)
            if answer.schema is None:
                refused[number] = answer.reason
            else:
                self.by_id[number] = answer.schema
        return refused


def _java_class(session: SparkSession) -> Any:
    """Return the Java class of the function. Raises `InvalidOptionError` in a session without the jar."""
    java_class = spark_versions.java_class(session, _CLASS)
    if java_class is None:
        raise InvalidOptionError(
            "events in Avro are read by the jar of the package, which Spark was started without; make the session with "
            'streamhouse_spark.configure, or start Spark with --jars "$(streamhouse jar)"'
        )
    return java_class
