"""``streamhouse tier`` as a service: a process that answers probes and ends at SIGTERM."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import streamhouse_spark as sh
from waiting import wait_for


def test_the_service_answers_probes_and_ends_at_sigterm(tmp_path):
    table = sh.Warehouse(str(tmp_path / "wh")).create_table(
        "t", "id INT", properties={"table.datalake.freshness": "1s"}
    )
    table.append([{"id": 1}])
    command = [str(Path(sys.executable).with_name("streamhouse")), "-w", str(tmp_path / "wh"), "tier", "--listen", "0"]
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
    assert "default.t: 1 rows" in (tmp_path / "err").read_text()


def metric(url: str, name: str) -> float | None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=240) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), None)
