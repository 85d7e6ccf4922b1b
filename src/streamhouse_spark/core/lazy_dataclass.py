"""Dataclasses with lazily generated methods.

`dataclasses.dataclass` compiles five or more methods per class definition. A Spark Python worker loads many classes and
uses few of them, and the compilation took half of its start time. Here each method of a frozen class with slots is
generated on first access, and then becomes a plain function of the class. `dataclasses` creates all other classes.

Everything else equals `dataclasses`: fields, their order and defaults, `replace`, `fields`, `asdict`, pickling, and the
errors of frozen values. ``InitVar`` and ``KW_ONLY`` are not supported. Type checkers use the original. A mistake in a
class, such as a field without a default after a field with one, is reported on the first use of the class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from reprlib import recursive_repr
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass, replace

__all__ = ["dataclass", "replace"]

_SIGNS: Final = {"__eq__": "==", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_ORDER: Final = ("__lt__", "__le__", "__gt__", "__ge__")
_FROZEN: Final = ("__setattr__", "__delattr__")
_NO_FIELDS: Final = ("ClassVar", "typing.ClassVar")
_REFUSED: Final = ("InitVar", "dataclasses.InitVar", "KW_ONLY", "dataclasses.KW_ONLY")
_RECREATED: Final = ("__dict__", "__weakref__")
"""Attributes that Python creates for each class."""


class _FactoryDefault:
    """The default of a parameter with a default factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FROM_FACTORY: Final = _FactoryDefault()


class _DecoratedClass:
    """A decorated class, and the annotations and defaults of its fields."""

    __slots__ = ("body", "kind", "options")

    def __init__(self, kind: type, body: dict[str, Any], options: dict[str, bool]) -> None:
        self.kind = kind
        self.body = body
        self.options = options


_Make = Callable[[_DecoratedClass, str], Any]


class _LazyAttribute:
    """A class attribute that generates its value on first access and replaces itself by the value.

    Two threads may both generate the value, with equal results.
    """

    __slots__ = ("_class", "_make", "_name")

    def __init__(self, name: str, make: _Make, of: _DecoratedClass) -> None:
        self._name = name
        self._make = make
        self._class = of

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._make(self._class, self._name)
        setattr(self._class.kind, self._name, method)
        return method.__get__(instance, owner) if isinstance(method, FunctionType) else method


def _decorator(kind: type | None = None, /, *, frozen: bool = False, slots: bool = False, **options: bool) -> Any:
    def decorate(kind: type) -> type:
        if frozen and slots:
            return _decorate(kind, **options)
        plain: Any = dataclasses.dataclass
        decorated: type = plain(frozen=frozen, slots=slots, **options)(kind)
        return decorated

    return decorate if kind is None else decorate(kind)


def _replace_fields(value: Any, /, **changes: Any) -> Any:
    """Return a copy with changed fields, four times faster than `dataclasses.replace`."""
    kind = type(value)
    return value.__replace__(**changes) if "__replace__" in vars(kind) else dataclasses.replace(value, **changes)


if not TYPE_CHECKING:
    dataclass = _decorator
    replace = _replace_fields


def _decorate(first: type, *, eq: bool = True, order: bool = False, repr: bool = True) -> type:  # noqa: A002
    """Recreate the class with slots for its fields and with lazily generated methods."""
    body, annotations = dict(vars(first)), vars(first).get("__annotations__", {})
    own = [name for name, annotation in annotations.items() if not str(annotation).startswith(_NO_FIELDS)]
    for name in own:
        if str(annotations[name]).startswith(_REFUSED):
            raise TypeError(f"{first.__qualname__}.{name} is {annotations[name]}: use dataclasses.dataclass")
    demanded = ("__slots__", *_FROZEN, *(_ORDER if order else ()))
    if conflicting := [name for name in demanded if name in body]:
        raise TypeError(f"{first.__qualname__} defines {conflicting[0]}, which the decorator would also define")
    fields_body = {name: body[name] for name in ("__module__", "__annotations__", *annotations) if name in body}
    of = _DecoratedClass(first, fields_body, {"frozen": True, "slots": True, "eq": eq, "order": order, "repr": repr})
    makers: dict[str, _Make] = {
        "__init__": _init,
        "__match_args__": _match_args,
        "__replace__": _make_init_copy_method if "__init__" in body else _make_copy_method,
        **({"__repr__": _repr} if repr else {}),
        **({"__eq__": _make_eq_method} if eq else {}),
    }
    makers = {name: make for name, make in makers.items() if name not in body}
    makers |= dict.fromkeys(_ORDER if order else (), _make_eq_method) | dict.fromkeys(_FROZEN, _make_frozen_method)
    if eq and body.get("__hash__") is None and ("__hash__" not in body or "__eq__" in body):
        makers["__hash__"] = _hash  # Python sets __hash__ to None if the body has __eq__
    makers |= {"__dataclass_fields__": _fields, "__dataclass_params__": _params}
    body = {name: value for name, value in body.items() if name not in own and name not in _RECREATED}
    methods = {name: _LazyAttribute(name, make, of) for name, make in makers.items()}
    new_body = {"__getstate__": _state_of, "__setstate__": _restore_state, **body, **methods}
    of.kind = type(first)(first.__name__, first.__bases__, {**new_body, "__slots__": _new_slots(first, own)})
    of.kind.__qualname__ = first.__qualname__
    return of.kind


