"""The pages of the documentation: README.md and all below docs/, each by its path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath

import yaml

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
NAVIGATION = "mkdocs.yml"
INTERNALS = "docs/internals/"
"""Pages about the code, for its readers."""
USER_PAGES = {path: text for path, text in PAGES.items() if not path.startswith(INTERNALS)}

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def navigation() -> list[str]:
    """Return the pages of docs/ in the order of the site's navigation."""

    def pages_of(item: object) -> Iterator[str]:
        if isinstance(item, str):
            yield f"docs/{item}"
        elif isinstance(item, dict | list):
            for child in item.values() if isinstance(item, dict) else item:
                yield from pages_of(child)

    config = yaml.safe_load((ROOT / NAVIGATION).read_text("utf-8"))
    return [page for page in pages_of(config["nav"]) if page in PAGES]


def in_reading_order() -> list[str]:
    """Return README.md and the pages in the order of the navigation."""
    return list(dict.fromkeys(["README.md", *navigation(), *PAGES]))


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code of one language in ``text``."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def links_of(page: str, text: str) -> list[tuple[str, str]]:
    """The links from ``page`` to places of this repository, each as (path, anchor); one of the two may be empty."""
    found = []
    for target in _LINK.findall(_FENCED.sub("", text)):
        path, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", target):
            found.append((normpath(PurePosixPath(page).parent / path) if path else page, anchor))
    return found


def anchors_of(text: str) -> set[str]:
    """The anchors that a Git host makes of the headings in ``text``."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def data_paths() -> dict[str, list[str]]:
    """Return each data path of ARCHITECTURE.md → its files, in the order in which a call reaches them."""
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    lists = re.findall(r"<!-- way: ([\w ]+) -->\n((?:\d+\. .*\n(?:   .*\n)*)+)", page)
    return {name: re.findall(r"^\d+\. `([^`]+)`", steps, re.MULTILINE) for name, steps in lists}
