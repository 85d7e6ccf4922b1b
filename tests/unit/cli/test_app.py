"""Every command has help with real examples, and the shell completes commands, options and tables."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from streamhouse_spark.cli.app import _EXAMPLES, _SECTIONS, streamhouse
from streamhouse_spark.cli.session import _name_options

NAMES = sorted(streamhouse.commands)


def test_every_command_is_in_a_section():
    assert sorted(name for names in _SECTIONS.values() for name in names) == NAMES


def test_the_list_has_each_command_with_its_own_first_line():
    listed = {name: summary for names in _SECTIONS.values() for name, (_, summary) in names.items()}
    assert listed == {name: command.get_short_help_str(110) for name, command in streamhouse.commands.items()}
    assert all(command.name == name for name, command in streamhouse.commands.items())


def test_help_of_the_group_loads_no_command():
    code = (
        "import sys; from click.testing import CliRunner; from streamhouse_spark.cli.app import streamhouse\n"
        "assert CliRunner().invoke(streamhouse, ['--help']).exit_code == 0\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('streamhouse_spark.cli.', 'pyarrow', 'numpy', 'rich'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["streamhouse_spark.cli.app", "streamhouse_spark.cli.session"]


def test_the_group_lists_all_commands(run):
    text = run("--help").stdout
    for name in NAMES:
        assert f"  {name} " in text
    assert "Exit codes" in text


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_teaches(run, name):
    command = streamhouse.commands[name]
    text = run(name, "--help").stdout
    assert "Examples:" in text
    assert "--warehouse" in text
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
    summary = command.get_short_help_str(200)
    assert len(summary) <= 75, summary
    assert not summary.endswith("...")


@pytest.mark.parametrize("name", [*NAMES, None])
def test_examples_call_commands_and_options_that_exist(name):
    examples = streamhouse.commands[name]._examples if name else _EXAMPLES
    lines = examples.replace("\\\n", " ").strip().splitlines()
    calls = [line[line.index("streamhouse") :].split("|")[0] for line in lines if "streamhouse" in line.split("#")[0]]
    assert calls, examples
    for call in calls:
        words = shlex.split(call.split(" || ")[0])
        known = {o for p in streamhouse.params for o in p.opts}
        rest = words[1:]
        while rest and rest[0].startswith("-"):
            assert rest[0] in known
            rest = rest[2:]
        command = streamhouse.commands[rest[0]]
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        used = {word for word in rest[1:] if word.startswith("-") and word != "-"}
        assert used <= options, call
        command.make_context(rest[0], rest[1:], resilient_parsing=True)


def test_shared_options_stand_before_or_behind_the_command(run, warehouse_path, tmp_path, monkeypatch):
    run("create", "t", "--schema", "a INT")
    monkeypatch.delenv("STREAMHOUSE_WAREHOUSE")
    before = run("-w", warehouse_path, "-o", "json", "ls").lines
    assert before == run("ls", "-w", warehouse_path, "--output", "json").lines
    assert before[0]["table"] == "default.t"


def test_no_warehouse_is_wrong_usage(run, monkeypatch):
    monkeypatch.delenv("STREAMHOUSE_WAREHOUSE")
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", "")
    failed = run("ls", code=2)
    assert "found no warehouse; add --warehouse DIRECTORY-OR-URL (-w), or set STREAMHOUSE_WAREHOUSE" in failed.stderr


def test_settings_reach_the_warehouse_and_are_not_shown(run):
    failed = run("ls", "--setting", "s3.secret-access-key", code=2)
    assert "expected KEY=VALUE" in failed.stderr
    run("create", "t", "--schema", "a INT", "--setting", "storage.local.single-host=true")
    failed = run("ls", "--setting", "storage.local.single-host=perhaps", code=1)
    assert failed.stderr.startswith("INVALID_OPTION: storage.local.single-host")


def complete(*words: str) -> list[str]:
    *arguments, incomplete = words
    completion = ShellComplete(streamhouse, {}, "streamhouse", "_STREAMHOUSE_COMPLETE")
    return [item.value for item in completion.get_completions(list(arguments), incomplete)]


@pytest.fixture
def tables(warehouse, monkeypatch, warehouse_path):
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", warehouse_path)
    for name in ("sales.orders", "sales.visits", "air.flights"):
        warehouse.create_table(name, "a INT")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["app"], ["append"]),
        (["--war"], ["--warehouse"]),
        (["append", "sales."], ["sales.orders", "sales.visits"]),
        (["append", "--format", "p"], ["parquet"]),
        (["head", ""], ["air.flights", "sales.orders", "sales.visits"]),
        (["tier", "air.flights", "s"], ["sales.orders", "sales.visits"]),
        (["pause", "a"], ["air.flights"]),
        (["clone", "a"], ["air.flights"]),
        (["tag", "sales.orders", ""], []),
        (["describe", "x"], []),
    ],
)
def test_the_shell_completes_commands_and_options(tables, words, values):
    assert complete(*words) == values


def test_files_are_completed_by_the_shell(tables):
    completion = ShellComplete(streamhouse, {}, "streamhouse", "_STREAMHOUSE_COMPLETE")
    (item,) = completion.get_completions(["append", "sales.orders"], "data/o")
    assert (item.value, item.type) == ("data/o", "file")


@pytest.mark.parametrize("before", [True, False])
def test_tables_are_those_of_the_named_warehouse(tables, warehouse_path, monkeypatch, before):
    monkeypatch.delenv("STREAMHOUSE_WAREHOUSE")
    assert complete("head", "a") == []
    option = ["--warehouse", warehouse_path]
    assert complete(*(option if before else []), "head", *([] if before else option), "a") == ["air.flights"]


@pytest.mark.parametrize("place", ["absent", "s3://[", ""])
def test_no_table_is_completed_without_a_warehouse(monkeypatch, place):
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", place)
    assert complete("head", "") == []


def test_the_installed_program_answers_the_shell(tables):
    program = Path(sys.executable).with_name("streamhouse")
    environment = {**os.environ, "COMP_WORDS": "streamhouse head air", "COMP_CWORD": "2"}
    done = subprocess.run(
        [program],
        env={**environment, "_STREAMHOUSE_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["plain,air.flights"]


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
