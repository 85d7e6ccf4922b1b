"""Reads of a pinned state never look at the current state of their table."""

from __future__ import annotations

import ast

import pytest

from project.source_trees import parse_sources, walk

PINNED = (
    "read/scan_planning.py",
    "read/snapshot_fallback.py",
    "table/partitions_table.py",
    "read/offset_scan.py",
    "read/snapshot_reader.py",
    "datasource/stream/bootstrap.py",
    "datasource/scan/scan_planning.py",
    "datasource/scan/aggregates.py",
)
"""Modules that read as of a pin, or a state that the caller passes."""
CURRENT = {"state", "schema", "properties", "partition_by", "num_buckets"}


@pytest.mark.parametrize("path", PINNED)
def test_modules_that_read_a_pin_do_not_read_the_tables_current_state(path):
    attributes = [node for node in walk(parse_sources()[path]) if isinstance(node, ast.Attribute)]
    of_tables = [node for node in attributes if ast.unparse(node.value) in ("table", "self._table", "request.table")]
    assert of_tables
    assert [f"{node.lineno}: {ast.unparse(node)}" for node in of_tables if node.attr in CURRENT] == []
