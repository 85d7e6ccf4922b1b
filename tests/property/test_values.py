"""Random dataclasses, made by `dataclasses` and by `core.lazy_dataclass`: both give the same answers to whatever is
asked.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamhouse_spark.core.lazy_dataclass import dataclass, replace

NAMES = ["a", "b", "c", "d", "e"]
WITH_DEFAULT = {
    "default": "int = 3",
    "of field": "int = field(default=4)",
    "factory": "list[int] = field(default_factory=list)",
    "no init": "int = field(default=5, init=False)",
    "no init, factory": "list[int] = field(default_factory=list, init=False)",
    "not compared": "int = field(default=6, compare=False)",
    "not shown": "int = field(default=7, repr=False)",
    "not hashed": "int = field(default=8, hash=False)",
    "hashed alone": "int = field(default=8, hash=True, compare=False)",
}
KINDS = ["plain", "by name alone", "of the class", *WITH_DEFAULT]
BODIES = {
    "none": "",
    "eq": "def __eq__(self, other): return other is not None",
    "hash": "def __hash__(self): return 7",
    "repr": "def __repr__(self): return 'own'",
    "begun": "def __post_init__(self): BEGUN.append(type(self).__name__)",
    "init": "def __init__(self, *values): BEGUN.append(values)",
}


@st.composite
def classes(draw: st.DrawFn) -> str:
    """Return the text of one class, or of two of which the second derives from the first."""
    frozen = draw(st.booleans())
    lines, has_default = ["from __future__ import annotations"], False
    for level, base in enumerate(["", "(C0)"][: draw(st.integers(1, 2))]):
        eq = draw(st.booleans())
        options = {"frozen": frozen, "slots": draw(st.booleans()), "eq": eq, "repr": draw(st.booleans())}
        options["order"] = eq and draw(st.booleans())
        lines += [f"@dataclass(**{options})", f"class C{level}{base}:", '    """Drawn."""']
        for name in draw(st.permutations(NAMES))[: draw(st.integers(0, 4))]:
            kind = draw(st.sampled_from(KINDS))
            if kind == "plain" and (has_default or level):  # a name may be one that the base has with a default
                kind = "default"
            has_default = has_default or kind in WITH_DEFAULT
            others = {"plain": "int", "by name alone": "int = field(kw_only=True)", "of the class": "ClassVar[int] = 9"}
            lines.append(f"    {name}: {(others | WITH_DEFAULT)[kind]}")
        lines.append(f"    {BODIES[draw(st.sampled_from(list(BODIES)))]}")
    return "\n".join(lines)


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return repr(work()).replace(" object at 0x", "")
    except Exception as error:  # noqa: BLE001 - whatever it is, both have it
        return type(error).__name__, str(error)


def answers(decorator: Any, text: str, calls: list[tuple[list[int], dict[str, int]]]) -> list[Any]:
    scope: dict[str, Any] = {"dataclass": decorator, "field": dataclasses.field, "ClassVar": ClassVar, "BEGUN": []}
    scope["__name__"] = __name__
    try:
        exec(text, scope)
        for name in {"C0", "C1"} & scope.keys():
            assert callable(scope[name].__init__)  # ours finds mistakes here
    except TypeError:
        return ["refused"]
    found: list[Any] = []
    for kind in (scope[name] for name in ("C0", "C1") if name in scope):
        values = []
        for placed, named in calls:
            try:
                values.append(kind(*placed, **named))
            except TypeError as error:
                found.append(str(error))
        found += [
            outcome(lambda kind=kind: inspect.signature(kind)),
            [(f.name, f.type, repr(f.default), f.init, f.compare) for f in dataclasses.fields(kind)],
            kind.__match_args__,
            vars(kind).get("__slots__"),
            [hasattr(kind, name) for name in NAMES],
        ]
        for value in values:
            found += [
                outcome(lambda value=value: shown(value)),
                outcome(lambda value=value: hash(value)) if kind.__hash__ is not object.__hash__ else None,
                outcome(lambda value=value: shown(copy.deepcopy(value))),
                outcome(lambda value=value: shown(replace(value))),
                *(
                    outcome(lambda value=value, name=name: shown(replace(value, **{name: 12})))
                    for name in [*NAMES, "new"]
                ),
                outcome(lambda value=value: dataclasses.asdict(value)),
                *(changed(value, name) for name in [*NAMES, "new"]),
                *(outcome(lambda value=value, other=other: value == other) for other in [*values, 3]),
                *(outcome(lambda value=value, other=other: value < other) for other in values),
                *(outcome(lambda value=value, other=other: value >= other) for other in values),
                outcome(lambda value=value: shown(value)),
            ]
    return [*found, scope["BEGUN"]]


def changed(value: Any, name: str) -> Any:
    """Return what comes of an assignment and a deletion. Of a frozen value with slots `dataclasses` itself trips over a
    name that is no field, with another error.
    """
    found = [outcome(lambda: setattr(value, name, 11)), outcome(lambda: delattr(value, name))]
    return found if name in {f.name for f in dataclasses.fields(value)} else [isinstance(one, tuple) for one in found]


def shown(value: Any) -> Any:
    text = repr(value) if type(value).__repr__ is not object.__repr__ else "an object"
    return text, {name: getattr(value, name, "absent") for name in NAMES}


@settings(max_examples=120)
@given(
    classes(),
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=3), st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2))),
        min_size=2,
        max_size=3,
    ),
)
def test_it_makes_what_dataclasses_makes(text, calls):
    expected = answers(dataclasses.dataclass, text, calls)
    assume(expected != ["refused"] or "def __init__" not in text)  # the original checks fields that nothing will use
    assert answers(dataclass, text, calls) == expected
