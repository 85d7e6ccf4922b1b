"""Names of branches: a part of a path, not a suffix."""

from __future__ import annotations

import pytest

from streamhouse_spark import InvalidNameError
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import parse_branch, parse_table_name


@pytest.mark.parametrize(
    ("text", "path", "suffix"),
    [
        ("sales.orders$branch_audit", TablePath("sales", "orders$branch_audit"), None),
        ("orders$BRANCH_Audit$History", TablePath("default", "orders$branch_audit"), "history"),
        ("orders$branch_audit$lake$files", TablePath("default", "orders$branch_audit"), "lake$files"),
        ("orders$branch_", TablePath("default", "orders"), "branch_"),
        ("orders$branches", TablePath("default", "orders"), "branches"),
        ("orders$lake$branch_audit", TablePath("default", "orders"), "lake$branch_audit"),
    ],
)
def test_a_branch_is_a_path(text, path, suffix):
    name = parse_table_name(text)
    assert (name.path, name.suffix) == (path, suffix)
    assert parse_table_name(str(name)) == name


def test_parts_of_a_path():
    table, branch = TablePath("sales", "orders"), TablePath("sales", "orders").of_branch("audit")
    assert (table.branch, table.base) == (None, table)
    assert (str(branch), branch.branch, branch.base) == ("sales.orders$branch_audit", "audit", table)
    name = parse_table_name("sales.orders$branch_audit")
    assert name.require_rows("write to") == branch
    with pytest.raises(InvalidNameError, match=r"cannot drop sales\.orders\$branch_audit: .* use sales\.orders"):
        name.require_table("drop")
    with pytest.raises(InvalidNameError, match="ends with"):
        parse_table_name("orders$branch_audit$")
    with pytest.raises(InvalidNameError, match="is reserved for the table itself"):
        parse_branch("Main")
