"""A page cut into what it claims: sentences, rows of tables, and lines of commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SENTENCE_END = re.compile(r"(?<=[.!?])[*)]*\s+(?=[A-Z`*(\[])")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_POINTER = re.compile(r"!?\[[^]]+\]\([^)]+\)|\| \[")
"""A sentence or a row that begins with a link, or an image, points to another page."""
_ITEM = re.compile(r"^(?:- |\d+\. )", re.MULTILINE)


def claims_of(markdown: str) -> Iterator[str]:
    """The claims of ``markdown``, each in one line. Blocks of Python and JSON are left out: a test runs them."""
    for body in re.split(r"^#+ .*\n", _without_python(markdown), flags=re.MULTILINE):
        for block in re.split(r"\n\s*\n", body):
            yield from (claim for claim in _of_block(block) if not _POINTER.match(claim))


def _without_python(markdown: str) -> str:
    def as_rows(block: re.Match[str]) -> str:
        lines = [] if block[1] in ("python", "json") else block[2].replace("\\\n", " ").splitlines()
        return "\n" + "".join(f"\n$ {' '.join(line.split())}\n" for line in lines if line.strip()) + "\n"

    return _FENCED.sub(as_rows, markdown)


def _of_block(block: str) -> Iterator[str]:
    rows = [line for line in block.splitlines() if line.startswith("|")]
    if rows:
        yield from rows[2:]  # behind the header and the line below it
    elif block.startswith("$ "):
        yield block.strip()
    elif not block.lstrip().startswith("<!--"):
        for item in _ITEM.split(block):
            yield from _sentences(" ".join(item.split()))


def _sentences(text: str) -> Iterator[str]:
    title = ""
    for sentence in _SENTENCE_END.split(text):
        said = f"{title} {sentence}".strip()
        title = said if said.startswith("**") and said.count("**") == 1 else ""  # belongs to the sentence behind it
        if not title and said:
            yield said
    if title:
        yield title
