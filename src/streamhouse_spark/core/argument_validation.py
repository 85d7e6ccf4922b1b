"""Argument validation of public methods, by the annotations of their parameters.

This module checks general kinds of arguments: flags, integers, durations, texts, lists of texts and mappings. The
methods check the rest, such as whether a column exists.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from streamhouse_spark.core.types import is_unicode
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, StreamhouseError, quote

_Type = TypeVar("_Type", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Check = Callable[[str, object], None]
_INT64_MAX = 2**63 - 1
_WAIT_MS_MAX = 10**12
"""Thirty years. System calls do not support much longer waits."""


def validates_arguments(*, names: Collection[str] = (), unless: Collection[str] = ()) -> Callable[[_Type], _Type]:
    """Decorate the public methods of a class, without inherited methods, with `validate_arguments`.

    ``names`` are parameters with the name of a database or table. Methods in ``unless`` validate their arguments
    themselves, because their calls take only microseconds.
    """

    def wrapped(kind: _Type) -> _Type:
        for name, method in vars(kind).copy().items():
            if inspect.isfunction(method) and not name.startswith("_") and name not in unless:
                setattr(kind, name, validate_arguments(method, names=names))
        return kind

    return wrapped


def validate_arguments(function: _Function, *, names: Collection[str] = ()) -> _Function:
    """Wrap a function so that an argument of the wrong kind raises an error before the function starts.

    Raises `InvalidNameError` for parameters in ``names``, `InvalidOptionError` for other parameters. None is accepted
    if the annotation includes it.
    """
    parameters = inspect.signature(function).parameters.values()
    checks = {p.name: check for p in parameters if (check := _find_check(p, names)) is not None}
    if not checks:
        return function
    places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    star = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        for name, value in (*zip(places, args, strict=False), *named.items()):
            check = checks.get(name)
            if check is not None:
                check(name, value)
        if star in checks:
            for value in args[len(places) :]:
                checks[star](star, value)
        return function(*args, **named)

    return call  # type: ignore[return-value]


def require_part(name: str, value: object, expected: str, attribute: str) -> None:
    """Raise `InvalidOptionError` for a value without ``attribute``.

    Checks classes of optional packages, which may not be installed, without importing them.
    """
    if isinstance(value, type) or not hasattr(value, attribute):
        _refuse(name, value, expected)


def require_texts(name: str, texts: Mapping[Any, Any] | None) -> None:
    """Raise `InvalidOptionError` for a mapping that is not text to text. The error text contains no value."""
    for key, value in (texts or {}).items():
        if not isinstance(key, str) or not is_unicode(key):
            _refuse(f"a key of {name}", key, "a text")
        if not isinstance(value, str) or not is_unicode(value):
            raise InvalidOptionError(f"{name}[{quote(key)}] is a {type(value).__name__}, expected a text")


def _find_check(parameter: inspect.Parameter, names: Collection[str]) -> _Check | None:
    annotation = str(parameter.annotation)
    kind = annotation.removesuffix(" | None")
    if parameter.name in names:
        check: _Check | None = _name
    elif kind.startswith(("Sequence[str]", "Mapping[")):
        check = _require_container if kind.startswith("Sequence") else _require_mapping
    elif kind.startswith("Literal["):
        check = _require_text  # the function itself distinguishes the values
    else:
        check = {
            "bool": _require_bool,
            "int": _require_integer,
            "float": _wait,
            "str": _require_text,
            "Any": _require_any,
        }.get(kind)
    if check is None or kind in {annotation, "Any"}:
        return check
    required = check
    return lambda name, value: None if value is None else required(name, value)


def _require_bool(name: str, value: object) -> None:
    if type(value) is not bool and not _is_of_numpy(value, "bool_"):
        _refuse(name, value, "True or False")


def _is_of_numpy(value: object, kind: str) -> bool:
    """Return whether a value is of NumPy's type ``kind``, without importing NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, kind, ()))


def _require_integer(name: str, value: object) -> None:
    is_whole = type(value) is int or _is_of_numpy(value, "integer")
    if not is_whole or not -_INT64_MAX <= int(value) <= _INT64_MAX:  # type: ignore[call-overload]
        unit = "milliseconds as a " if name.endswith("_ms") else "a "
        _refuse(name, value, f"{unit}whole number of at most 64 bits")


def _wait(name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(_to_float(value)) or not 0 <= value <= _WAIT_MS_MAX:  # type: ignore[operator]
        _refuse(name, value, f"milliseconds, from 0 to {_WAIT_MS_MAX}")


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not is_unicode(value):
        _refuse(name, value, "a text")


def _name(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        _refuse(name, value, "a name such as 'sales.orders'", InvalidNameError)


def _require_container(name: str, value: object) -> None:
    """Require a container. Its elements are validated later, against the table's columns or properties."""
    if not hasattr(value, "__iter__") or isinstance(value, str | bytes | type) or getattr(value, "ndim", 1) == 0:
        _refuse(name, value, "a list of names")


def _require_mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        _refuse(name, value, "a mapping")
        return
    for item in (*value.keys(), *value.values()):
        _require_any(name, item)


def _require_any(name: str, value: object) -> None:
    if type(value) is int and value.bit_length() > _BITS_MAX:
        _refuse(name, value, f"a number of at most {_BITS_MAX} bits")


_BITS_MAX = 1024
"""Larger numbers fit into no column, and Python does not print much larger numbers."""


def _to_float(value: object) -> float:
    return math.inf if isinstance(value, int) and value.bit_length() > _BITS_MAX // 2 else float(value)  # type: ignore[arg-type]


def _refuse(name: str, value: object, expected: str, kind: type[StreamhouseError] = InvalidOptionError) -> None:
    raise kind(f"{name} is {quote(value)}, expected {expected}")
