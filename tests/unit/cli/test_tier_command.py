"""``streamhouse tier`` as a service: a process that answers probes and ends at SIGTERM."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import streamhouse_spark as sh
from kit.waiting import wait_for
from streamhouse_spark import StorageError
from streamhouse_spark.cli import diagnostics, tier_command
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.cli.output import Output
from streamhouse_spark.core.clock import World
from streamhouse_spark.views.refresh import RefreshReport
from streamhouse_spark.views.service import ViewStatus


def test_the_service_answers_probes_and_ends_at_sigterm(tmp_path):
    table = sh.Warehouse(str(tmp_path / "wh")).create_table(
        "t", "id INT", properties={"table.datalake.freshness": "1s"}
    )
    table.append([{"id": 1}])
    command = [str(Path(sys.executable).with_name("streamhouse")), "-w", str(tmp_path / "wh"), "tier", "--listen", "0"]
    command += ["--lineage", str(tmp_path / "events")]
    with (tmp_path / "err").open("w+") as err, subprocess.Popen(command, stdout=err, stderr=err, text=True) as service:
        try:
            told = lambda: re.search(r"listening at (http://127\.0\.0\.1:\d+)/metrics", (tmp_path / "err").read_text())  # noqa: E731
            wait_for(told, "the address")
            url = told()[1]
            wait_for(lambda: metric(url, 'streamhouse_tiering_rows_total{table="default.t"}') == 1, "the row")
            with urllib.request.urlopen(f"{url}/livez", timeout=240) as answer:
                assert answer.status == 200
            service.send_signal(signal.SIGTERM)
            assert service.wait(240) == 0
        finally:
            service.kill()
    assert "default.t: 1 row in 1 file into" in (tmp_path / "err").read_text()
    events = [json.loads(line)["eventType"] for line in (tmp_path / "events").read_text().splitlines()]
    assert events == ["START", "COMPLETE"]


def test_events_of_one_round_are_not_asked_for(tmp_path):
    sh.Warehouse(str(tmp_path / "wh")).create_table("t", "id INT")
    words = ["-w", str(tmp_path / "wh"), "tier", "--once", "--lineage", str(tmp_path / "events")]
    result = CliRunner().invoke(streamhouse, words)
    assert result.exit_code != 0
    assert "--lineage requires the service" in result.output
    assert not (tmp_path / "events").exists()


def test_views_are_refreshed_on_spark_by_the_service_alone(tmp_path):
    sh.Warehouse(str(tmp_path / "wh")).create_table("t", "id INT")
    for words, told in (
        (["--views"], "--views requires Spark, which runs the queries; add --master 'local[*]', or --spark"),
        (["--views", "--once", "--spark"], "--views requires the service; leave out --once"),
    ):
        result = CliRunner().invoke(streamhouse, ["-w", str(tmp_path / "wh"), "tier", *words])
        assert result.exit_code != 0
        assert told in result.output


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_printed_of_a_refresh(as_json, capsys):
    shown = []
    told = lambda view: tier_command._report_view(Output(as_json=as_json), shown.append, view)  # noqa: E731
    view = ViewStatus("gold.v", 1000, 0)
    told(replace(view, doing="refreshing", refreshing_ms=1))
    told(replace(view, last=RefreshReport(changed=False)))
    told(replace(view, doing="failed", error="no", last=RefreshReport(changed=True)))
    assert capsys.readouterr().out == ""
    told(replace(view, last=RefreshReport(True, 1200, 3, "mode is full"), last_duration_ms=40))
    assert shown == ["refresh gold.v", None, None, None]
    out = capsys.readouterr().out
    if as_json:
        whole = {"whole_because": "mode is full", "duration_ms": 40}
        assert json.loads(out) == {"view": "gold.v", "rows_written": 1200, "rows_deleted": 3, **whole}
    else:
        assert out == "gold.v: 1,200 rows written, 3 deleted, 40 ms\n"


def test_a_round_that_fails_is_noted_for_others(run, warehouse_path, monkeypatch):
    """Nobody may look at the output of a timer."""
    table = sh.Warehouse(warehouse_path).create_table("s.t", "id INT")
    table.append([{"id": 1}])

    def fail(_):
        raise StorageError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(tier_command, "tier_here", fail)
        run("tier", "--once", code=1)
    (noted,) = diagnostics.check_failed_rounds(table)
    assert (noted.check, noted.level) == ("tiering of s.t", "warn")
    assert "failed last" in noted.found
    assert "the store is away" in noted.found
    checks = [f.check for f in diagnostics.check_warehouse(warehouse_path, None, World())]
    assert "tiering of s.t" in checks
    run("tier", "--once")
    table.refresh()
    assert list(diagnostics.check_failed_rounds(table)) == []
    assert "it succeeded later" in " ".join(run("describe", "s.t").stdout.split())


def metric(url: str, name: str) -> float | None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=240) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), None)
