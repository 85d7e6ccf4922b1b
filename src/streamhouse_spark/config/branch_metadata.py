"""Metadata of a branch, stored in its log as the property ``table.branch``. Pure."""

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
    """Marks a log as that of a branch."""

    of: str
    """UUID of the table of the branch."""
    name: str
    version: int
    """The table's version at which the branch started."""
    is_sealed: bool = False
    """Whether it accepts no more rows, because it is being published."""

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> Self | None:
        """Return the branch metadata; None for a table."""
        if (text := properties.get(BRANCH)) is None:
            return None
        try:
            mark = json.loads(text)
            return cls(str(mark["of"]), str(mark["name"]), int(mark["version"]), bool(mark["is_sealed"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptDataError(
                f"a log has the property {BRANCH} = {quote(text)}, which no version up to this one writes; restore it"
            ) from error