def _new_slots(first: type, own: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the fields for which no base class has a slot."""
    bases = [base for base in first.__mro__[-2:0:-1] if "__slots__" in vars(base) or _has_fields(base)]
    base_slots: set[str] = set()
    is_field_by_name: dict[str, bool] = {}  # False for a ClassVar that hides a field
    for base in bases:
        slots = vars(base).get("__slots__", ())
        base_slots.update((slots,) if isinstance(slots, str) else slots)
        if _has_fields(base):
            real = {field.name for field in dataclasses.fields(base)}
            is_field_by_name |= {name: name in real for name in vars(base).get("__annotations__", {})}
    is_field_by_name |= {name: name in own for name in vars(first).get("__annotations__", {})}
    return tuple(name for name, is_field in is_field_by_name.items() if is_field and name not in base_slots)


def _has_fields(kind: type) -> bool:
    return "__dataclass_fields__" in vars(kind)


def _state_of(value: Any) -> list[Any]:
    """Return the pickled state of a value."""
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def _restore_state(value: Any, state: Sequence[Any]) -> None:
    for field, field_value in zip(dataclasses.fields(value), state, strict=True):
        object.__setattr__(value, field.name, field_value)


# -- makers of attributes: each gets the class and the attribute's name ------------------------------------------------


def _fields(of: _DecoratedClass, _: str) -> dict[str, dataclasses.Field[Any]]:
    """Return ``__dataclass_fields__``. `dataclasses` parses the annotations in an otherwise empty class."""
    bare = type(of.kind.__name__, (), {**of.body, "__doc__": "It has fields alone."})
    read: Any = dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)(bare)
    inherited: dict[str, dataclasses.Field[Any]] = {}
    for base in of.kind.__mro__[-1:0:-1]:
        inherited |= getattr(base, "__dataclass_fields__", {})
    return {**inherited, **read.__dataclass_fields__}


def _params(of: _DecoratedClass, _: str) -> Any:
    """Return ``__dataclass_params__``, which `dataclasses` reads from base classes."""
    bare = type(of.kind.__name__, (), {"__doc__": "It has options alone."})
    decorate: Any = dataclasses.dataclass
    return decorate(**of.options)(bare).__dataclass_params__


def _match_args(of: _DecoratedClass, _: str) -> tuple[str, ...]:
    return tuple(field.name for field in _all(of) if field.init and not field.kw_only)


def _init(of: _DecoratedClass, name: str) -> FunctionType:
    fields = _all(of)
    scope: dict[str, Any] = {"_set": object.__setattr__, "_from_factory": _FROM_FACTORY}
    lines = [line for field in fields if (line := _store_line(of, field, scope)) is not None]
    if hasattr(of.kind, "__post_init__"):
        lines.append("self.__post_init__()")
    positional = [_parameter(field) for field in fields if field.init and not field.kw_only]
    named = [_parameter(field) for field in fields if field.init and field.kw_only]
    for before, parameter in pairwise(positional):
        if "=" in before and "=" not in parameter:
            raise TypeError(f"{of.kind.__qualname__}.{parameter} has no default, but the field before it has a default")
    parameters = ["self", *positional, *(["*", *named] if named else [])]
    init = _compile_function(of, name, parameters, lines or ["pass"], scope)
    init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return init


def _parameter(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"{field.name}=_default_{field.name}"
    return field.name if field.default_factory is dataclasses.MISSING else f"{field.name}=_from_factory"


def _store_line(of: _DecoratedClass, field: dataclasses.Field[Any], scope: dict[str, Any]) -> str | None:
    """Return the code line that stores a field, if any. Adds the names that the line uses to ``scope``."""
    name = value = field.name
    if field.default_factory is not dataclasses.MISSING:
        scope[f"_new_{name}"] = field.default_factory
        value = f"_new_{name}() if {name} is _from_factory else {name}" if field.init else f"_new_{name}()"
    elif field.default is not dataclasses.MISSING:
        scope[f"_default_{name}"] = field.default
        value = name if field.init else f"_default_{name}"
    if not field.init and value == name:
        return None
    slot = _attribute(of.kind, name)
    if isinstance(slot, MemberDescriptorType):  # faster by a third than object.__setattr__
        scope[f"_put_{name}"] = slot.__set__
        return f"_put_{name}(self, {value})"
    return f"_set(self, {name!r}, {value})"


def _attribute(kind: type, name: str) -> Any:
    """Return an attribute from the body of the class or a base class, or None."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _make_copy_method(of: _DecoratedClass, name: str) -> FunctionType:
    """Return the method for `replace`, and for `copy.replace` of Python 3.13 and later.

    Classes whose ``__init__`` does more than store fields in slots use `dataclasses.replace`.
    """
    fields, kind = _all(of), of.kind
    slots = {field.name: _attribute(kind, field.name) for field in fields}
    is_plain = all(isinstance(slot, MemberDescriptorType) for slot in slots.values())
    if not is_plain or hasattr(kind, "__post_init__") or not all(field.init for field in fields):
        return _make_init_copy_method(of, name)
    puts = {name: slot.__set__ for name, slot in slots.items()}
    scope: dict[str, Any] = {"_replace": dataclasses.replace, "_kind": kind, "_new": kind.__new__, "_puts": puts}
    scope |= {f"_put_{name}": put for name, put in puts.items()}
    lines = [
        "if self.__class__ is not _kind or not changes.keys() <= _puts.keys():",
        "    return _replace(self, **changes)",
        "made = _new(_kind)",
        *(f"_put_{name}(made, self.{name})" for name in slots),
        "for name in changes: _puts[name](made, changes[name])",
        "return made",
    ]
    return _compile_function(of, name, ["self", "/", "**changes"], lines, scope)


def _make_init_copy_method(of: _DecoratedClass, name: str) -> FunctionType:
    """Return the method for a class whose ``__init__`` must be called."""
    scope: dict[str, Any] = {"_replace": dataclasses.replace}
    return _compile_function(of, name, ["self", "/", "**changes"], ["return _replace(self, **changes)"], scope)


def _repr(of: _DecoratedClass, _: str) -> Callable[[Any], str]:
    names = [field.name for field in _all(of) if field.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:  # noqa: N807 - becomes the method
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({inner})"

    return __repr__


def _make_eq_method(of: _DecoratedClass, name: str) -> FunctionType:
    names = [field.name for field in _all(of) if field.compare]
    compared = f"return {_tuple('self', names)} {_SIGNS[name]} {_tuple('other', names)}"
    lines = ["if other.__class__ is self.__class__:", f"    {compared}", "return NotImplemented"]
    return _compile_function(of, name, ["self", "other"], lines, {})


def _hash(of: _DecoratedClass, name: str) -> FunctionType:
    names = [field.name for field in _all(of) if (field.compare if field.hash is None else field.hash)]
    return _compile_function(of, name, ["self"], [f"return hash({_tuple('self', names)})"], {})


def _make_frozen_method(of: _DecoratedClass, name: str) -> Callable[..., None]:
    """Return the method that rejects assignment or deletion of fields. Subclasses may have other attributes."""
    kind, names = of.kind, {field.name for field in _all(of)}
    doing = "assign to" if name == "__setattr__" else "delete"

    def refuse(self: Any, attribute: str, *value: Any) -> None:
        if type(self) is kind or attribute in names:
            raise dataclasses.FrozenInstanceError(f"cannot {doing} field {attribute!r}")
        getattr(super(kind, self), name)(attribute, *value)

    return refuse


def _all(of: _DecoratedClass) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(of.kind)


def _tuple(owner: str, names: Iterable[str]) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"


def _compile_function(
    of: _DecoratedClass, name: str, parameters: list[str], lines: list[str], scope: dict[str, Any]
) -> FunctionType:
    """Compile a function text, which consists of field names only."""
    body = "".join(f"    {line}\n" for line in lines)
    scope["__name__"] = of.kind.__module__
    exec(f"def {name}({', '.join(parameters)}):\n{body}", scope)  # noqa: S102 - dataclasses does this too
    function: FunctionType = scope[name]
    function.__qualname__ = f"{of.kind.__qualname__}.{name}"
    return function
