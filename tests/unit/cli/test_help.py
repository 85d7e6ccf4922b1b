"""Every command teaches: what it does, its options, and examples that are real."""

from __future__ import annotations

import shlex
import subprocess
import sys

import click
import pytest

from streamhouse_spark.cli.app import _EXAMPLES, _SECTIONS, streamhouse

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
