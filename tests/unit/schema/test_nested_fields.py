"""The fields inside a column: their ids, the paths that name them, and the changes that can be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.schema.ddl import parse_type, type_name
from streamhouse_spark.schema.nested_fields import (
    FieldIds,
    NestedFieldChanges,
    change_nested_fields,
    have_same_fields,
    join_path,
    list_field_paths,
    split_path,
)

KIND = parse_type("struct<a:int,l:array<struct<x:int,y:string>>,m:map<struct<k:int>,struct<v:float>>>")
IDS = FieldIds((1, 2, 3, 4, 5, 6, 7), 7)


def after(**changes):
    kind, ids = change_nested_fields("s", KIND, IDS, NestedFieldChanges(**changes))
    return type_name(kind), ids


def test_fields_are_counted_in_the_order_of_the_type():
    assert list_field_paths(KIND) == [
        ("a",),
        ("l",),
        ("l", "element", "x"),
        ("l", "element", "y"),
        ("m",),
        ("m", "key", "k"),
        ("m", "value", "v"),
    ]


def test_all_changes_at_once_mean_the_names_of_before_and_new_fields_those_of_after():
    kind, ids = after(
        renamed={("l",): "list", ("l", "element", "x"): "y", ("L", "Element", "Y"): "x"},
        dropped=(("a",),),
        widened={("m", "value", "v"): pa.float64()},
        added=((("a",), pa.string()), (("list", "element", "n"), parse_type("struct<p:int>"))),
    )
    assert kind == (
        "struct<list:array<struct<y:int,x:string,n:struct<p:int>>>,m:map<struct<k:int>,struct<v:double>>,a:string>"
    )
    assert ids == FieldIds((2, 3, 4, 9, 10, 5, 6, 7, 8), 10)


def test_an_id_is_never_used_again():
    kind, ids = change_nested_fields(
        "s", parse_type("struct<a:int,b:int>"), FieldIds((1, 2), 2), NestedFieldChanges(dropped=(("b",),))
    )
    _, ids = change_nested_fields("s", kind, ids, NestedFieldChanges(added=((("b",), pa.int32()),)))
    assert ids == FieldIds((1, 3), 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"renamed": {("b",): "c"}}, r"field 's\.b' does not exist; expected one of a, l, m"),
        ({"renamed": {("a", "x"): "c"}}, r"field 's\.a\.x' does not exist; int has no fields"),
        ({"renamed": {("l", "element"): "e"}}, r"'s\.l\.element' cannot be renamed: its parent has type"),
        ({"renamed": {("a",): "L"}}, "would occur twice"),
        ({"renamed": {("a",): ""}}, "field name is"),
        ({"renamed": {("a",): "x\n"}}, "field name is"),
        ({"dropped": (("m", "value", "v"),)}, "is the last field of its struct"),
        ({"dropped": (("m", "value"),)}, "cannot be dropped: its parent has type"),
        ({"dropped": (("m", "key", "k"),)}, "is part of map keys"),
        ({"widened": {("m", "key", "k"): pa.int64()}}, "is part of map keys"),
        ({"added": ((("m", "key", "j"), pa.int64()),)}, "is part of map keys"),
        ({"widened": {("a",): pa.string()}}, r"'s\.a' of type int cannot become string: only wider"),
        ({"widened": {("l",): pa.int64()}}, "cannot become bigint"),
        ({"added": ((("A",), pa.int64()),)}, "already exists"),
        ({"added": ((("l", "z"), pa.int64()),)}, "cannot be added: its parent has type .* 'element'"),
        ({"added": ((("", "z"), pa.int64()),)}, r"field 's\.``' does not exist"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(changes, says):
    with pytest.raises(SchemaMismatchError, match=says):
        after(**changes)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("`a.b`.c", ("a.b", "c")),
        ("a.`b``c`", ("a", "b`c")),
        ("é.`.`", ("é", ".")),
        ("a..b", ("a", "", "b")),
    ],
)
def test_paths_are_split_at_their_dots(text, parts):
    assert split_path(text) == parts
    assert split_path(join_path(parts)) == parts


def test_a_backtick_without_its_pair_is_refused():
    with pytest.raises(SchemaMismatchError, match="unpaired backtick"):
        split_path("a.`b")


@pytest.mark.parametrize(
    ("kind", "ids", "fits"),
    [
        ("struct<a:int,b:int>", (1, 2), True),
        ("struct<a:bigint,b:int,c:int>", (1, 2, 3), True),
        ("struct<b:int,a:int>", (2, 1), True),
        ("struct<b:int,a:int>", (1, 2), False),
        ("struct<a:int,b:int>", (1, 3), False),
        ("struct<a:int>", (1,), False),
        ("struct<a:int,c:int>", (1, 2), False),
        ("struct<a:tinyint,b:int>", (1, 2), False),
        ("array<int>", (), False),
    ],
)
def test_rows_by_names_fit_while_each_name_is_that_of_its_field(kind, ids, fits):
    assert have_same_fields(parse_type("struct<a:int,b:int>"), (1, 2), parse_type(kind), ids) is fits
    for text in ("array<{}>", "map<string,{}>"):
        before, now = parse_type(text.format("struct<a:int,b:int>")), parse_type(text.format(kind))
        assert have_same_fields(before, (1, 2), now, ids) is fits


@pytest.mark.parametrize(("ids", "last"), [([1], 2), ([1, 1], 2), ([1, 3], 2), ([0, 1], 2)])
def test_ids_that_cannot_be_are_refused(ids, last):
    with pytest.raises(SchemaMismatchError, match="has the field ids"):
        FieldIds.of(ids, last, parse_type("struct<a:int,b:int>"))
