"""Dataclasses with lazily generated methods.

`dataclasses.dataclass` compiles five or more methods per class definition. For the classes that a Spark Python worker
loads, of which it uses few, that was half of its start time. Here each method is generated on first access, and is a
plain function of the class from then on.

Everything else is as in `dataclasses`: fields, their order and defaults, `replace`, `fields`, `asdict`, pickling, and
the errors of frozen values. ``InitVar`` and ``KW_ONLY`` are not supported. Type checkers see the original. A mistake in
a class, such as a default before a field without one, is reported on first use of the class.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from reprlib import recursive_repr
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass, replace

__all__ = ["dataclass", "replace"]

_SIGNS: Final = {"__eq__": "==", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_ORDER: Final = ("__lt__", "__le__", "__gt__", "__ge__")
_KNOWN: Final = frozenset({"frozen", "slots", "eq", "order", "repr"})
_NO_FIELDS: Final = ("ClassVar", "typing.ClassVar")
_REFUSED: Final = ("InitVar", "dataclasses.InitVar", "KW_ONLY", "dataclasses.KW_ONLY")
_ANEW: Final = ("__dict__", "__weakref__")
"""Attributes that the copy of a class with slots gets separately."""


class _FactoryDefault:
    """The default of a parameter with a default factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FROM_FACTORY: Final = _FactoryDefault()


class _Class:
    """A decorated class and the contents of its body."""

    __slots__ = ("body", "fields", "frozen", "kind", "options")

    def __init__(self, kind: type, options: Mapping[str, bool]) -> None:
        """Raises `TypeError` for an unsupported field."""
        self.kind = kind
        self.body = dict(vars(kind))
        self.options = options
        self.frozen = self.requests("frozen")
        self.fields: list[str] = []
        for name, annotation in self.body.get("__annotations__", {}).items():
            text = str(annotation)
            if text.startswith(_REFUSED):
                raise TypeError(f"{kind.__qualname__}.{name} is {text}: use dataclasses.dataclass")
            if not text.startswith(_NO_FIELDS):
                self.fields.append(name)

    def requests(self, option: str) -> bool:
        return self.options.get(option, option in ("eq", "repr"))

    def keep_fields(self) -> None:
        """Release the rest of the body, which references the class that the one with slots replaced."""
        names = ("__module__", "__annotations__", *self.body.get("__annotations__", ()))
        self.body = {name: self.body[name] for name in names if name in self.body}


_Make = Callable[[_Class, str], Any]


class _Later:
    """A class attribute that generates its value on first access and replaces itself by it.

    Two threads may both generate the value, with the same result.
    """

    __slots__ = ("_class", "_make", "_name")

    def __init__(self, name: str, make: _Make, of: _Class) -> None:
        self._name = name
        self._make = make
        self._class = of

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._make(self._class, self._name)
        setattr(self._class.kind, self._name, method)
        return method.__get__(instance, owner) if isinstance(method, FunctionType) else method


def _decorator(kind: type | None = None, /, **options: bool) -> Any:
    if unknown := options.keys() - _KNOWN:
        raise TypeError(f"{', '.join(sorted(unknown))}: use dataclasses.dataclass")
    return _decorate(_Class(kind, options)) if kind is not None else lambda kind: _decorate(_Class(kind, options))


def _replace_fields(value: Any, /, **changes: Any) -> Any:
    """Return a copy with changed fields, as `dataclasses.replace` does but four times faster."""
    kind = type(value)
    return value.__replace__(**changes) if "__replace__" in vars(kind) else dataclasses.replace(value, **changes)


if not TYPE_CHECKING:
    dataclass = _decorator
    replace = _replace_fields


def _decorate(of: _Class) -> type:
    methods = {name: _Later(name, make, of) if make is not None else None for name, make in _method_makers(of).items()}
    if of.requests("slots"):
        _install_slots(of, methods)
    else:
        _install_methods(of, methods)
    of.keep_fields()
    return of.kind


def _install_methods(of: _Class, methods: Mapping[str, _Later | None]) -> None:
    for name in of.fields:
        if isinstance(default := of.body.get(name), dataclasses.Field):
            if default.default is dataclasses.MISSING:
                delattr(of.kind, name)
            else:
                setattr(of.kind, name, default.default)
    for name, value in methods.items():
        setattr(of.kind, name, value)
    abc.update_abstractmethods(of.kind)


