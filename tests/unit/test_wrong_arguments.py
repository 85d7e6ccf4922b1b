"""Every public method with every kind of wrong argument: a typed error on one line, and nothing is written."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from streamhouse_spark import ErrorKind, InvalidNameError, InvalidOptionError, StreamhouseError, Table
from streamhouse_spark.core.argument_validation import validate_arguments
from streamhouse_spark.core.option_parsing import looks_like_secret
from unit.public_surface import CALLS, INTERNAL, VIEWS, Call, World, calls, parameters_of, surface
from unit.wrong_values import WRONG

RIGHT = {"bool": (bool, np.bool_), "int": (int, np.integer), "float": (int, float), "str": (str,)}
"""What a parameter with this annotation takes. None counts where the annotation says so."""
TEXT_CHARS_MAX = 3_000
VALUES = {"OffsetRange", "BucketOffsets", "Transaction"}
SURFACE = dict(surface())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield World()


def test_every_public_method_is_known_here():
    views = {f"{name}.to_arrow" for name in VIEWS}
    assert SURFACE.keys() - INTERNAL.keys() == CALLS.keys() - views, "give a new method a call that is right"
    assert not INTERNAL.keys() - SURFACE.keys()
    for name, call in calls():
        if name not in views:
            unknown = set(parameters_of(SURFACE[name])) ^ set(call.arguments)
            assert not unknown or isinstance(CALLS[name], list), f"{name}: {unknown}"


@pytest.mark.parametrize(("name", "call"), list(calls()), ids=lambda found: found if isinstance(found, str) else "")
def test_a_call_that_is_right(world, name, call):
    try:
        if call.refused is None:
            call.make(world)
        else:
            with pytest.raises(call.refused):
                call.make(world)
    finally:
        world.restore()


@pytest.mark.parametrize(("name", "call"), list(calls()), ids=lambda found: found if isinstance(found, str) else "")
def test_wrong_arguments_fail_in_one_line_and_write_nothing(world, name, call):
    wrong = {f"{parameter} = {label}": (parameter, label) for parameter in call.arguments for label in WRONG}
    assert {case: found for case, at in wrong.items() if (found := _wrong(world, name, call, *at)) is not None} == {}


def _wrong(world: World, name: str, call: Call, parameter: str, label: str) -> str | None:
    """How a call with this value breaks the promise; None where it keeps it."""
    value = WRONG[label]
    try:
        call.make(world, **{parameter: value})
    except StreamhouseError as error:
        text = str(error)
        if world.is_changed():
            return f"changed the warehouse: {text}"
        if "\n" in text or len(text) > TEXT_CHARS_MAX or not text.startswith(f"{error.condition}: "):
            return f"text of {len(text)} characters: {text[:200]!r}"
        text.encode()
        return None if error.kind is ErrorKind.INVALID else f"{error.kind}: {text}"
    except Exception as error:  # noqa: BLE001 - the promise is that there is no other
        return f"{type(error).__name__}: {str(error)[:200]}"
    else:
        return None if _may_be(name, parameter, value) else f"taken for {parameter}"
    finally:
        if world.is_changed():
            world.restore()


def _may_be(name: str, parameter: str, value: object) -> bool:
    """Whether a value that a method took is of the kind that its annotation says."""
    if name not in SURFACE or name in VALUES:
        return True
    said = str(inspect.signature(SURFACE[name]).parameters[parameter].annotation)
    kinds = RIGHT.get(said.removesuffix(" | None"))
    if kinds is None or (value is None and said.endswith(" | None")):
        return True
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def test_a_method_that_forgets_the_check_is_found(world, monkeypatch):
    """A mistake that is planted: without what `validates_arguments` puts around it, a flag may be any text."""
    call = next(call for name, call in calls() if name == "Table.maintain")
    assert _wrong(world, "Table.maintain", call, "dry_run", "word") is None
    monkeypatch.setattr(Table, "maintain", inspect.unwrap(Table.maintain))
    assert _wrong(world, "Table.maintain", call, "dry_run", "word") == "taken for dry_run"
    monkeypatch.setattr(Table, "lookup", inspect.unwrap(Table.lookup))
    call = next(call for name, call in calls() if name == "Table.lookup")
    assert "AttributeError" in str(_wrong(world, "Table.lookup", call, "at_least", "one"))


def test_arguments_are_checked_by_their_annotations():
    def method(flag: bool = False, count: int | None = None, wait_ms: float = 1, *names: str, table: str = "t") -> str:
        return f"{flag} {count} {wait_ms} {names} {table}"

    call = validate_arguments(method, names=["table"])
    assert call(True, None, 0.5, "a", "b", table="x") == "True None 0.5 ('a', 'b') x"
    for given, named in (
        ((1,), {}),
        (("false",), {}),
        ((), {"count": True}),
        ((), {"count": 2**63}),
        ((), {"wait_ms": float("nan")}),
        ((), {"wait_ms": -1}),
        ((), {"wait_ms": 10**5000}),
        ((True, 1, 1, "a", 5), {}),
    ):
        with pytest.raises(InvalidOptionError, match="expected"):
            call(*given, **named)
    with pytest.raises(InvalidNameError):
        call(table=5)
    with pytest.raises(TypeError, match="unexpected keyword"):
        call(unknown=1)


def test_a_long_text_is_looked_at_once():
    """A search that begins anew at each character needs hours for this text, and the timeout of a test ends it."""
    assert not looks_like_secret("comment", "x" * 3_000_000)
    assert looks_like_secret("comment", "x" * 3_000_000 + "://me:word@host")
