"""Clients whose clock is hours off: they read as others do, or are told that it is the clock; they write nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit.tables import tier
from streamhouse_spark import Warehouse

pytestmark = pytest.mark.stores

SOURCE = Path(__file__).with_name("shifted_clock.c")
HOURS = 3
BOUND_SECONDS = 60


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that shifts the clock of the processes that it is preloaded into."""
    made = tmp_path_factory.mktemp("clock") / "shifted_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE)], check=True)
    return made


@pytest.mark.parametrize("hours", [HOURS, -HOURS], ids=["ahead", "behind"])
def test_a_client_whose_clock_is_hours_off(server, library, hours):
    url = server.new_url()
    warehouse = Warehouse(url, server.settings)
    table = warehouse.create_table("t", "id BIGINT", properties={"table.log.ttl": "1h"})
    table.append([{"id": 1}])
    tier(table)
    table.append([{"id": 2}])
    shifted = {"LD_PRELOAD": str(library), "CLOCK_SHIFT_SECONDS": str(hours * 3600)}
    command = [sys.executable, "-m", "stores.shifted_client", json.dumps([url, dict(server.settings)])]
    environment = os.environ | shifted | {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert abs(told["clock"] - time.time() - hours * 3600) < 600, "the client's clock is off"
    print({name: about.get("error", about.get("found")) for name, about in told.items() if name != "clock"})  # noqa: T201
    read = told["read"]
    assert read.get("found") == [1, 2] or "clock" in read["error"], read
    word = "ahead of" if hours > 0 else "behind"
    for name in ("create", "append", "tier"):
        error = told[name].get("error", "")
        assert re.search(rf"clock is \d+ seconds {word} the store's.*NTP|this machine's clock is wrong", error), told[
            name
        ]
        assert told[name]["seconds"] < BOUND_SECONDS
        assert "COMMIT_STATE_UNKNOWN" not in error or "cannot be read back" in error, "nothing was sent"
    table.append([{"id": 4}])
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 4]
    assert not any("t2" in name for name in warehouse.tables())
