"""Errors of the command line name its options, not the arguments of Python."""

from __future__ import annotations

import pytest

from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.cli.session import _name_options


@pytest.mark.parametrize(
    ("command", "text", "named"),
    [
        ("create", "say if_not_exists=True to use it", "say --if-not-exists to use it"),
        ("create", "created with primary_key=[...]", "created with --primary-key"),
        ("undrop", "under another name with to=", "under another name with --to"),
        ("retier", "Allow it with allow_loss=True, then", "Allow it with --allow-loss, then"),
        ("append", "use format_='json'; now", "use --format json; now"),
        ("head", "read columns=, or less", "read --columns, or less"),
        ("head", "say if_not_exists=True", "say if_not_exists=True"),
        ("alter", "--set comment=TEXT and x.comment='a'", "--set comment=TEXT and x.comment='a'"),
    ],
)
def test_an_argument_is_named_as_the_option(command, text, named):
    assert _name_options(text, streamhouse.commands[command]) == named


def test_errors_of_commands_name_options(run, warehouse):
    table = warehouse.create_table("t", "a INT")
    assert "or set --if-not-exists to use it" in run("create", "t", "--schema", "a INT", code=1).stderr
    assert "under another name with --to" in run("undrop", "t", code=1).stderr
    table.append([{"a": 1}])
