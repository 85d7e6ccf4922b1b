"""Rights on the branches of a table are those on the table."""

from __future__ import annotations

import pytest

from streamhouse_spark import InvalidNameError
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.serve import acl


def test_who_may_write_a_table_may_write_its_branches():
    client = acl.Client("a", writable=(acl.parse_pattern("sales.orders"),))
    assert client.can("write", parse_table_name("sales.orders$branch_audit").path)
    assert not client.can("read", parse_table_name("sales.items$branch_audit").path)


def test_there_is_no_right_on_a_branch_alone():
    with pytest.raises(InvalidNameError, match=r"use sales\.orders"):
        acl.parse_pattern("sales.orders$branch_audit")
