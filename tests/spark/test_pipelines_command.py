"""The command `spark-pipelines` as users run it: it starts Spark itself, with the jar and the catalog of the spec."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import pipelines

from doc_pages import ROOT
from streamhouse_spark import Warehouse
from streamhouse_spark.datasource.catalog.jar import jar_path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(pipelines, "create_auto_cdc_flow"), reason="the example has AUTO CDC, of Spark 4.2"),
]
EXAMPLE = ROOT / "examples/pipeline"
COMMAND = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"


@pytest.fixture
def project(tmp_path) -> Path:
    """The example, with its files in a folder of the test, and a first few events."""
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder)
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text().replace("/tmp/streamhouse-pipeline", str(folder))
    spec.write_text(text.replace("configuration:\n", 'configuration:\n  spark.sql.shuffle.partitions: "2"\n'))
    _events(folder, "append")
    return folder


def _events(folder: Path, command: str) -> str:
    script = [sys.executable, str(folder / "events.py"), command, str(folder / "warehouse")]
    return subprocess.run(script, capture_output=True, text=True, check=True).stdout


def _run(folder: Path, *words: str) -> None:
    own = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "MASTER", "SPARK_HOME")
    env = {key: value for key, value in os.environ.items() if key not in own}
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"  # that of an environment that is active
    done = subprocess.run(
        [str(COMMAND), *words, "--jars", str(jar_path()), "--spec", str(folder / "spark-pipeline.yml")],
        cwd=folder,
        env={**env, "PATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def port() -> None:
    """The command's own server listens at a fixed port, which another one on this machine may have."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", 15_002))
        except OSError:
            pytest.skip("another Spark Connect server has port 15002")


@pytest.mark.usefixtures("port")
def test_the_example_is_checked_and_run_twice(project):
    warehouse = Warehouse(str(project / "warehouse"))
    before = warehouse.tables()
    _run(project, "dry-run")
    assert warehouse.tables() == before, "a dry run writes nothing"

    _run(project, "run")
    shown = ["silver: [(1, 'ann', 10.0), (2, 'bob', 20.0)]", "gold: [('ann', 1, 10.0), ('bob', 1, 20.0)]"]
    assert _events(project, "show").splitlines()[1:] == shown
    _events(project, "append")
    _run(project, "run")
    assert _events(project, "show").splitlines()[1:] == ["silver: [(1, 'ann', 12.5)]", "gold: [('ann', 1, 12.5)]"]
