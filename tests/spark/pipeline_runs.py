"""Declarative pipelines in tests: one Spark Connect server, and the command that users run against it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

_SERVER = """
import sys
from pyspark.sql import SparkSession
import streamhouse_spark as sh
port, warehouse, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
builder = builder.config("spark.connect.grpc.binding.port", port).config("spark.log.level", "ERROR")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.warehouse.dir", folder)
sh.configure(builder, warehouse=warehouse).getOrCreate()
print("ready", flush=True)
sys.stdin.read()
"""
_SPEC = """
name: tests
storage: file://{folder}/storage
catalog: streamhouse
database: d
configuration:
  spark.sql.pipelines.execution.maxConcurrentFlows: "2"
  spark.sql.pipelines.maxFlowRetryAttempts: "0"
libraries:
  - glob:
      include: transformations/**
"""


@dataclass(frozen=True)
class Done:
    """A run that ended."""

    code: int
    said: str


@dataclass(frozen=True)
class Runner:
    """Runs pipelines in a server."""

    folder: Path
    port: int

    @property
    def warehouse(self) -> str:
        """The warehouse of the server's catalog ``streamhouse``."""
        return str(self.folder / "warehouse")

    def run(self, files: Mapping[str, str], *words: str, name: str = "project") -> Done:
        """Run the pipeline whose files these are."""
        project = self.folder / name
        transformations = project / "transformations"
        transformations.mkdir(parents=True, exist_ok=True)
        for old in transformations.iterdir():
            if old.is_file():
                old.unlink()
        for file, text in files.items():
            (transformations / file).write_text(text)
        spec = project / "spark-pipeline.yml"
        spec.write_text(_SPEC.format(folder=project))
        return self.run_spec(spec, *words)

    def run_spec(self, spec: Path, *words: str) -> Done:
        cli = Path(pyspark.__file__).parent / "pipelines/cli.py"
        env = {**os.environ, "SPARK_REMOTE": f"sc://127.0.0.1:{self.port}"}
        command = [sys.executable, str(cli), *words, "--spec", str(spec)]
        done = subprocess.run(command, cwd=spec.parent, env=env, capture_output=True, text=True, check=False)
        return Done(done.returncode, done.stdout + done.stderr)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(folder: Path) -> Iterator[Runner]:
    """Start a server with a warehouse in the folder. It ends with its input, and so with this process too."""
    runner = Runner(folder, _free_port())
    own = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "MASTER", "SPARK_HOME")
    env = {key: value for key, value in os.environ.items() if key not in own}
    command = [sys.executable, "-c", _SERVER, str(runner.port), runner.warehouse, str(folder / "spark-warehouse")]
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as it,
    ):
        assert it.stdin is not None
        assert it.stdout is not None
        assert it.stdout.readline() == "ready\n", (folder / "server.log").read_text()
        try:
            yield runner
        finally:
            it.stdin.close()
            it.wait(60)
