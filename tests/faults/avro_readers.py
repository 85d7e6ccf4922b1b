"""Memoized readers of Avro schemas: pyiceberg parses the same few schemas for each manifest that it opens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from pyiceberg.avro import file as avro_file
from pyiceberg.avro.file import _SCHEMA_KEY, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.schema import Schema


class Memo:
    """The results of a pure function of schemas, each of which is recognized by its identity and kept."""

    def __init__(self, make: Callable[..., Reader]) -> None:
        self._make = make
        self._readers: dict[tuple[int, ...], tuple[tuple[Any, ...], Reader]] = {}

    def __call__(self, *arguments: Any) -> Reader:
        parts = [part for argument in arguments for part in parts_of(argument)]
        key = tuple(map(id, parts))
        if key not in self._readers:
            self._readers[key] = (*parts,), self._make(*arguments)  # with the parts, so that no identity is taken again
        return self._readers[key][1]


def parts_of(argument: Any) -> list[Any]:
    """Return an argument, or the items of a mapping: pyiceberg creates the mappings of types again for each file."""
    if not isinstance(argument, Mapping):
        return [argument]
    return [part for number, value in sorted(argument.items()) for part in (number, value)]


@contextmanager
def memoized_avro_readers() -> Iterator[None]:
    """Parse each Avro schema, and make the readers of each pair of schemas, once."""
    parse = AvroFileHeader.get_schema
    schemas: dict[str, Schema] = {}

    @functools.wraps(parse)
    def schema_of(header: AvroFileHeader) -> Schema:
        text = header.meta.get(_SCHEMA_KEY, "")
        if text not in schemas:
            schemas[text] = parse(header)
        return schemas[text]

    with (
        mock.patch.object(AvroFileHeader, "get_schema", schema_of),
        mock.patch.object(avro_file, "resolve_reader", Memo(avro_file.resolve_reader)),
        mock.patch.object(avro_file, "construct_reader", Memo(avro_file.construct_reader)),
    ):
        yield
