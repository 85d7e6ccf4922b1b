from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Hashable
from dataclasses import FrozenInstanceError, field
from types import FunctionType
from typing import ClassVar, Generic, Protocol, TypeVar

import pytest

from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass, replace

T = TypeVar("T")
FROZEN_SLOTS = {"frozen": True, "slots": True}


@dataclass(frozen=True, slots=True)
class Place:
    """A value of a module, as pickles need one."""

    LIMIT: ClassVar[int] = 7
    row: int
    names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list, compare=False, repr=False)


def fresh() -> type:
    @dataclass(frozen=True, slots=True, order=True)
    class Fresh:
        number: int
        text: str = "a"

    return Fresh


def made(kind: type) -> set[str]:
    """Return the methods of a class that are functions by now."""
    return {name for name, value in vars(kind).items() if isinstance(value, FunctionType)} - {
        "__getstate__",
        "__setstate__",
    }


def test_a_method_is_made_when_it_is_first_used_and_is_a_function_from_then_on():
    kind = fresh()
    assert made(kind) == set()
    value = kind(1)
    assert made(kind) == {"__init__"}
    assert value == kind(1, "a")
    assert made(kind) == {"__init__", "__eq__"}
    assert len({value, kind(1), kind(2)}) == 2
    assert (repr(value), value < kind(2)) == ("fresh.<locals>.Fresh(number=1, text='a')", True)
    assert made(kind) == {"__init__", "__eq__", "__hash__", "__repr__", "__lt__"}


def test_a_signature_is_that_of_the_fields_before_the_first_use_too():
    assert str(inspect.signature(fresh())) == "(number: 'int', text: 'str' = 'a') -> None"
    assert str(inspect.signature(Place)).endswith("notes: 'list[str]' = <factory>) -> None")


def test_many_threads_may_be_the_first():
    kinds = [fresh() for _ in range(50)]
    found: list[object] = []
    together = threading.Barrier(4)

    def use() -> None:
        together.wait()
        for kind in kinds:
            value = kind(3, text="b")
            found.append((value == kind(3, "b"), hash(value), dataclasses.replace(value, number=4).number))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(True, hash((3, "b")), 4)] * 200


def test_values_travel_by_pickle_and_copy():
    place = Place(1, ("a",), ["seen"])
    for again in (pickle.loads(pickle.dumps(place)), copy.copy(place), copy.deepcopy(place)):
        assert (again, again.notes) == (place, ["seen"])
    assert copy.deepcopy(place).notes is not place.notes


def test_functions_of_dataclasses_work_on_lazy_ones():
    place = Place(1)
    assert dataclasses.is_dataclass(Place)
    assert [f.name for f in dataclasses.fields(Place)] == ["row", "names", "notes"]
    assert dataclasses.asdict(place) == {"row": 1, "names": (), "notes": []}
    assert dataclasses.replace(place, row=2) == Place(2)
    with pytest.raises(TypeError):
        dataclasses.replace(place, other=2)


def test_copy_replaces_fields_from_python_3_13_on():
    place = Place(1, ("a",))
    replaced = copy.replace if sys.version_info >= (3, 13) else Place.__replace__
    assert replaced(place, row=2) == Place(2, ("a",))


class Named(Place):
    """A class below that has no fields, and an ``__init__`` of its own."""

    def __init__(self, row: int, names: tuple[str, ...] = (), notes: object = None) -> None:
        super().__init__(row * 10, names, [])


def test_a_copy_of_a_class_below_is_made_by_its_own_init():
    assert replace(Named(1), names=("a",)) == dataclasses.replace(Named(1), names=("a",)) == Named(10, ("a",))
    assert type(replace(Named(1), row=2)) is Named
    with pytest.raises(TypeError, match="new"):
        replace(Place(1), new=2)


def test_a_frozen_value_stays_as_it_is():
    place = Place(1)
    for change in (lambda: setattr(place, "row", 2), lambda: delattr(place, "row"), lambda: setattr(place, "new", 1)):
        with pytest.raises(FrozenInstanceError):
            change()
    assert not hasattr(place, "__dict__")
    assert place == Place(1)


def test_a_pattern_takes_the_fields_in_their_order():
    match Place(1, ("b",)):
        case Place(row, (name,)):
            assert (row, name) == (1, "b")
        case _:
            raise AssertionError


def test_a_value_without_slots_keeps_what_it_works_out():
    @dataclass(frozen=True)
    class Squared:
        number: int
        times: list[int] = field(default_factory=list, compare=False)

        @cached_property
        def square(self) -> int:
            self.times.append(1)
            return self.number**2

    value = Squared(3)
    assert (value.square, value.square, value.times) == (9, 9, [1])
    assert value == Squared(3)
    with pytest.raises(FrozenInstanceError):
        value.number = 2  # type: ignore[misc]


def test_a_value_that_may_change_is_no_key():
    @dataclass(slots=True)
    class Count:
        number: int = 0

    count = Count()
    count.number += 1
    assert count == Count(1)
    assert not isinstance(count, Hashable)
    with pytest.raises(TypeError, match="unhashable"):
        hash(count)


