"""A log that a reader in real-time mode follows: Python plans it as it did, and reads of it what Java has to read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from golden.follow import FOLDER, case, planned
from streamhouse_spark.core.warehouse_layout import parse_number
from streamhouse_spark.datasource.realtime.planning import ALLOWED_ACTIONS
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.log.record import GROUP_VERSION

pytestmark = pytest.mark.always

CASES = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
NAMES = [one["name"] for one in CASES]


@pytest.fixture
def begun(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    """The warehouse of a case, as it was when the batch began, and the case."""
    one = request.param
    folder = tmp_path / Path(one["warehouse"]).parent.name / "warehouse"
    shutil.copytree(FOLDER.parent / one["warehouse"], folder)
    for path in (folder / one["task"]["folder"] / "commits").iterdir():
        if parse_number(path.name) >= one["task"]["next"]:
            path.unlink()
    return folder, one


@pytest.mark.parametrize("begun", CASES, ids=NAMES, indirect=True)
def test_a_batch_begins_as_it_did(begun):
    folder, one = begun
    assert json.loads(json.dumps(planned(folder, one["name"]))) == {n: one[n] for n in ("schema", "task")}


@pytest.mark.parametrize("one", CASES, ids=NAMES)
def test_micro_batches_read_the_rows_that_java_reads(one):
    plan = {name: one[name] for name in ("schema", "task")}
    found = case(FOLDER.parent / one["warehouse"], one["name"], plan, one["last"])
    assert found == one
    assert found["rows"]


def test_every_form_of_a_record_is_followed():
    one = CASES[0]
    records = [
        decode_frame("commit", path.read_bytes(), path.name, newest=GROUP_VERSION)
        for path in sorted((FOLDER.parent / one["warehouse"] / one["task"]["folder"] / "commits").iterdir())
    ][one["task"]["next"] - 1 :]
    kinds = {action["type"] for record in records for action in record.header.get("actions", ())}
    assert kinds >= {"append", "append-parts", "replace", "properties", "consumer", "truncate"}
    assert kinds - set(ALLOWED_ACTIONS) == {"truncate"}
    assert any("manifest" in record.header for record in records)
    assert any("members" in record.header for record in records)
