"""JSON codec for values that processes of one version exchange, driven by the types of their fields.

It must not be used for stored values, because renaming a field changes the JSON. Each stored format has a separate
codec.

A field may be a number, a text, bytes, a dataclass, an optional value of these types, a tuple of these, or a mapping
from numbers or texts to these. Fields of type ``Any`` must be valid JSON. The methods ``to_json`` and ``from_json`` of
a class take precedence. A value of one of several classes becomes a pair of the class's name and the value. Fields that
have their default are omitted.
"""

from __future__ import annotations

import base64
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Self, Union


class _Codec(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class JsonSerializable:
    """Base class of the dataclasses that processes exchange."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        kind: Any = type(self)
        out: dict[str, Any] = _codec_of(kind).encode(self)
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Decode the result of `to_json`."""
        kind: Any = cls
        decoded: Self = _codec_of(kind).decode(value)
        return decoded


def _same(value: Any) -> Any:
    return value


_AS_IS = _Codec(_same, _same)
_BYTES = _Codec(lambda value: base64.b64encode(value).decode(), base64.b64decode)
_BYTES_OR_NUMBER = _Codec(
    lambda value: _BYTES.encode(value) if isinstance(value, bytes) else value,
    lambda value: _BYTES.decode(value) if isinstance(value, str) else value,
)


@cache
def _codec_of(kind: Any) -> _Codec:
    """Return the codec of a type. Raises `TypeError` for an unsupported type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (int, str, bool, float, Any):
        return _AS_IS
    if kind is bytes:
        return _BYTES
    if origin in (Union, UnionType):
        return _union(frozenset(arguments))
    if origin is tuple:
        return _tuple(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*arguments)
    if hasattr(kind, "from_json") and not issubclass(kind, JsonSerializable):
        return _Codec(kind.to_json, kind.from_json)
    if is_dataclass(kind):
        return _dataclass(kind)
    raise TypeError(f"{kind} is not supported: see streamhouse_spark.core.json_codec")


def _union(kinds: frozenset[Any]) -> _Codec:
    if kinds == {int, bytes}:
        return _BYTES_OR_NUMBER
    classes = kinds - {NoneType}
    inner = _codec_of(*classes) if len(classes) == 1 else _tagged(classes)
    if inner is _AS_IS or NoneType not in kinds:
        return inner
    return _Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda value: None if value is None else inner.decode(value),
    )


def _tagged(classes: frozenset[Any]) -> _Codec:
    codecs = {kind.__name__: _codec_of(kind) for kind in classes}

    def encode(value: Any) -> Any:
        name = type(value).__name__
        return [name, codecs[name].encode(value)]

    return _Codec(encode, lambda value: codecs[value[0]].decode(value[1]))


def _tuple(kinds: tuple[Any, ...]) -> _Codec:
    if kinds[-1] is Ellipsis:
        inner = _codec_of(kinds[0])
        if inner is _AS_IS:
            return _Codec(list, tuple)
        return _Codec(
            lambda value: [inner.encode(item) for item in value],
            lambda value: tuple([inner.decode(item) for item in value]),
        )
    inners = [_codec_of(kind) for kind in kinds]
    return _Codec(
        lambda value: [inner.encode(item) for inner, item in zip(inners, value, strict=True)],
        lambda value: tuple([inner.decode(item) for inner, item in zip(inners, value, strict=True)]),
    )


def _mapping(key: Any, kind: Any) -> _Codec:
    inner = _codec_of(kind)
    return _Codec(
        lambda value: {str(k): inner.encode(v) for k, v in value.items()},
        lambda value: {key(k): inner.decode(v) for k, v in value.items()},
    )


def _dataclass(kind: Any) -> _Codec:
    @cache
    def codecs() -> list[tuple[str, Any, _Codec]]:  # lazily, because a field may have this class as its type
        kinds = typing.get_type_hints(kind)
        return [(f.name, f.default, _codec_of(kinds[f.name])) for f in fields(kind)]

    @cache
    def decoders() -> dict[str, Callable[[Any], Any]]:
        return {name: codec.decode for name, _, codec in codecs()}

    def encode(value: Any) -> dict[str, Any]:
        out = {}
        for name, default, codec in codecs():
            field_value = getattr(value, name)
            if field_value is not default or default is MISSING:
                out[name] = field_value if codec is _AS_IS else codec.encode(field_value)
        return out

    def decode(value: Any) -> Any:
        decoder_of = decoders()
        return kind(**{name: decoder_of[name](field_value) for name, field_value in value.items()})

    return _Codec(encode, decode)
