"""The pictures of ARCHITECTURE.md are those of the import contracts, and its length is that of one sitting."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
WORDS_MAX = 4_500
HOUSE = "floors"
ROOMS = ["log", "lake", "datasource", "catalog"]


def pictures(page: str) -> dict[str, str]:
    """Contract → the picture behind its mark."""
    return dict(re.findall(r"<!-- floors: (\w+) -->\n```\n(.*?)\n```", page, re.DOTALL))


def floors_of_house(picture: str) -> list[list[str]]:
    return [named(cell) for cell in re.findall(r"^│([^│]+)│", picture, re.MULTILINE)]


def floors_of_room(picture: str) -> list[list[str]]:
    return [named(floor) for floor in picture.split(maxsplit=1)[1].split(">")]


def named(floor: str) -> list[str]:
    """The modules of a floor, in the order of the alphabet."""
    return sorted(name.strip() for name in floor.split("|"))


def contract(name: str) -> list[list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return [named(layer) for layer in next(c for c in contracts if c["id"] == name)["layers"]]


def is_ordered(room: list[list[str]], floors: list[list[str]]) -> bool:
    """Tell whether each floor of the picture is a part of a floor, and each of these lies below the one before."""
    heights = [n for names in room for n, floor in enumerate(floors) if {*names} <= {*floor}]
    return len(heights) == len(room) and heights == sorted(set(heights))


def test_the_picture_of_the_house_is_its_contract():
    assert floors_of_house(pictures(PAGE)[HOUSE]) == contract(HOUSE)


@pytest.mark.parametrize("room", ROOMS)
def test_the_picture_of_a_room_is_part_of_its_contract(room):
    assert is_ordered(floors_of_room(pictures(PAGE)[room]), contract(room))


def test_no_picture_is_unknown():
    assert set(pictures(PAGE)) == {HOUSE, *ROOMS}


@pytest.mark.parametrize("picture", ["log  a > c > b", "log  a | b > c", "log  a > d", "log  a > a > b"])
def test_a_wrong_picture_is_found(picture):
    assert not is_ordered(floors_of_room(picture), [["a"], ["b", "x"], ["c"]])


def test_one_sitting_is_enough():
    assert len(PAGE.split()) <= WORDS_MAX
