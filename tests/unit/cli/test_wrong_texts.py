"""Every command with wrong texts for each of its arguments and options: one line on stderr, nothing written."""

from __future__ import annotations

from dataclasses import dataclass, field

import click
import pytest
from click.testing import CliRunner

from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.cli.session import Failure, Session
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from unit.public_surface import World

SHARED = {"--warehouse", "--output", "--setting"}
UNUSED = {name: {"--spark", "--master"} for name in ("tier", "refresh")} | {"tail": {"--follow"}}
"""Options that start a JVM, or wait for ever."""
PARSED_ONLY = {"demo", "refresh", "tutorial"}
"""Commands that do too much for a test where a text is right; here only their texts are read."""


@dataclass(frozen=True)
class Line:
    """A command line that is right: texts of arguments and options by their names, and flags."""

    texts: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def words(self, command: click.Command, **wrong: str) -> list[str]:
        given = {**self.texts, **wrong}
        options = [p for p in command.params if isinstance(p, click.Option) and p.name in given]
        arguments = [p for p in command.params if isinstance(p, click.Argument) and p.name in given]
        texts = [f"{p.opts[-1]}={given[p.name]}" for p in options]
        return [*texts, *self.flags, "--", *(given[p.name] for p in arguments)]


LINES = {
    "tutorial": Line({}, ("--terminal",)),
    "demo": Line({"rows": "5", "seconds": "5"}, ("--fast",)),
    "doctor": Line(),
    "jar": Line({"catalog": "lakes"}, ("--options",)),
    "ls": Line({"database": "default"}),
    "top": Line({"interval": "1"}, ("--once",)),
    "describe": Line({"table": "log", "prices": "gets_usd_per_1000=0.1"}, ("--costs",)),
    "costs": Line({"database": "default", "prices": "gets_usd_per_1000=0.1"}),
    "create": Line(
        {
            "table": "more",
            "schema": "id BIGINT, day INT",
            "partition_by": "day",
            "primary_key": "id,day",
            "buckets": "2",
            "properties": "comment=why",
        },
        ("--if-not-exists",),
    ),
    "adopt": Line(
        {"table": "adopted", "lake": "default.log", "primary_key": "id", "properties": "comment=why"}, ("--dry-run",)
    ),
    "alter": Line(
        {
            "table": "keyed",
            "added": "more INT",
            "renamed": "name=title",
            "widened": "day=bigint",
            "comments": "id=why",
            "defaults": "title='x'",
            "changed": "comment=why",
            "removed": "table.log.ttl",
        }
    ),
    "rename": Line({"table": "log", "new_name": "other"}),
    "truncate": Line({"table": "log"}, ("--yes",)),
    "set-partitioning": Line({"table": "log", "fields": "truncate(2, name)"}),
    "drop-partition": Line({"table": "log", "values": "day=1"}, ("--yes",)),
    "rollback": Line({"table": "log", "version": "1"}, ("--dry-run",)),
    "clone": Line({"source": "log", "target": "cloned", "version": "kept"}),
    "tag": Line({"table": "log", "name": "a", "version": "kept", "retain_days": "1"}),
    "tags": Line({"table": "log"}),
    "drop-tag": Line({"table": "log", "name": "kept"}),
    "branch": Line({"table": "log", "name": "a"}),
    "publish-branch": Line({"table": "log", "name": "audit"}),
    "drop-branch": Line({"table": "log", "name": "audit"}),
    "drop": Line({"table": "log"}, ("--yes",)),
    "undrop": Line({"table": "dropped", "to": "back"}),
    "head": Line({"table": "log", "limit": "1", "columns": "id", "where": "id > 0"}),
    "tail": Line(
        {"table": "log", "start": "earliest", "limit": "1", "columns": "id", "where": "id > 0"}, ("--no-follow",)
    ),
    "append": Line({"table": "log", "files": "-", "format_": "csv", "null_texts": "-"}),
    "serve": Line(
        {
            "host": "127.0.0.1",
            "port": "0",
            "flight_port": "0",
            "client_config": "s3.region=x",
            "grace_minutes": "60",
            "vend_minutes": "60",
            "allowed_host": "a.example",
            "allowed_origin": "https://a.example",
        },
        ("--check",),
    ),
    "refresh": Line({"views": "view"}),
    "pause": Line({"views": "view"}),
    "resume": Line({"views": "view"}),
    "tier": Line({"tables": "log"}, ("--once",)),
    "retier": Line({"table": "log"}, ("--dry-run",)),
    "maintain": Line({"tables": "log", "grace_ms": "1h"}, ("--dry-run",)),
    "compact": Line({"table": "log"}, ("--dry-run",)),
    "optimize": Line({"table": "log", "order_by": "id", "where": "id > 1"}, ("--dry-run",)),
    "expire-snapshots": Line({"table": "log", "older_than_ms": "1h", "retain_last": "1"}, ("--dry-run",)),
    "remove-orphan-files": Line({"table": "log", "older_than_ms": "24h"}, ("--dry-run",)),
    "rewrite-manifests": Line({"table": "log"}, ("--dry-run",)),
    "snapshots": Line({"table": "log"}),
    "segments": Line({"table": "log"}),
    "history": Line({"table": "log", "limit": "1"}),
    "verify": Line({"table": "log"}),
    "relocate": Line(flags=("--dry-run",)),
}
BESIDE = {
    "undrop": {"uuid": "0" * 32},
    "create": {"like": "log"},
    "alter": {"dropped": "name"},
    "append": {"txn_app_id": "app", "txn_version": "1"},
    "tier": {"listen": "127.0.0.1:0", "lineage": "http://127.0.0.1:1/events"},
    "serve": {
        "token_file": "tokens",
        "access": "rights",
        "audit_log": "audit.log",
        "tls_cert": "cert.pem",
        "tls_key": "key.pem",
        "vend_role": "arn:aws:iam::1:role/x",
        "lake_after": "5",
        "allowed_host": "proxy.example.com",
        "allowed_origin": "https://streams.example.com",
    },
}
"""Options that do not go with the others: each is given wrong values too, and need not be right."""
WRONG = {
    "empty": "",
    "blank": " ",
    "word": "nope",
    "zero": "0",
    "minus one": "-1",
    "half": "0.5",
    "2**31": str(2**31),
    "2**63": str(2**63),
    "digits": "9" * 400,
    "beyond Python's digits": "9" * 5000,
    "minus digits": "-" + "9" * 30,
    "float": "1e400",
    "NaN": "NaN",
    "other digits": "\u0661\u00b2",
    "underscores": "1_000",
    "line break": "a\nb",
    "tab": "\t",
    "surrogate": "a\udcff",
    "nul": "a\x00b",
    "escape": "\x1b[2J",
    "quote": "'",
    "backtick": "`",
    "dots": "a.b.c.d",
    "only dots": "..",
    "path": "../../etc/passwd",
    "folder": "/",
    "suffix": "log$lake",
    "unknown suffix": "log$nope",
    "only suffix": "$",
    "commas": ",,,",
    "equals": "=",
    "no name": "=x",
    "pair of nope": "nope=nope",
    "pair of empty": "id=",
    "pair of surrogate": "id=\udcff",
    "pair of digits": "id=" + "9" * 400,
    "pair of quote": "name='",
    "twice": "id,id",
    "json": "{",
    "percent": "%s%(x)d{0}",
    "long": "x" * 100_000,
    "long pair": "x" * 50_000 + "=" + "y" * 50_000,
    "ddl cut": "x ARRAY<",
    "deep ddl": "x " + "ARRAY<" * 3000 + "INT" + ">" * 3000,
    "deep condition": "(" * 3000,
    "condition cut": "id >",
    "condition of a word": "id = nope",
    "condition of digits": "id = " + "9" * 400,
    "condition of digits of Python": "id = " + "9" * 5000,
    "condition of an exponent": "id = 1e999999999",
    "condition of a text": "id = 'x'",
    "condition in nothing": "id IN ()",
    "not not": "NOT " * 3000 + "id = 1",
    "duration": "99999999999999999999h",
    "short duration": "-1h",
    "time": "2026-13-45T99:99:99Z",
    "year": "0000-01-01T00:00:00Z",
    "late": "9999-12-31T23:59:59Z",
    "very late": "99999999999999999",
    "uuid": "0" * 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        world = World()
        view = {VIEW: ViewDefinition("SELECT 1", "full", 1000, ("id",), "bag", {}).to_text()}
        world.opened().create_table("view", "id BIGINT", primary_key=["id"], properties=view)
        world._kept = dict(world.storage._objects)
        world.restore()
        patch.setattr(Session, "warehouse", property(lambda _: world.opened()))
        yield world


def own(command):
    return [p for p in command.params if not SHARED & set(p.opts) and not UNUSED.get(command.name, set()) & set(p.opts)]


def taken(name):
    return {**LINES[name].texts, **BESIDE.get(name, {})}


def test_every_command_and_option_is_known_here():
    assert LINES.keys() == streamhouse.commands.keys(), "give a new command a line that is right"
    for name, command in streamhouse.commands.items():
        texts = {p.name for p in own(command) if not getattr(p, "is_flag", False)}
        assert texts == taken(name).keys(), name


def run(words, stdin="id,name,day\n1,a,1\n"):
    return CliRunner().invoke(streamhouse, words, input=stdin)


@pytest.mark.parametrize(
    "words",
    [
        ["nope" * 50_000],
        ["--" + "nope" * 50_000],
        ["ls", "--" + "nope" * 50_000],
        ["ls", *["x" * 50_000] * 3],
        ["-w", "a\udcff", "ls"],
        ["-o", "x" * 100_000, "ls"],
        ["--setting", "x" * 100_000, "ls"],
        ["--setting", "\udcff=x", "ls"],
        ["ls", "\udcff"],
        ["\udcff"],
    ],
)
def test_unknown_commands_and_options_fail_with_code_2(words):
    result = run(words)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert _told_wrong(result, is_changed=False) is None


@pytest.mark.parametrize("name", sorted(LINES.keys() - PARSED_ONLY - {"doctor"}))
def test_a_line_that_is_right(world, name):
    result = run(["-w", "wh", name, *LINES[name].words(streamhouse.commands[name])])
    try:
        assert (result.exit_code, result.exception) == (1 if name == "adopt" else 0, result.exception), result.stderr
    finally:
        world.restore()


@pytest.mark.parametrize(("name", "parameter"), [(name, option) for name in LINES for option in taken(name)])
def test_wrong_texts_fail_in_one_line_and_write_nothing(world, name, parameter):
    found = {label: said for label, text in WRONG.items() if (said := _wrong(world, name, parameter, text))}
    assert found == {}


def _wrong(world, name, parameter, text):
    """How a command breaks the promise with this text; None where it keeps it."""
    command = streamhouse.commands[name]
    words = LINES[name].words(command, **{parameter: text})
    try:
        if name in PARSED_ONLY:
            return _parsed(command, words)
        result = run(["-w", "wh", name, *words])
        error = result.exception
        if error is not None and not isinstance(error, SystemExit):
            return f"{type(error).__name__}: {str(error)[:200]}"
        return _told_wrong(result, is_changed=world.is_changed())
    finally:
        if world.is_changed():
            world.restore()


def _told_wrong(result, *, is_changed):
    if result.exit_code == 0:
        return None
    if is_changed:
        return "failed, and changed the warehouse"
    lines = result.stderr.splitlines()
    if result.exit_code == 2:
        usage, _, said = result.stderr.rpartition("\nError: ")
        if not usage.startswith("Usage: "):
            return f"usage: {result.stderr[-300:]!r}"
        lines = said.splitlines()
    if result.exit_code not in (1, 2) or len(lines) != 1 or len(lines[0]) > 3_000:
        return f"exit {result.exit_code}, {len(lines)} lines, {len(result.stderr)} letters: {result.stderr[:300]!r}"
    return None


def _parsed(command, words):
    try:
        command.make_context(command.name, words)
    except click.UsageError as error:
        return None if len(error.format_message().splitlines()) == 1 else error.format_message()
    return None


@pytest.mark.parametrize("name", sorted(LINES))
def test_a_flag_takes_no_text(name):
    command = streamhouse.commands[name]
    for flag in (p for p in command.params if getattr(p, "is_flag", False)):
        result = run([name, f"{flag.opts[-1]}=no"])
        assert result.exit_code == 2, flag.opts
        assert "does not take a value" in result.stderr


def test_commands_that_break_the_promise_are_found(world, monkeypatch):
    """Mistakes that are planted: an error without a type, one of two lines, one after a write."""
    command = streamhouse.commands["describe"]

    def fails(error, *, writes=False):
        def callback(**_):
            if writes:
                world.wh.create_database("written")
            raise error

        monkeypatch.setattr(command, "callback", callback)
        return _wrong(world, "describe", "table", "log")

    assert "KeyError" in fails(KeyError("x"))
    assert "2 lines" in fails(Failure("one\ntwo"))
    assert "changed the warehouse" in fails(Failure("one"), writes=True)
    assert fails(Failure("one")) is None
