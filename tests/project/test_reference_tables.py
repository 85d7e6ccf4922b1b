"""Tables of the reference pages list the options, properties and commands of the code."""

from __future__ import annotations

import pytest
import reference

from doc_pages import PAGES
from streamhouse_spark.config.table_properties import (
    _KNOWN,
    FIXED_PROPERTIES,
    PRIMARY_KEY,
    TableProperties,
    is_keyed_property,
    parse_properties,
)
from streamhouse_spark.kv.primary_key_properties import parse_keyed_properties
from streamhouse_spark.schema.table_schema import TableSchema


def rows_after(page: str, marker: str) -> list[list[str]]:
    """The cells of the first table behind a marker of a page, without its header."""
    lines = PAGES[page][PAGES[page].index(marker) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| ---")) + 1
    end = next((i for i, line in enumerate(lines[start:], start) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


@pytest.mark.parametrize("page", sorted({path for path, _ in reference.TABLES}))
def test_generated_tables_are_those_of_the_code(page):
    assert PAGES[page] == reference.with_tables(page, PAGES[page]), "run `make reference`"


def test_properties_are_those_of_the_code():
    rows = rows_after("docs/reference/table-properties.md", "<!-- properties:")
    assert [name for name, _, _ in rows] == [f"`{name}`" for name in _KNOWN]
    schema = TableSchema.of("a INT NOT NULL")
    for name, default, meaning in rows:
        key = name.strip("`")
        assert meaning.endswith("*Fixed.*") == (key in FIXED_PROPERTIES or key.startswith("fields.")), key
        if default and is_keyed_property(key):
            if not key.startswith("fields."):  # these have no meaning alone
                found = parse_keyed_properties({PRIMARY_KEY: "a", key: default.strip("`")}, schema)
                assert found == parse_keyed_properties({PRIMARY_KEY: "a"}, schema), key
        elif default:
            assert parse_properties({key: default.strip("`")}, schema) == TableProperties(), key
