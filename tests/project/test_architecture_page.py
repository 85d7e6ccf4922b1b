"""The diagrams of ARCHITECTURE.md match the import contracts, and the page and its data paths stay short."""

from __future__ import annotations

import re
import tomllib

import pytest

from doc_pages import ROOT, data_paths

PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
WORDS_MAX = 4_500
STEPS_MAX = {"append": 10, "union read": 18, "tiering": 14, "upsert": 12}
PACKAGE = "package"
PARTS = ["log", "lake", "datasource", "catalog"]


def diagrams(page: str) -> dict[str, str]:
    """Return each contract → the diagram after its mark."""
    return dict(re.findall(r"<!-- layers: (\w+) -->\n```\n(.*?)\n```", page, re.DOTALL))


def boxed_layers(diagram: str) -> list[list[str]]:
    return [layer_modules(cell) for cell in re.findall(r"^│([^│]+)│", diagram, re.MULTILINE)]


def inline_layers(diagram: str) -> list[list[str]]:
    return [layer_modules(layer) for layer in diagram.split(maxsplit=1)[1].split(">")]


def layer_modules(layer: str) -> list[str]:
    """Return the modules of a layer in alphabetical order."""
    return sorted(name.strip() for name in layer.split("|"))


def contract_layers(name: str) -> list[list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return [layer_modules(layer) for layer in next(c for c in contracts if c["id"] == name)["layers"]]


def is_ordered(diagram: list[list[str]], contract: list[list[str]]) -> bool:
    """Return whether each layer of the diagram is part of a layer of the contract, each below the one before."""
    heights = [n for layer in diagram for n, modules in enumerate(contract) if {*layer} <= {*modules}]
    return len(heights) == len(diagram) and heights == sorted(set(heights))


def test_the_diagram_of_the_package_is_its_contract():
    assert boxed_layers(diagrams(PAGE)[PACKAGE]) == contract_layers(PACKAGE)


@pytest.mark.parametrize("part", PARTS)
def test_the_diagram_of_a_part_agrees_with_its_contract(part):
    assert is_ordered(inline_layers(diagrams(PAGE)[part]), contract_layers(part))


def test_every_diagram_is_checked():
    assert set(diagrams(PAGE)) == {PACKAGE, *PARTS}


@pytest.mark.parametrize("diagram", ["log  a > c > b", "log  a | b > c", "log  a > d", "log  a > a > b"])
def test_a_wrong_diagram_is_found(diagram):
    assert not is_ordered(inline_layers(diagram), [["a"], ["b", "x"], ["c"]])


def test_the_page_can_be_read_in_one_sitting():
    assert len(PAGE.split()) <= WORDS_MAX


@pytest.mark.parametrize("data_path", STEPS_MAX)
def test_a_data_path_is_short(data_path):
    assert len(data_paths()[data_path]) <= STEPS_MAX[data_path]
