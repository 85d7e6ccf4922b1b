"""Nested fields: the fields of structs in a column, also within arrays and maps. Their ids and their changes.

A nested field is identified by its id, which is never reused within the column. Ids are stored in the order of the
fields in the type, parents first. They are 1, 2, 3, … until a nested field of the column is changed. Array elements and
map values have no ids, because they cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Self

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema import ddl
from streamhouse_spark.schema.variant import is_struct

Path = tuple[str, ...]
"""Names from a column down to a nested field: ``element`` is an array's element, ``value`` a map's value."""
ELEMENT: Final = "element"
KEY: Final = "key"
VALUE: Final = "value"

_WIDER: Mapping[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


def is_widening(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether ``after`` holds every value of ``before``, and both lake formats permit the type change."""
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        return bool(before.scale == after.scale and before.precision < after.precision)
    return after in _WIDER.get(before, ())


@dataclass(frozen=True, slots=True)
class FieldIds:
    """The ids of a column's nested fields, after one of them was changed."""

    ids: tuple[int, ...]
    last: int
    """The highest id that the column ever used."""

    @classmethod
    def of(cls, ids: Sequence[int], last: int, data_type: pa.DataType) -> Self:
        """Validate stored ids for a type. Raises `SchemaMismatchError`."""
        if len(ids) != count_fields(data_type) or len({*ids, 0}) != len(ids) + 1 or max(ids, default=last) > last:
            raise SchemaMismatchError(
                f"a column of type {ddl.type_name(data_type)} has the field ids {list(ids)} up to {last}, expected "
                "one id per nested field; restore the file"
            )
        return cls(tuple(ids), last)


def count_fields(data_type: pa.DataType) -> int:
    """Count the nested fields of a type, at any depth."""
    return len(list_field_paths(data_type))


def list_field_paths(data_type: pa.DataType) -> list[Path]:
    """Return the path of each nested field of a type, in the order of their ids."""
    field_paths: list[Path] = []
    for name, part in zip(_names(data_type), child_fields(data_type), strict=True):
        if is_struct(data_type):
            field_paths.append((name,))
        field_paths += [(name, *path) for path in list_field_paths(part.type)]
    return field_paths


