"""A long sweep of crashes in pairs can be run piece by piece, and says how far it is."""

from __future__ import annotations

import re

import pytest

from soak import __main__ as soak

NAME = "append inline"


def pieces(capsys, *options: str) -> tuple[int, int, list[int]]:
    """Pairs, calls of the work that were met, and those that progress named."""
    soak.main(["pairs", "--scenario", NAME, *options])
    said = capsys.readouterr()
    pairs, calls = map(int, re.search(r"pairs: (\d+) faults injected at (\d+) calls", said.out).groups())
    return pairs, calls, [int(call) for call in re.findall(rf"{NAME}: call (\d+) of", said.err)]


def test_the_pieces_are_the_whole(capsys):
    whole = pieces(capsys, "--every", "6")
    first = pieces(capsys, "--every", "6", "--to", "5")
    rest = pieces(capsys, "--every", "6", "--from", "5")
    assert first[2] == [0, 1, 2, 3, 4]
    assert rest[2] == list(range(5, whole[1]))
    assert (first[0] + rest[0], first[1] + rest[1]) == whole[:2]
    assert pieces(capsys, "--every", "3", "--to", "5")[0] > first[0]


def test_what_meets_nothing_is_no_success(capsys):
    with pytest.raises(AssertionError, match="append inline has no such calls"):
        pieces(capsys, "--from", "1000")
    with pytest.raises(SystemExit):
        soak.main(["pairs", "--scenario", "no such"])
    assert "invalid choice: 'no such'" in capsys.readouterr().err
