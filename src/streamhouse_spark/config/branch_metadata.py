"""The mark of a branch, which its log keeps as the property ``table.branch``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final, Self

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError, quote

BRANCH: Final = "table.branch"


@dataclass(frozen=True, slots=True)
class BranchMark:
    """Tells of a log that it is the one of a branch."""

    of: str
    """Uuid of the table that it is a branch of."""
    name: str
    version: int
    """The version of the table with which it began."""
    is_sealed: bool = False
    """Whether it takes no more rows, because it is being published."""

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> Self | None:
        """Return the mark; None for a table."""
        if (text := properties.get(BRANCH)) is None:
            return None
        try:
            mark = json.loads(text)
            return cls(str(mark["of"]), str(mark["name"]), int(mark["version"]), bool(mark["is_sealed"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptDataError(
                f"a log has the property {BRANCH} = {quote(text)}, which no version up to this one writes; restore it"
            ) from error
