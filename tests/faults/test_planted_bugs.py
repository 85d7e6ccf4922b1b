"""Each planted bug is found by the failure that it is meant to cause, and its history finds nothing without it."""

from __future__ import annotations

from functools import partial

import pytest

from faults.planted_bugs.deleted_row_bugs import DELETED_ROW_BUGS
from faults.planted_bugs.lake_bugs import LAKE_BUGS
from faults.planted_bugs.log_bugs import LOG_BUGS
from faults.planted_bugs.planting import Patch, PlantedBug, StalePlantError, WrongFailureError
from faults.planted_bugs.write_bugs import WRITE_BUGS
from streamhouse_spark import StorageError

BUGS = (*LOG_BUGS, *LAKE_BUGS, *DELETED_ROW_BUGS, *WRITE_BUGS)
HISTORIES = dict.fromkeys(bug.history for bug in BUGS if not isinstance(bug.history, partial))
"""The other histories are parts of sweeps, which run elsewhere without a bug."""


def test_the_names_of_planted_bugs_are_unique():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 160


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug):
    bug.require_found()


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_nothing_is_found_without_a_bug(history):
    history()


# -- plants that do not fit --------------------------------------------------------------------------------------------


class Product:
    """What the bugs below are planted into."""

    num_retries = 3

    def add(self, number: int, *, plus: int = 1) -> int:
        return number + plus

    @property
    def size(self) -> int:
        return self.add(1)


def product_refuses() -> None:
    Product().add(1)
    raise StorageError("refused")


def product_adds() -> None:
    assert Product().add(1) == 2, "1 and 1 is not 2"


def bug(*patches: Patch, failure: str = "1 and 1 is not 2", history=product_adds) -> PlantedBug:
    return PlantedBug("wrong sum", *patches).found_by(history, failure)


@pytest.mark.parametrize(
    "patch",
    [
        Patch(Product, "add", lambda number: number),
        Patch(Product, "add", lambda original: original(plus=0)),
        Patch(Product, "add", lambda original, self, number, plus: original() + number + plus),
    ],
    ids=["own result", "changed argument", "all parameters"],
)
def test_a_plant_may_name_any_parameters_of_its_target(patch):
    bug(patch).require_found()
    product_adds()


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (Patch(Product, "add", lambda number, minus: 0), r"Product\.add: found \(number, minus\), expected \(self, "),
        (Patch(Product, "add", lambda *_: 0), r"Product\.add: found \(\*_\), expected \(self, number: "),
        (Patch(Product, "add", 7), r"Product\.add: found 7, expected a function"),
        (Patch(Product, "size", 7), r"Product\.size: found 7, expected a function"),
        (Patch(Product, "size", lambda: 0), r"Product\.size: found no call in the history, expected one"),
        (Patch(Product, "num_retries", "7"), r"Product\.num_retries: found '7', expected 3"),
        (Patch(Product, "subtract", lambda number: 0), r"Product\.subtract: found no such attribute, expected one"),
        (
            Patch(Product, "add", lambda original: original(minus=1)),
            r"Product\.add: found \(minus\), expected \(self, ",
        ),
    ],
)
def test_a_plant_with_a_wrong_signature_is_reported(patch, message):
    with pytest.raises(StalePlantError, match=f"planted bug 'wrong sum' no longer fits {message}"):
        bug(patch).require_found()


def product_is_asked_in_a_thread() -> None:
    """A history that takes any error for the wrong answer, as those do that collect the answers of threads."""
    try:
        answer = Product().add(1)
    except Exception as error:  # noqa: BLE001 - as above
        answer = error
    assert answer == 2, "1 and 1 is not 2"


@pytest.mark.parametrize("history", [product_adds, product_is_asked_in_a_thread])
@pytest.mark.parametrize("error", [TypeError, AttributeError, NameError])
def test_an_error_of_the_plant_itself_is_no_detection(history, error):
    def add() -> int:
        raise error("broken")

    with pytest.raises(WrongFailureError, match=f"'wrong sum' is broken: {error.__name__}"):
        bug(Patch(Product, "add", add), history=history).require_found()


@pytest.mark.parametrize(
    ("history", "failure", "found"),
    [
        (product_adds, "2 and 2 is not 4", r"AssertionError\('1 and 1 is not 2"),
        (product_refuses, "StorageError: ...timed out", r"StorageError\('STORAGE: refused'\)"),
        (product_refuses, "refused", r"StorageError\('STORAGE: refused'\)"),
        (lambda: Product().add(1), "1 and 1 is not 2", "no failure"),
    ],
    ids=["another check", "another message", "another type", "nothing"],
)
def test_a_bug_that_is_found_for_the_wrong_reason_is_reported(history, failure, found):
    planted = bug(Patch(Product, "add", lambda number: number), history=history, failure=failure)
    with pytest.raises(WrongFailureError, match=f"planted bug 'wrong sum': found {found}.*, expected '{failure}'"):
        planted.require_found()