def _method_makers(of: _Class) -> dict[str, _Make | None]:
    """Return name → generator for all methods. A method in the body is kept, or rejected with `TypeError`."""
    copying = _make_init_copy_method if "__init__" in of.body else _make_copy_method
    makers: dict[str, _Make | None] = {"__init__": _init, "__match_args__": _match_args, "__replace__": copying}
    if of.requests("repr"):
        makers["__repr__"] = _repr
    if of.requests("eq"):
        makers["__eq__"] = _make_eq_method
    makers = {name: make for name, make in makers.items() if name not in of.body}
    demanded: dict[str, _Make | None] = {}
    if of.requests("order"):
        demanded |= dict.fromkeys(_ORDER, _make_eq_method)
    if of.frozen:
        demanded |= {"__setattr__": _make_frozen_method, "__delattr__": _make_frozen_method}
    if conflicting := demanded.keys() & of.body.keys():
        raise TypeError(f"{of.kind.__qualname__} has {min(conflicting)} in its body and asks for it")
    if of.requests("eq") and (of.body.get("__hash__") is None and ("__hash__" not in of.body or "__eq__" in of.body)):
        demanded["__hash__"] = _hash if of.frozen else None  # Python sets it to None if the body has __eq__
    return {**makers, **demanded, "__dataclass_fields__": _fields, "__dataclass_params__": _params}


def _install_slots(of: _Class, methods: Mapping[str, _Later | None]) -> None:
    """Recreate the class with a slot for each field without a slot in a base."""
    first = of.kind
    if "__slots__" in of.body:
        raise TypeError(f"{first.__qualname__} has __slots__ in its body and asks for them")
    bases = [base for base in first.__mro__[-2:0:-1] if "__slots__" in vars(base) or _has_fields(base)]
    base_slots = {slot for base in bases for slot in _slots_of(base)}
    is_field_by_name: dict[str, bool] = {}  # False for a ClassVar that hides a field
    for base in filter(_has_fields, bases):
        real = {field.name for field in dataclasses.fields(base)}
        is_field_by_name |= {name: name in real for name in vars(base).get("__annotations__", {})}
    is_field_by_name |= {name: name in of.fields for name in of.body.get("__annotations__", {})}
    body = {name: value for name, value in of.body.items() if name not in of.fields and name not in _ANEW}
    if of.frozen:
        body = {"__getstate__": _state_of, "__setstate__": _restore_state} | body
    slots = tuple(name for name, is_field in is_field_by_name.items() if is_field and name not in base_slots)
    of.kind = type(first)(first.__name__, first.__bases__, {**body, **methods, "__slots__": slots})
    of.kind.__qualname__ = first.__qualname__


def _has_fields(kind: type) -> bool:
    return "__dataclass_fields__" in vars(kind)


def _slots_of(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def _state_of(value: Any) -> list[Any]:
    """Return the pickled state of a frozen value with slots."""
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def _restore_state(value: Any, state: Sequence[Any]) -> None:
    for field, field_value in zip(dataclasses.fields(value), state, strict=True):
        object.__setattr__(value, field.name, field_value)


# -- makers of attributes: each gets the class and the attribute's name ------------------------------------------------


def _fields(of: _Class, _: str) -> dict[str, dataclasses.Field[Any]]:
    """Return ``__dataclass_fields__``. `dataclasses` itself parses the annotations, of a class with nothing else."""
    bare = type(of.kind.__name__, (), {**of.body, "__doc__": "It has fields alone."})
    read: Any = dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)(bare)
    inherited: dict[str, dataclasses.Field[Any]] = {}
    for base in of.kind.__mro__[-1:0:-1]:
        inherited |= getattr(base, "__dataclass_fields__", {})
    return {**inherited, **read.__dataclass_fields__}


def _params(of: _Class, _: str) -> Any:
    """Return ``__dataclass_params__``, which `dataclasses` reads from base classes."""
    bare = type(of.kind.__name__, (), {"__doc__": "It has options alone."})
    decorate: Any = dataclasses.dataclass
    return decorate(**of.options)(bare).__dataclass_params__


def _match_args(of: _Class, _: str) -> tuple[str, ...]:
    return tuple(field.name for field in _all(of) if field.init and not field.kw_only)


def _init(of: _Class, name: str) -> FunctionType:
    fields = _all(of)
    scope: dict[str, Any] = {"_set": object.__setattr__, "_from_factory": _FROM_FACTORY}
    lines = [line for field in fields if (line := _store_line(of, field, scope)) is not None]
    if hasattr(of.kind, "__post_init__"):
        lines.append("self.__post_init__()")
    positional = [_parameter(field) for field in fields if field.init and not field.kw_only]
    named = [_parameter(field) for field in fields if field.init and field.kw_only]
    for before, parameter in pairwise(positional):
        if "=" in before and "=" not in parameter:
            raise TypeError(f"{of.kind.__qualname__}.{parameter} has no default, and the field before it has one")
    parameters = ["self", *positional, *(["*", *named] if named else [])]
    init = _compile_function(of, name, parameters, lines or ["pass"], scope)
    init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return init


