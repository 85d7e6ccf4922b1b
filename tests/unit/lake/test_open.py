"""Each lake needs its own library and no other's."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
sys.modules[{blocked!r}] = None
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.tiering import TieringJob, run_tasks_locally
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
@pytest.mark.parametrize("is_own", [True, False])
def test_a_library_that_is_missing(tmp_path, lake, is_own):
    blocked = "pyiceberg" if (lake == "iceberg") == is_own else "pypaimon"
    script = SCRIPT.format(blocked=blocked, path=str(tmp_path / "wh"), lake=lake)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    if is_own:
        assert done.stdout.startswith("MissingExtraError")
        assert f"pip install 'streamhouse-spark[{lake}]'" in done.stdout
    else:
        assert done.stdout == "[{'id': 1}] 1\n", done.stderr
