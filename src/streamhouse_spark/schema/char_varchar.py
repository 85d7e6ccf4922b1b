"""CHAR(n) and VARCHAR(n) columns. Pure, over Arrow columns.

Values are stored as plain texts, in the lake too. They are fitted on write as in Spark's own tables: longer texts lose
trailing blanks and fail if they are still too long; shorter CHAR texts are padded with blanks. Lengths are in
characters (code points).
"""

from __future__ import annotations

import re
from typing import Final, Literal, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass

LENGTH_MAX: Final = (1 << 31) - 1
_NAME: Final = re.compile(
    r"\s*(?:(?P<varchar>varchar)|char(?:acter)?)\s*\(\s*(?P<length>\d+)\s*\)(?:\s*collate\s+utf8_binary)?\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TextSize:
    kind: Literal["char", "varchar"]
    length: int

    def __str__(self) -> str:
        return f"{self.kind}({self.length})"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse the size in a type name; None for every other type, and for an invalid length."""
        match = _NAME.fullmatch(name)
        if match is None or not 1 <= int(match["length"]) <= LENGTH_MAX:
            return None
        return cls("varchar" if match["varchar"] else "char", int(match["length"]))

    def holds(self, other: TextSize | None) -> bool:
        """Return whether texts of the size ``other`` need no change for this size."""
        if other is None:
            return False
        return other == self or (self.kind == "varchar" and other.length <= self.length)

    def fitted(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the texts in their length, or the same object if nothing changes. Raises `TextTooLongError`."""
        lengths = pc.utf8_length(texts)
        if pc.any(pc.greater(lengths, self.length)).as_py():
            is_too_long = pc.greater(pc.utf8_length(pc.utf8_rtrim(texts, " ")), self.length)
            if pc.any(is_too_long).as_py():
                raise TextTooLongError(cast("int", pc.index(is_too_long, True).as_py()))
            texts = pc.utf8_slice_codeunits(texts, 0, self.length)
        if self.kind == "char" and pc.any(pc.less(lengths, self.length)).as_py():
            texts = pc.utf8_rpad(texts, self.length, " ")
        return texts

    def fit_text(self, text: str) -> str:
        """Return one text in its length, as `fitted` does."""
        return cast("str", self.fitted(pa.chunked_array([[text]], pa.string()))[0].as_py())


class TextTooLongError(ValueError):
    """A text without trailing blanks is longer than its column. The caller names the column."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the text in row {row} is too long")
        self.row = row
