"""Each lake needs its own library and no other's."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from faults.scenarios import NO_LAKE
from interop.paimon_cases import Stock
from kit.tables import tier
from streamhouse_spark import MissingExtraError
from streamhouse_spark.lake.tiering.job import TieringJob, run_task

DAY_MS = 24 * 3600 * 1000
SCRIPT = """
import sys
sys.modules[{blocked!r}] = None
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.tiering.job import (TieringJob, run_tasks_locally)
table = Warehouse({path!r}).create_table("a.t", "id bigint", properties={{"table.datalake.format": {lake!r}}})
table.append([{{"id": 1}}])
try:
    local = run_tasks_locally(table.storage, table.settings, table.world)
    TieringJob(table.log, table.open_lake(), world=table.world).run(local)
    print(table.lake.to_arrow().to_pylist(), table.to_arrow().num_rows)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
@pytest.mark.parametrize("is_own", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_library_that_is_missing(tmp_path, lake, is_own):
    blocked = "pyiceberg" if (lake == "iceberg") == is_own else "pypaimon"
    script = SCRIPT.format(blocked=blocked, path=str(tmp_path / "wh"), lake=lake)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True)
    if is_own:
        assert done.stdout.startswith("MissingExtraError")
        assert f"pip install 'streamhouse-spark[{lake}]'" in done.stdout
    else:
        assert done.stdout == "[{'id': 1}] 1\n", done.stderr


def _without_paimon(monkeypatch, module: str) -> None:
    """As if pypaimon were not there when the module is first needed."""
    monkeypatch.delitem(sys.modules, f"streamhouse_spark.lake.{module}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pypaimon"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "pypaimon", None)


@pytest.mark.paimon
@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
def test_an_executor_without_the_library_is_told_what_to_install(wh, monkeypatch, key):
    properties = {"table.datalake.format": "paimon"}
    table = wh.create_table("a.t", "id bigint not null, n bigint", primary_key=key, properties=properties)
    (table.upsert if key else table.append)([{"id": 1, "n": 1}])
    table.refresh()

    def elsewhere(tasks):
        _without_paimon(monkeypatch, "paimon.upsert" if key else "paimon.file_spec")
        return [run_task(table.storage, table.settings, table.world, task) for task in tasks]

    with pytest.raises(MissingExtraError, match=r"Paimon lake.*pypaimon.*pip install 'streamhouse-spark\[paimon\]'"):
        TieringJob(table.log, table.open_lake(), world=table.world).run(elsewhere)
    monkeypatch.undo()
    tier(table)
    assert table.lake.to_arrow().to_pylist() == [{"id": 1, "n": 1}]


@pytest.mark.paimon
def test_a_dropped_table_whose_library_is_missing_keeps_no_other(wh, tmp_path, clock, monkeypatch):
    Stock(wh.storage, tmp_path / "stock").make("a.adopted", pa.schema([("id", pa.int64())]), [{"id": 1}])
    wh.adopt_table("a.adopted")
    adopted = wh.table("a.adopted")
    others = [wh.create_table(f"a.t{i}", "id bigint", properties=NO_LAKE) for i in range(3)]
    for table in (adopted, *others):
        wh.drop_table(str(table.path))
    _without_paimon(monkeypatch, "paimon.adoption")
    for _ in range(4):
        clock.advance(2 * DAY_MS)
        report = wh.clean_dropped()
    assert list(report.skipped) == [adopted.uuid]
    assert "pip install 'streamhouse-spark[paimon]'" in report.skipped[adopted.uuid]
    keys = [info.key for info in wh.storage.list("tables/") if "/floors/" not in info.key]
    assert keys
    assert all(adopted.uuid in key for key in keys)
    monkeypatch.undo()
    assert not wh.clean_dropped().skipped
    assert wh.adopt_table("a.adopted")
