"""Kinds of actions that hold more than older versions of this package know of: a name of its own stops these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.schema.checks.check import CONSTRAINT
from streamhouse_spark.schema.generated.generated import has_generated
from streamhouse_spark.schema.table_schema import TableSchema


def of_parts(kind: str, segments: Iterable[Segment]) -> str:
    """Return the kind of an action with these segments, of its own with shared objects: a version of this package that
    does not know of them would delete an object with the first of its segments, so it is stopped here.
    """
    return f"{kind}-parts" if any(segment.part is not None for segment in segments) else kind


def with_checks(kind: str, properties: Mapping[str, str], schema: TableSchema | None = None) -> str:
    """Return the kind of an action with these properties, or this schema.

    With constraints, generated columns or field ids it has a name of its own: a version of this package that does not
    know them would write rows that they forbid, or read fields by their names, so it is stopped here.
    """
    form = "-generated" if has_generated(properties) else "-checked" if has_constraints(properties) else ""
    return f"{kind}-fields" if schema is not None and schema.has_field_ids else kind + form


def has_constraints(properties: Iterable[str]) -> bool:
    """Tell whether constraints are among properties of these names."""
    return any(name.startswith(CONSTRAINT) for name in properties)
