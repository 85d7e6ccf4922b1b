"""Flink on loopback, a cluster in one process with a small heap, and a client of its SQL gateway."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.own_process import installed, running
from kit.network import free_port

HEAP = "1536m"
CONFIG = """\
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {cluster}
rest.bind-port: "{cluster}"
jobmanager.rpc.address: 127.0.0.1
execution.target: remote
execution.runtime-mode: batch
parallelism.default: 2
table.dml-sync: true
taskmanager.memory.managed.size: 256m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
classloader.check-leaked-classloader: false
io.tmp.dirs: {folder}
sql-gateway.endpoint.rest.address: 127.0.0.1
sql-gateway.endpoint.rest.bind-address: 127.0.0.1
sql-gateway.endpoint.rest.port: {gateway}
sql-gateway.endpoint.rest.bind-port: "{gateway}"
"""
LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.stdout.ref = STDOUT
appender.stdout.type = Console
appender.stdout.name = STDOUT
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d %p %c - %m%n
"""
OPENED = ["lang", "lang.reflect", "net", "io", "nio", "text", "time"]
OPENED += ["util", "util.concurrent", "util.concurrent.atomic"]
"""Packages of `java` that Flink looks into, by its own settings."""
POLL_S = 0.02


class FlinkError(Exception):
    """The text of an error as clients of the gateway get it, with the stack."""


class Flink:
    """A session."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = ""

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows that a statement gives, once all of it is done."""
        if not self._session:
            self._session = self._asked("/v2/sessions", {"properties": {}})["sessionHandle"]
        session = f"/v2/sessions/{self._session}"
        operation = self._asked(f"{session}/statements", {"statement": sql})["operationHandle"]
        try:
            return self._rows(f"{session}/operations/{operation}/result/0?rowFormat=JSON")
        finally:
            self._asked(f"{session}/operations/{operation}/close", method="DELETE")

    def _rows(self, path: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        while True:
            answer = self._asked(path)
            if answer["resultType"] == "NOT_READY":
                time.sleep(POLL_S)
                continue
            rows += (tuple(row["fields"]) for row in answer["results"]["data"])
            if not answer.get("nextResultUri"):
                return rows
            path = answer["nextResultUri"]

    def add_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        settings = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.query(f"CREATE CATALOG {name} WITH ({settings})")

    def is_ready(self) -> bool:
        try:
            return bool(self._asked("/v2/info"))
        except (OSError, FlinkError):
            return False

    def _asked(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise FlinkError(error.read().decode(errors="replace")) from error


@contextmanager
def running_flink(folder: Path) -> Iterator[Flink]:
    """Start a cluster whose files are in an empty ``folder``. Nothing of it is left behind."""
    home = installed("flink")
    flink = Flink(f"http://127.0.0.1:{(gateway := free_port())}")
    (folder / "config.yaml").write_text(CONFIG.format(cluster=free_port(), gateway=gateway, folder=folder))
    (folder / "log4j.properties").write_text(LOGGING)
    jars = [*sorted(map(str, (home / "pyflink" / "lib").glob("*.jar"))), (home / "classpath").read_text().strip()]
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
    command = ["java", f"-Xmx{HEAP}", *opened, f"-Dlog4j.configurationFile={folder}/log4j.properties"]
    command += ["-cp", ":".join(jars), str(Path(__file__).with_name("FlinkCluster.java"))]
    with running(command, folder / "log", flink.is_ready, cwd=folder, environment={"FLINK_CONF_DIR": str(folder)}):
        yield flink
