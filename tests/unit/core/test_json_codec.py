"""Values travel as their fields say, and what comes back is what was sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

from streamhouse_spark import OffsetRange
from streamhouse_spark.core.json_codec import JsonSerializable
from streamhouse_spark.schema.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class Part:
    """Not portable by itself: it travels inside another."""

    name: str
    size: float = 0.5


@dataclass(frozen=True, slots=True)
class Cargo(JsonSerializable):
    id: int
    is_full: bool
    seal: bytes
    offsets: OffsetRange
    schema: TableSchema
    """Has a codec of its own."""
    raw: Mapping[str, Any]
    parts: tuple[Part, ...] = ()
    pair: tuple[int, str] | None = None
    keys: tuple[bytes | None, ...] = ()
    names: tuple[tuple[int, str], ...] = ()
    bounds: Mapping[str, Mapping[int, int | bytes]] = field(default_factory=dict)
    inner: Part | None = None
    freight: Crate | Barrel | None = None


@dataclass(frozen=True, slots=True)
class Crate(JsonSerializable):
    cargo: Cargo


@dataclass(frozen=True, slots=True)
class Barrel(JsonSerializable):
    litres: int


@dataclass(frozen=True)
class NotPortable(JsonSerializable):
    value: set[int]


SCHEMA = TableSchema.of("id BIGINT NOT NULL, name STRING")
PLAIN = Cargo(1, False, b"\0\xff", OffsetRange(3, 9), SCHEMA, {"a": [1, {"b": None}]})
FULL = Cargo(
    2,
    True,
    b"",
    OffsetRange(0, 0),
    SCHEMA,
    MappingProxyType({}),
    (Part("x"), Part("y", 2.5)),
    (7, "seven"),
    (b"key", None, b""),
    ((1, "a"), (2, "b")),
    {"lower": {1: b"low"}, "nulls": {1: 0, -2: 12}},
    Part("inner"),
    Crate(replace(PLAIN, freight=Barrel(3))),
)


@pytest.mark.parametrize("cargo", [PLAIN, FULL], ids=["plain", "full"])
def test_a_value_comes_back_as_it_was_sent(cargo):
    assert Cargo.from_json(cargo.to_json()) == cargo
    arrived = Cargo.from_json(json.loads(json.dumps(cargo.to_json())))
    assert arrived == cargo
    assert [type(value) for value in (arrived.parts, arrived.keys, arrived.names)] == [tuple] * 3


def test_fields_that_have_their_default_do_not_travel():
    assert set(PLAIN.to_json()) == {"id", "is_full", "seal", "offsets", "schema", "raw", "bounds"}
    assert FULL.to_json()["inner"] == {"name": "inner"}


def test_a_value_of_one_of_several_classes_travels_with_the_name_of_its_class():
    name, crate = FULL.to_json()["freight"]
    assert (name, crate["cargo"]["freight"]) == ("Crate", ["Barrel", {"litres": 3}])


def test_a_type_that_cannot_travel_is_said():
    with pytest.raises(TypeError, match="is not supported"):
        NotPortable({1}).to_json()