def test_classes_of_both_kinds_derive_from_each_other():
    @dataclass(frozen=True, slots=True)
    class Ours:
        a: int
        b: int = 2

        def __post_init__(self) -> None:
            assert self.a < 100

    @dataclasses.dataclass(frozen=True, slots=True)
    class Theirs(Ours):
        c: int = 3

    @dataclass(frozen=True, slots=True)
    class OursAgain(Theirs):
        b: int = 4
        d: int = 5

        def __init__(self, a: int) -> None:
            Ours.__init__(self, a)
            object.__setattr__(self, "c", 6)
            object.__setattr__(self, "d", 7)

    assert repr(Theirs(1)).endswith("Theirs(a=1, b=2, c=3)")
    assert repr(OursAgain(1)).endswith("OursAgain(a=1, b=2, c=6, d=7)")
    assert (Theirs(1), OursAgain(1)) == (Theirs(1, 2, 3), OursAgain(1))
    assert Ours(1) != Theirs(1)
    with pytest.raises(AssertionError):
        Theirs(100)


def test_generic_and_abstract_bases_stay_what_they_are():
    class Named(Protocol):
        @property
        def name(self) -> str: ...

    @dataclass(frozen=True, slots=True)
    class Held(Named, Generic[T]):
        value: T
        name: str = "held"

    assert Held[int](3) == Held(3)
    assert Held.__parameters__ == (T,)


def test_a_method_in_the_body_stays():
    @dataclass(frozen=True, slots=True)
    class Own:  # noqa: PLW1641 - the decorator adds it
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    assert Own(1) == 5
    assert (repr(Own(1)), hash(Own(1))) == ("own", hash((1,)))


@pytest.mark.parametrize(
    ("body", "options", "text"),
    [
        ("a: dataclasses.InitVar[int]", FROZEN_SLOTS, "InitVar"),
        ("_: dataclasses.KW_ONLY", FROZEN_SLOTS, "KW_ONLY"),
        ("a: int", FROZEN_SLOTS | {"kw_only": True}, "kw_only"),
        ("a: int\n    def __lt__(self, other): return True", FROZEN_SLOTS | {"order": True}, "__lt__"),
        ("a: int\n    def __setattr__(self, name, value): pass", FROZEN_SLOTS, "__setattr__"),
        ("__slots__ = ()\n    a: int", FROZEN_SLOTS, "__slots__"),
    ],
)
def test_it_refuses_what_it_cannot_do(body, options, text):
    scope = {"dataclass": dataclass, "options": options}
    code = f"from __future__ import annotations\n@dataclass(**options)\nclass Refused:\n    {body}\n"
    with pytest.raises(TypeError, match=text):
        exec(code, scope)


COMPARE = """
import dataclasses, importlib, inspect, json, pkgutil, sys
from streamhouse_spark.core import lazy_dataclass

ours, twins = lazy_dataclass._decorator, []

def both(kind=None, /, **options):
    if kind is None:
        return lambda kind: both(kind, **options)
    body = {n: v for n, v in vars(kind).items() if n not in ("__dict__", "__weakref__")}
    body = {n: dataclasses.field(default=v.default, default_factory=v.default_factory, init=v.init, repr=v.repr,
                                 hash=v.hash, compare=v.compare, kw_only=v.kw_only)
            if isinstance(v, dataclasses.Field) else v for n, v in body.items()}
    made = ours(kind, **options)
    try:
        twin = dataclasses.dataclass(**options)(type(kind)(kind.__name__, kind.__bases__, body))
    except Exception as error:
        twin = error
    twins.append((made, twin))
    return made

def about(kind):
    fields = [(f.name, str(f.type), repr(f.default), f.init, f.repr, f.hash, f.compare, f.kw_only)
              for f in dataclasses.fields(kind)]
    slots = vars(kind).get("__slots__")
    methods = {n: vars(kind).get(n, 0) is None or n in vars(kind) and "there" for n in (
        "__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__ge__", "__setattr__", "__delattr__", "__getstate__",
        "__setstate__", "__post_init__")}
    params = kind.__dataclass_params__
    return str((fields, str(inspect.signature(kind)), slots, methods, kind.__match_args__, repr(params)))

lazy_dataclass.dataclass = both
import streamhouse_spark
for found in pkgutil.walk_packages(streamhouse_spark.__path__, "streamhouse_spark."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
differing = {}
for made, twin in twins:
    pair = [str(about(made)), repr(twin) if isinstance(twin, Exception) else about(twin)]
    if pair[0] != pair[1]:
        differing[f"{made.__module__}.{made.__qualname__}"] = pair
print(json.dumps({"classes": len(twins), "differing": differing}))
"""


@pytest.mark.long
def test_each_class_of_the_package_is_as_dataclasses_would_make_it():
    done = subprocess.run([sys.executable, "-c", COMPARE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["differing"] == {}
    assert found["classes"] > 300


def test_a_class_variable_hides_the_field_of_a_base():
    def made(decorator):
        @decorator
        class Base:
            a: int = 1
            b: int = 2

        @decorator
        class Hiding(Base):
            b: ClassVar[int] = 9

        @decorator(slots=True)
        class Slotted(Hiding):
            c: int = 3

        @decorator(slots=True)
        class Both(Base):
            a: int = 5
            b: ClassVar[int] = 9

        return [(kind.__slots__, kind().b, {**dataclasses.asdict(kind())}) for kind in (Slotted, Both)]

    assert made(dataclass) == made(dataclasses.dataclass)
