"""Planted bugs: each takes one decision away from the product, the way a plausible change would.

A history of reads and writes must find the bug by the failure that the bug is meant to cause. A plant that no longer
fits the product is an error of its own, and so is a `TypeError` that merely looks like a detection.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest import mock

import pytest

from streamhouse_spark import StreamhouseError


class StalePlantError(Exception):
    """A planted bug replaces something that the product no longer has in this form."""


class WrongFailureError(Exception):
    """A history did not find a planted bug, or found it by another failure than the expected one."""


BROKEN_PLANT = (TypeError, AttributeError, NameError, StalePlantError)
"""The errors of a plant that does not fit the product. They are never a detection."""


@dataclass(frozen=True, slots=True)
class Patch:
    """The replacement of one function, property or constant of a module or class.

    A function that replaces another names only the parameters that it uses, each as its target names it. The planted
    function has the whole signature of its target, so a new parameter of the target cannot make it stale. A parameter
    ``original`` is the target, bound to the arguments of the call: ``original(grace_ms=0)`` changes one of them.
    A history that never calls the target shows that the decision is made elsewhere now: the plant is stale, too.
    """

    owner: Any
    name: str
    replacement: Any

    @contextmanager
    def planted(self, bug: str, broken: list[Exception]) -> Iterator[None]:
        """Replace the target, and add to ``broken`` each error that shows that the plant does not fit."""
        if not hasattr(self.owner, self.name):
            raise self._stale(bug, "no such attribute", "one to replace")
        target = inspect.getattr_static(self.owner, self.name)
        function = target.fget if isinstance(target, property) else target
        if not inspect.isfunction(function):
            if type(self.replacement) is not type(target):
                raise self._stale(bug, repr(self.replacement), repr(target))
            with mock.patch.object(self.owner, self.name, self.replacement):
                yield
            return
        calls = itertools.count()
        planted = self._function(bug, function, calls, broken)
        with mock.patch.object(self.owner, self.name, property(planted) if isinstance(target, property) else planted):
            yield
        if not next(calls):
            broken.append(self._stale(bug, "no call in the history", "one"))

    def _function(
        self, bug: str, target: Callable[..., Any], calls: Iterator[int], broken: list[Exception]
    ) -> Callable[..., Any]:
        if not inspect.isfunction(self.replacement):
            raise self._stale(bug, repr(self.replacement), "a function")
        signature, uses = inspect.signature(target), inspect.signature(self.replacement)
        if not {*uses.parameters} <= {"original", *signature.parameters} or _has_unnamed(uses):
            raise self._stale(bug, str(uses), str(signature))

        @wraps(target)
        def planted(*args: Any, **kwargs: Any) -> Any:
            def original(**changed: Any) -> Any:
                if not changed.keys() <= call.arguments.keys():
                    raise self._stale(bug, f"({', '.join(changed)})", str(signature))
                after = inspect.BoundArguments(signature, call.arguments | changed)
                return target(*after.args, **after.kwargs)

            next(calls)
            try:
                call = signature.bind(*args, **kwargs)
                call.apply_defaults()
                arguments = {"original": original} | call.arguments
                return self.replacement(**{name: arguments[name] for name in uses.parameters})
            except BROKEN_PLANT as error:
                broken.append(error)  # a thread of the history may swallow it
                raise

        return planted

    def _stale(self, bug: str, found: str, expected: str) -> StalePlantError:
        where = f"{self.owner.__name__}.{self.name}"
        return StalePlantError(f"planted bug {bug!r} no longer fits {where}: found {found}, expected {expected}")


def _has_unnamed(signature: inspect.Signature) -> bool:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return bool(kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


class PlantedBug:
    """A defect in plain English, and its patches or functions that make patches which share what they remember."""

    def __init__(self, name: str, *patches: Patch | Callable[[], Iterable[Patch]]) -> None:
        self.name, self.patches = name, patches

    def found_by(self, history: Callable[[], object], failure: str) -> PlantedBug:
        """Note the history that finds the bug, and the text of the failure that the bug is meant to cause.

        The text is a part of the message of an `AssertionError`, or the start of ``Name: message`` of an error of the
        product. In it ``...`` stands for any text.
        """
        self.history, self.failure = history, failure
        return self

    def require_found(self) -> None:
        """Run the history with the bug planted, and require that it ends with the expected failure.

        Raises `StalePlantError`, `WrongFailureError`.
        """
        broken: list[Exception] = []
        with ExitStack() as stack:
            for made in self.patches:
                for patch in made() if callable(made) else (made,):
                    stack.enter_context(patch.planted(self.name, broken))
            failure: BaseException | None = None
            try:
                self.history()
            except (AssertionError, pytest.fail.Exception, StreamhouseError, *BROKEN_PLANT) as error:
                failure = error
                broken += [cause for cause in _causes(error) if isinstance(cause, BROKEN_PLANT)]
        for cause in broken:
            if isinstance(cause, StalePlantError):
                raise cause
            raise WrongFailureError(f"planted bug {self.name!r} is broken: {cause!r}") from cause
        if failure is None:
            raise WrongFailureError(f"planted bug {self.name!r}: found no failure, expected {self.failure!r}")
        if not self._is_expected(failure):
            raise WrongFailureError(f"planted bug {self.name!r}: found {failure!r}, expected {self.failure!r}")

    def _is_expected(self, failure: BaseException) -> bool:
        pattern = re.compile(".*".join(map(re.escape, self.failure.split("..."))), re.DOTALL)
        if isinstance(failure, StreamhouseError):
            return pattern.match(f"{type(failure).__name__}: {failure}") is not None
        return pattern.search(str(failure)) is not None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