def child_fields(data_type: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, the element of an array, or key and value of a map; else none."""
    types = pa.types
    if is_struct(data_type):
        return list(data_type)
    if types.is_list(data_type):
        return [data_type.value_field]
    return [data_type.key_field, data_type.item_field] if types.is_map(data_type) else []


def _names(data_type: pa.DataType) -> list[str]:
    """Return the names of `child_fields` within paths."""
    types = pa.types
    if types.is_list(data_type):
        return [ELEMENT]
    return [KEY, VALUE] if types.is_map(data_type) else [part.name for part in child_fields(data_type)]


def split_path(text: str) -> Path:
    """Split ``s.`a.b`.c`` at dots outside backticks. Raises `SchemaMismatchError`."""
    parts, word, quoted, position = [], "", False, 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "`" and quoted and text[position : position + 1] == "`":
            word, position = word + "`", position + 1
        elif character == "`":
            quoted = not quoted
        elif character == "." and not quoted:
            parts.append(word)
            word = ""
        else:
            word += character
    if quoted:
        raise SchemaMismatchError(f"the name {text[:100]!r} has an unpaired backtick; write a backtick in a name twice")
    return (*parts, word)


def join_path(parts: Iterable[str]) -> str:
    """Join names to a path that `split_path` can split."""
    return ".".join(ddl.quote_identifier(part) for part in parts)


def have_same_fields(
    before: pa.DataType, before_ids: Sequence[int], after: pa.DataType, after_ids: Sequence[int]
) -> bool:
    """Return whether values that were converted by field name to the type ``before`` are also correct for ``after``.

    Each name must still belong to the same field, with an equal or wider type.
    """
    return _is_same_field(_Node.of(before, before_ids), _Node.of(after, after_ids))


def _is_same_field(before: _Node, after: _Node) -> bool:
    if before.kind != after.kind:
        return False
    if before.kind == "plain":
        return bool(before.type.equals(after.type)) or is_widening(before.type, after.type)
    if before.kind != "struct":
        return all(_is_same_field(*pair) for pair in zip(before.parts, after.parts, strict=True))
    fields_by_id = {part.id: part for part in after.parts}
    return all(
        (part := fields_by_id.get(older.id)) is not None and part.name == older.name and _is_same_field(older, part)
        for older in before.parts
    )


def find_new_fields(data_type: pa.DataType, written: pa.DataType) -> list[tuple[Path, pa.DataType]]:
    """Return the paths and types of the struct fields in ``written`` that are missing from ``data_type``.

    Fields match by name. Parts of different kinds are ignored, such as an array in one type and a struct in the other.
    """
    return _find_missing(
        _Node.of(data_type, [0] * count_fields(data_type)), _Node.of(written, [0] * count_fields(written)), ()
    )


def _find_missing(node: _Node, written: _Node, path: Path) -> list[tuple[Path, pa.DataType]]:
    if node.kind != written.kind:
        return []
    own_parts = {part.name.casefold(): part for part in node.parts}
    missing: list[tuple[Path, pa.DataType]] = []
    for part in written.parts:
        if (own_part := own_parts.get(part.name.casefold())) is None:
            missing.append(((*path, part.name), part.type))
        else:
            missing += _find_missing(own_part, part, (*path, own_part.name))
    return missing


def had_field(
    path: Path, data_type: pa.DataType, ids: Sequence[int], older: Iterable[tuple[pa.DataType, Sequence[int]]]
) -> bool:
    """Return whether a field at the path existed in one of the older types. The parent struct is matched by ids."""
    struct = _find_identities(_Node.of(data_type, ids), path[:-1])
    for kind, older_ids in older:
        node: _Node | None = _Node.of(kind, older_ids)
        for step in struct:
            node = next((part for part in node.parts if (part.id or part.name) == step), None) if node else None
        if node is not None and any(part.name.casefold() == path[-1].casefold() for part in node.parts):
            return True
    return False


def _find_identities(node: _Node, path: Path) -> list[int | str]:
    """Return the id of each node on a path, or the name of a node without an id."""
    identities: list[int | str] = []
    for name in path:
        node = next(part for part in node.parts if part.name.casefold() == name.casefold())
        identities.append(node.id or node.name)
    return identities


# -- changes ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    """A type, or a part of one, as a mutable tree."""

    kind: str
    """``struct``, ``array``, ``map`` or ``plain``."""
    type: pa.DataType
    """The type before all changes. Widening changes the type of a plain node."""
    name: str = ""
    id: int = 0
    """0 for the column, an array element, and a map's key or value, which have no ids."""
    parts: list[_Node] = field(default_factory=list)

    @classmethod
    def of(cls, data_type: pa.DataType, ids: Iterable[int]) -> _Node:
        return cls._of(data_type, iter(ids), "", 0)

    @classmethod
    def _of(cls, data_type: pa.DataType, ids: Iterator[int], name: str, own_id: int) -> _Node:
        has_ids = is_struct(data_type)
        kind = "struct" if has_ids else "array" if pa.types.is_list(data_type) else "plain"
        node = cls("map" if pa.types.is_map(data_type) else kind, data_type, name, own_id)
        for part, inner in zip(_names(data_type), child_fields(data_type), strict=True):
            part_id = next(ids) if has_ids else 0
            node.parts.append(cls._of(inner.type, ids, part, part_id))
        return node

    def build_type(self) -> pa.DataType:
        """Return the changed type. Raises `SchemaMismatchError` for a struct with no or duplicate fields."""
        inner = [part.build_type() for part in self.parts]
        match self.kind:
            case "struct":
                return ddl.struct_type([(p.name, t) for p, t in zip(self.parts, inner, strict=True)])
            case "array":
                return ddl.list_type(inner[0])
            case "map":
                return pa.map_(*inner)
        return self.type

    def ids(self) -> list[int]:
        return [i for part in self.parts for i in ([part.id, *part.ids()] if part.id else part.ids())]


@dataclass(frozen=True, slots=True)
class NestedFieldChanges:
    """Changes of nested fields of one column. Paths use the names from before the changes, except for new fields."""

    renamed: Mapping[Path, str] = field(default_factory=dict)
    dropped: tuple[Path, ...] = ()
    widened: Mapping[Path, pa.DataType] = field(default_factory=dict)
    added: tuple[tuple[Path, pa.DataType], ...] = ()
    """New fields in order, each appended to its struct. Paths use the names from after all other changes."""


def change_nested_fields(
    column: str, data_type: pa.DataType, ids: FieldIds, changes: NestedFieldChanges
) -> tuple[pa.DataType, FieldIds]:
    """Return the type and the ids of a column after changes of its nested fields.

    Raises `SchemaMismatchError` for an unknown field, a name that exists or is invalid, a type that is not wider, a
    struct without a remaining field, and a change of map keys.
    """
    editor = _Editor(column, _Node.of(data_type, ids.ids), ids.last)
    editor.change(changes)
    after = editor.root.build_type()
    return after, FieldIds(tuple(editor.root.ids()), editor.last)


class _Editor:
    def __init__(self, column: str, root: _Node, last: int) -> None:
        self._column = column
        self.root = root
        self.last = last

    def change(self, changes: NestedFieldChanges) -> None:
        widened = [(*self._find(path), path, kind) for path, kind in changes.widened.items()]
        renamed = [(*self._find(path), path, name) for path, name in changes.renamed.items()]
        dropped = [(*self._find(path), path) for path in changes.dropped]
        for _, node, path, kind in widened:
            self._widen(node, path, kind)
        for parent, node, path, name in renamed:
            self._require_field(parent, path, "renamed")
            _require_field_name(name)
            node.name = name
        for parent, node, path in dropped:
            self._require_field(parent, path, "dropped")
            parent.parts = [part for part in parent.parts if part is not node]
            if not parent.parts:
                self._refuse(path, "is the last field of its struct; drop the struct instead")
        self._require_distinct(self.root)
        for path, kind in changes.added:
            self._add(path, kind)

    def _widen(self, node: _Node, path: Path, target: pa.DataType) -> None:
        if node.kind != "plain" or not (node.type.equals(target) or is_widening(node.type, target)):
            self._refuse(
                path,
                f"of type {ddl.type_name(node.build_type())} cannot become {ddl.type_name(target)}: only wider "
                "integers, float to double, and decimals of more digits and the same scale hold every existing value; "
                "add a field of that type",
            )
        node.type = target

    def _add(self, path: Path, kind: pa.DataType) -> None:
        _, parent = self._find(path[:-1])
        self._require_field(parent, path, "added")
        _require_field_name(path[-1])
        if any(part.name.casefold() == path[-1].casefold() for part in parent.parts):
            self._refuse(path, "already exists; choose another name")
        ids = range(self.last + 1, self.last + 2 + count_fields(kind))
        node = _Node.of(kind, ids[1:])
        node.name, node.id = path[-1], ids[0]
        parent.parts.append(node)
        self.last = ids[-1]

    def _find(self, path: Path) -> tuple[_Node, _Node]:
        """Return the parent of the node at a path, and the node. Raises `SchemaMismatchError`."""
        parent = node = self.root
        for place, name in enumerate(path):
            parent = node
            matches = [part for part in parent.parts if part.name.casefold() == name.casefold()]
            if not matches:
                names = ", ".join(part.name for part in parent.parts)
                expected = f"expected one of {names}" if names else f"{ddl.type_name(parent.type)} has no fields"
                self._refuse(path[: place + 1], f"does not exist; {expected}")
            (node,) = matches
            if parent.kind == "map" and node is parent.parts[0]:
                self._refuse(path, "is part of map keys, which cannot change; add a column with another map")
        return parent, node

    def _require_field(self, parent: _Node, path: Path, change: str) -> None:
        if parent.kind != "struct":
            self._refuse(
                path,
                f"cannot be {change}: its parent has type {ddl.type_name(parent.build_type())}, expected a struct; a "
                "path into an array has 'element', a path into a map 'value'",
            )

    def _require_distinct(self, node: _Node) -> None:
        if node.kind == "struct":
            folded = [part.name.casefold() for part in node.parts]
            for part in node.parts:
                if folded.count(part.name.casefold()) > 1:
                    self._refuse((part.name,), "would occur twice in its struct; choose another name")
        for part in node.parts:
            self._require_distinct(part)

    def _refuse(self, path: Path, problem: str) -> Any:
        raise SchemaMismatchError(f"field '{join_path((self._column, *path))}' {problem}")


def _require_field_name(name: str) -> None:
    if not name or len(name) > 255 or not name.isprintable():
        raise SchemaMismatchError(f"field name is {name[:40]!r}, expected 1 to 255 printable characters")
