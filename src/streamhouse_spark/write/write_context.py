"""The form of rows by key in one write: one value for the functions that are defaults, and numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.kv.table_config import KeyedProperties
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.identity_allocation import IdentityRanges
from streamhouse_spark.schema.default_functions import StatementContext
from streamhouse_spark.schema.defaults import evaluate_defaults
from streamhouse_spark.schema.table_schema import TableSchema


class Shape(Protocol):
    """A `PrimaryKeySchema`, known by what is needed of it here."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> TableSchema: ...
    @property
    def properties(self) -> KeyedProperties: ...


S = TypeVar("S", bound=Shape)


def with_statement_context(shape: S, world: World) -> S:
    """Return the form of rows by key in a write that begins now."""
    schema = evaluate_defaults(shape.schema, StatementContext.of(world))
    return shape if schema is shape.schema else replace(shape, schema=schema)  # type: ignore[type-var]


def with_identity_allocator(shape: S, log: CommitLog) -> S:
    """Return the form of rows by key whose new rows get numbers in the identity column, where there is one."""
    identity = shape.properties.identity
    if identity is None:
        return shape
    return replace(shape, numbers=IdentityRanges(log, identity, shape.name))  # type: ignore[type-var]
