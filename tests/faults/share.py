"""Which storage calls of a sweep a test meets: a sample in `make test`, and all others in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from _pytest.mark.structures import ParameterSet


@dataclass(frozen=True, slots=True)
class Share:
    """Each few of the calls, from the first one on, or those that such a sample leaves out."""

    every: int = 1
    is_rest: bool = False
    each: int = 1
    """Of the rest, each few too, where another sweep meets the calls in between."""

    def __contains__(self, number: int) -> bool:
        """Whether the call ``number`` is met."""
        if self.is_rest:
            return number % self.every != 0 and number % self.each == 0
        return number % self.every == 0


WHOLE = Share()


def few_of(values: Iterable[object], num_short: int) -> list[ParameterSet]:
    """Make parameters of one argument, of which all behind the first ``num_short`` are for the long run."""
    marks = pytest.mark.long
    return [pytest.param(v, marks=() if n < num_short else marks) for n, v in enumerate(values)]
