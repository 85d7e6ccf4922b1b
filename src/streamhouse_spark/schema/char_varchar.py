"""CHAR(n) and VARCHAR(n): texts of a column with a length. Pure, over Arrow columns.

They are stored as texts, in the lake too. Written texts are brought to their length as in Spark's own tables: longer
ones lose blanks at their end, and are an error if that is not enough; shorter ones of CHAR get blanks. Lengths are of
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
        """Parse the size in a type's name; None for every other type, and for an impossible length."""
        match = _NAME.fullmatch(name)
        if match is None or not 1 <= int(match["length"]) <= LENGTH_MAX:
            return None
        return cls("varchar" if match["varchar"] else "char", int(match["length"]))

    def holds(self, other: TextSize | None) -> bool:
        """Tell whether texts of the size ``other`` have this size unchanged."""
        if other is None:
            return False
        return other == self or (self.kind == "varchar" and other.length <= self.length)

    def fitted(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the texts in their length; the same object if each has it. Raises `TextTooLongError`."""
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
    """A text is longer than its column, without the blanks at its end. The caller names the column."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the text in row {row} is too long")
        self.row = row
