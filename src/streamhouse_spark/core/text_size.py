"""CHAR(n) and VARCHAR(n): texts of a column that have a length. Pure, over Arrow columns.

They are stored as texts, in the lake too. What is written is brought to its length as in Spark's own tables: what is
longer loses blanks at its end, and is an error where that is not enough; of CHAR what is shorter gets blanks. Lengths
are of characters (code points).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

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
        """The size that a type's name says; None for every other type, and for a length that cannot be."""
        found = _NAME.fullmatch(name)
        if found is None or not 1 <= int(found["length"]) <= LENGTH_MAX:
            return None
        return cls("varchar" if found["varchar"] else "char", int(found["length"]))

    def holds(self, other: TextSize | None) -> bool:
        """Whether texts of another size are of this one as they are."""
        if other is None:
            return False
        return other == self or (self.kind == "varchar" and other.length <= self.length)

    def fitted(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """The texts in their length; the very same where each has it. Raises `TextTooLongError`."""
        lengths = pc.utf8_length(texts)
        if pc.any(pc.greater(lengths, self.length)).as_py():
            found = pc.greater(pc.utf8_length(pc.utf8_rtrim(texts, " ")), self.length)
            if pc.any(found).as_py():
                raise TextTooLongError(cast("int", pc.index(found, True).as_py()))
            texts = pc.utf8_slice_codeunits(texts, 0, self.length)
        if self.kind == "char" and pc.any(pc.less(lengths, self.length)).as_py():
            texts = pc.utf8_rpad(texts, self.length, " ")
        return texts

    def fitted_text(self, text: str) -> str:
        """As `fitted`, of one text."""
        return cast("str", self.fitted(pa.chunked_array([[text]], pa.string()))[0].as_py())


class TextTooLongError(ValueError):
    """A text is longer than its column is wide, without the blanks at its end. The caller names the column."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the text in row {row} is too long")
        self.row = row
