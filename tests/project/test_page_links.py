"""Links and file names of the pages lead somewhere, the navigation has every page, and the README fits on one page."""

from __future__ import annotations

import re

from doc_pages import INTERNALS, PAGES, ROOT, anchors_of, blocks, links_of, navigation
from project.source_trees import PACKAGE

TEXTS = {**PAGES, **{name: (ROOT / name).read_text("utf-8") for name in ("ARCHITECTURE.md", "CHANGELOG.md")}}


def test_every_link_of_a_page_has_a_target():
    for page, text in TEXTS.items():
        for path, anchor in links_of(page, text):
            assert (ROOT / path).exists(), f"{page}: {path}"
            assert not anchor or anchor in anchors_of(TEXTS[path]), f"{page}: {path}#{anchor}"


def test_source_files_that_the_pages_name_exist():
    missing = {
        (page, name)
        for page, text in TEXTS.items()
        if page == "ARCHITECTURE.md" or page.startswith(INTERNALS)
        for name in re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+\.(?:py|json))`", text)
        if not (PACKAGE / name).exists() and not (ROOT / name).exists()
    }
    assert missing == set()


def test_the_navigation_has_every_page():
    assert set(navigation()) == PAGES.keys() - {"README.md"}


def test_the_readme_is_a_page():
    readme = PAGES["README.md"]
    assert len(readme.splitlines()) <= 150
    assert len([line for line in blocks(readme, "python")[0].splitlines() if line.strip()]) <= 15
    assert blocks(readme, "sh")[0].startswith("make demo")
