"""``streamhouse pause``, ``resume`` and ``refresh``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pyspark.errors import PySparkException

import streamhouse_spark as sh
from streamhouse_spark import StreamhouseError
from streamhouse_spark.cli import diagnostics, spark_commands
from streamhouse_spark.cli.session import Session
from streamhouse_spark.cli.spark_session import translate_spark_errors
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.views.refresh import RefreshReport

QUERY = "SELECT id, 2 * id AS twice FROM default.t"


def make_view(warehouse: sh.Warehouse, name: str = "gold.v") -> sh.Table:
    definition = ViewDefinition(QUERY, "full", 500, ("id", "twice"), "bag", {})
    return warehouse.create_table(
        name,
        "_key STRING NOT NULL, _ord BIGINT NOT NULL, id BIGINT, twice BIGINT",
        primary_key=["_key", "_ord"],
        properties={VIEW: definition.to_text()},
    )


def is_paused(table: sh.Table) -> bool:
    return ViewDefinition.of(table.refresh().properties, table.name).paused


def test_pause_and_resume_and_both_again(run, warehouse):
    view = make_view(warehouse)
    assert run("pause", "gold.v").stdout == "gold.v is paused\n"
    assert is_paused(view)
    version = view.refresh().version
    assert run("pause", "gold.v").stdout == "gold.v is paused already\n"
    assert view.refresh().version == version, "no second commit"
    assert run("resume", "gold.v").stdout == "gold.v is refreshed by services\n"
    assert not is_paused(view)
    assert run("resume", "gold.v").stdout == "gold.v is refreshed by services already\n"


def test_pause_takes_several_views_and_prints_json(run, warehouse):
    views = [make_view(warehouse, "gold.v"), make_view(warehouse, "gold.w")]
    run("pause", "gold.w")
    assert run("pause", "gold.v", "gold.w", "gold.v", "-o", "json").lines == [
        {"view": "gold.v", "paused": True, "changed": True},
        {"view": "gold.w", "paused": True, "changed": False},
    ]
    assert run("resume", "gold.v", "gold.w", "-o", "json").lines == [
        {"view": "gold.v", "paused": False, "changed": True},
        {"view": "gold.w", "paused": False, "changed": True},
    ]
    assert not any(is_paused(view) for view in views)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["gold.v", "default.t"], "default.t is not a materialized table"),
        (["gold.v", "gold.x"], "gold.x does not exist"),
        (["gold.v", "gold.v$lineage"], "gold.v$lineage"),
    ],
)
@pytest.mark.parametrize("command", [["pause"], ["resume"], ["refresh", "--master", "local[1]"]])
def test_what_is_no_view_is_told_before_anything_is_done(run, warehouse, command, names, told):
    warehouse.create_table("t", "id BIGINT")
    version = make_view(warehouse).refresh().version
    failed = run(*command, *names, code=1)
    assert told in failed.stderr
    assert failed.stdout == ""
    assert warehouse.table("gold.v").refresh().version == version


def test_a_view_is_to_be_named(run):
    assert "VIEWS" in run("pause", code=2).stderr


def test_refresh_says_that_it_needs_spark(run, warehouse, monkeypatch):
    make_view(warehouse)
    assert (
        "refresh requires Spark, which runs the queries; add --master 'local[*]'"
        in run("refresh", "gold.v", code=1).stderr
    )
    monkeypatch.setattr(
        diagnostics, "check_java", lambda *_: diagnostics.Finding("Java", "fail", "no Java", "install it")
    )
    monkeypatch.setattr("streamhouse_spark.cli.spark_session.check_java", diagnostics.check_java)
    assert "no Java; install it" in run("refresh", "gold.v", "--master", "local[1]", code=1).stderr


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (PySparkException("no such thing"), "SPARK_FAILED"),
        (PySparkException("no such thing", errorClass="UNRESOLVED_COLUMN", messageParameters={}), "UNRESOLVED_COLUMN"),
    ],
)
def test_an_error_of_spark_is_told_as_ours(error, condition):
    with pytest.raises(StreamhouseError, match="no such thing") as told, translate_spark_errors():
        raise error
    assert told.value.condition == condition


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (RefreshReport(changed=False), "gold.v is up to date\n"),
        (
            RefreshReport(changed=True, rows_written=1200, rows_deleted=1, steps=1),
            "gold.v: 1,200 rows written, 1 deleted\n",
        ),
        (
            RefreshReport(changed=True, rows_written=2, whole_because="[it] is new", steps=3),
            "gold.v: 2 rows written, 0 deleted in 3 steps; the whole query was computed: [it] is new\n",
        ),
    ],
)
def test_what_a_refresh_tells(report, text, capsys):
    spark_commands._print_refresh(Session(), "gold.v", report)
    assert capsys.readouterr().out == text
    spark_commands._print_refresh(Session(format="json"), "gold.v", report)
    told = json.loads(capsys.readouterr().out)
    assert told == {"view": "gold.v", **{name: getattr(report, name) for name in told if name != "view"}}
    assert {"changed", "rows_written", "rows_deleted", "whole_because", "steps"} < told.keys()


def test_pausing_loads_no_spark(warehouse, warehouse_path):
    make_view(warehouse)
    code = (
        "import sys; from click.testing import CliRunner; from streamhouse_spark.cli.app import streamhouse\n"
        f"assert CliRunner().invoke(streamhouse, ['-w', {warehouse_path!r}, 'pause', 'gold.v']).exit_code == 0\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('pyspark', 'py4j', 'sqlglot'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.spark
@pytest.mark.long
def test_a_view_is_refreshed_by_hand(warehouse, warehouse_path):
    """A process of its own: the session of the tests has another catalog."""
    view, source = make_view(warehouse), warehouse.create_table("t", "id BIGINT")
    source.append([{"id": 1}, {"id": 2}])
    program = "from streamhouse_spark.cli.app import main; main()"

    def call(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-c", program, "-w", warehouse_path, *words, "--master", "local[2]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        return done.stdout if not code else done.stderr

    assert call("refresh", "gold.v").startswith("gold.v: 2 rows written, 0 deleted; the whole query was computed: ")
    assert {row["twice"] for row in view.to_arrow().to_pylist()} == {2, 4}
    warehouse.drop_table("t")
    assert "\nTABLE_NOT_FOUND: " in call("refresh", "gold.v", code=1), "a line behind those of the JVM"