def _parameter(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"{field.name}=_default_{field.name}"
    return field.name if field.default_factory is dataclasses.MISSING else f"{field.name}=_from_factory"


def _store_line(of: _Class, field: dataclasses.Field[Any], scope: dict[str, Any]) -> str | None:
    """Return the code line that stores a field, and add the names that it uses to ``scope``; None if none is needed."""
    name = value = field.name
    if field.default_factory is not dataclasses.MISSING:
        scope[f"_new_{name}"] = field.default_factory
        value = f"_new_{name}() if {name} is _from_factory else {name}" if field.init else f"_new_{name}()"
    elif field.default is not dataclasses.MISSING:
        scope[f"_default_{name}"] = field.default
        value = name if field.init else f"_default_{name}"
    if not field.init and (value == name or (field.default is not dataclasses.MISSING and not of.requests("slots"))):
        return None
    if not of.frozen:
        return f"self.{name} = {value}"
    slot = next((vars(base)[name] for base in of.kind.__mro__ if name in vars(base)), None)
    if isinstance(slot, MemberDescriptorType):  # takes two thirds of the time of object.__setattr__
        scope[f"_put_{name}"] = slot.__set__
        return f"_put_{name}(self, {value})"
    return f"_set(self, {name!r}, {value})"


def _make_copy_method(of: _Class, name: str) -> FunctionType:
    """Return the method for `replace`, and for `copy.replace` from Python 3.13 on.

    Classes that do more than store fields use the one of `dataclasses`.
    """
    fields, kind = _all(of), of.kind
    names = [field.name for field in fields]
    slots = {name: next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None) for name in names}
    has_slots = {isinstance(slot, MemberDescriptorType) for slot in slots.values()}
    is_plain = len(has_slots) == 1 and all(field.init for field in fields) and not hasattr(kind, "__post_init__")
    if not is_plain:
        return _make_init_copy_method(of, name)
    scope: dict[str, Any] = {"_names": frozenset(names), "_replace": dataclasses.replace, "_kind": kind}
    lines = ["if self.__class__ is not _kind or not changes.keys() <= _names:", "    return _replace(self, **changes)"]
    lines.append("made = _new(_kind)")
    scope["_new"] = kind.__new__
    if has_slots == {True}:
        scope["_puts"] = {name: slot.__set__ for name, slot in slots.items() if slot is not None}
        scope |= {f"_put_{name}": put for name, put in scope["_puts"].items()}
        lines += [f"_put_{name}(made, self.{name})" for name in names]
        lines.append("for name in changes: _puts[name](made, changes[name])")
    else:
        lines.append(f"made.__dict__.update({', '.join(f'{name}=self.{name}' for name in names)})")
        lines.append("made.__dict__.update(changes)")
    return _compile_function(of, name, ["self", "/", "**changes"], [*lines, "return made"], scope)


def _make_init_copy_method(of: _Class, name: str) -> FunctionType:
    """Return that method for a class with its own ``__init__``."""
    scope: dict[str, Any] = {"_replace": dataclasses.replace}
    return _compile_function(of, name, ["self", "/", "**changes"], ["return _replace(self, **changes)"], scope)


def _repr(of: _Class, _: str) -> Callable[[Any], str]:
    names = [field.name for field in _all(of) if field.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:  # noqa: N807 - becomes the method
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({inner})"

    return __repr__


def _make_eq_method(of: _Class, name: str) -> FunctionType:
    names = [field.name for field in _all(of) if field.compare]
    compared = f"return {_tuple('self', names)} {_SIGNS[name]} {_tuple('other', names)}"
    lines = ["if other.__class__ is self.__class__:", f"    {compared}", "return NotImplemented"]
    return _compile_function(of, name, ["self", "other"], lines, {})


def _hash(of: _Class, name: str) -> FunctionType:
    names = [field.name for field in _all(of) if (field.compare if field.hash is None else field.hash)]
    return _compile_function(of, name, ["self"], [f"return hash({_tuple('self', names)})"], {})


def _make_frozen_method(of: _Class, name: str) -> Callable[..., None]:
    """Return the method that rejects assignment or deletion. Subclasses may have their own attributes."""
    kind, names = of.kind, {field.name for field in _all(of)}
    doing = "assign to" if name == "__setattr__" else "delete"

    def refuse(self: Any, attribute: str, *value: Any) -> None:
        if type(self) is kind or attribute in names:
            raise dataclasses.FrozenInstanceError(f"cannot {doing} field {attribute!r}")
        getattr(super(kind, self), name)(attribute, *value)

    return refuse


def _all(of: _Class) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(of.kind)


def _tuple(owner: str, names: Iterable[str]) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"


def _compile_function(
    of: _Class, name: str, parameters: list[str], lines: list[str], scope: dict[str, Any]
) -> FunctionType:
    """Compile a function text, which consists of field names only."""
    body = "".join(f"    {line}\n" for line in lines)
    scope["__name__"] = of.kind.__module__
    exec(f"def {name}({', '.join(parameters)}):\n{body}", scope)  # noqa: S102 - as dataclasses does it
    function: FunctionType = scope[name]
    function.__qualname__ = f"{of.kind.__qualname__}.{name}"
    return function
