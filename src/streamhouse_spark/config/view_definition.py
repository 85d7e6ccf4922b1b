"""Definition of a view, stored as its table's property ``table.view``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Literal

from streamhouse_spark.core import option_parsing
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, quote

VIEW: Final = "table.view"
Mode = Literal["incremental", "full"]


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """A query that is maintained as a table."""

    query: str
    mode: Mode
    freshness_ms: int
    names: tuple[str, ...]
    """The query's columns."""
    identity: str
    """How rows are identified: natural, hash or bag."""
    session: Mapping[str, str]
    """Session settings that affect the query's values."""
    paused: bool = False
    """Whether services do not refresh the view. Versions that lack the property can read the rows, but do not refresh a
    paused view.
    """
    step_rows: int | None = None
    """Approximate number of source rows per commit; None for no limit."""

    def to_text(self) -> str:
        """Return the property's value. Defaults are omitted, as versions without these fields require."""
        fields = asdict(self)
        if not self.paused:
            del fields["paused"]
        if self.step_rows is None:
            del fields["step_rows"]
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    def to_facts(self) -> dict[str, Any]:
        """Return the displayed properties of a view."""
        freshness_s = self.freshness_ms / 1000
        return {"query": self.query, "mode": self.mode, "freshness_s": freshness_s, "paused": self.paused}

    @classmethod
    def of(cls, properties: Mapping[str, str], table: str) -> ViewDefinition:
        """Return the definition of a view's table. Raises `InvalidOptionError` for any other table."""
        text = properties.get(VIEW)
        if text is None:
            raise InvalidOptionError(f"{table} is no materialised table; make one with streamhouse_spark.materialize")
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(**{**fields, "names": tuple(fields["names"])})
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidOptionError(
                f"{table}: its property {VIEW} is {quote(text)}, which no version up to this one writes"
            ) from error


def parse_mode(mode: str) -> Mode:
    if mode == "incremental":
        return "incremental"
    if mode == "full":
        return "full"
    raise InvalidOptionError(f"mode is {quote(mode)}, expected incremental or full")


def parse_step_rows(step_rows: int | None, mode: Mode) -> int | None:
    if step_rows is None:
        return None
    if type(step_rows) is not int or step_rows < 1:
        raise InvalidOptionError(f"step_rows is {quote(step_rows)}, expected a whole number of rows from 1 on, or None")
    if mode == "full":
        raise InvalidOptionError(
            "step_rows is for views that are kept by changes, and with mode='full' each refresh computes the whole "
            "query; leave step_rows out, or use mode='incremental'"
        )
    return step_rows


def parse_freshness_ms(freshness: str) -> int:
    return option_parsing.parse_duration_ms("freshness", freshness)


def view_facts(properties: Mapping[str, str], table: str) -> dict[str, Any] | None:
    """Return the displayed properties of a view; None for any other table."""
    return ViewDefinition.of(properties, table).to_facts() if VIEW in properties else None
