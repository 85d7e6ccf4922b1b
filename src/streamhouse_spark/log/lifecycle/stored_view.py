"""SQL views as stored in the pointers of their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """A named query, as Spark describes it."""

    text: str
    """The query text. Names in it are resolved in ``catalog`` and ``namespace``."""
    schema: str
    """The columns as the JSON of a ``StructType``."""
    catalog: str | None = None
    namespace: tuple[str, ...] = ()
    query_columns: tuple[str, ...] = ()
    """The column names of the query itself; empty if the view uses them unchanged."""
    schema_mode: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    """The SQL settings that the query was created with."""
    properties: Mapping[str, str] = field(default_factory=dict)

    def to_header(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "schema": self.schema,
            "catalog": self.catalog,
            "namespace": list(self.namespace),
            "query_columns": list(self.query_columns),
            "schema_mode": self.schema_mode,
            "configs": dict(self.configs),
            "properties": dict(self.properties),
        }

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> ViewEntry:
        return cls(
            header["text"],
            header["schema"],
            header["catalog"],
            tuple(header["namespace"]),
            tuple(header["query_columns"]),
            header["schema_mode"],
            header["configs"],
            header["properties"],
        )


@dataclass(frozen=True, slots=True)
class ViewRename:
    """The rename of a view: it commits with pointer ``number`` of ``old``, if that has this ``attempt``."""

    old: str
    number: int
    attempt: str

    def to_header(self) -> dict[str, Any]:
        return {"old": self.old, "number": self.number, "attempt": self.attempt}
