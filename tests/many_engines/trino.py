"""A server of Trino on loopback, whose catalogs `sh` and `shlake`, the lakes alone, are a server of ours.

`make serve-engines` fetches it from Maven.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S_MAX = 180
_JVM = ["-Xmx1200M", "-XX:+UseG1GC", "-Djdk.attach.allowAttachSelf=true", "-Dfile.encoding=UTF-8"]


@contextmanager
def running_trino(folder: Path, home: Path, iceberg: str) -> Iterator[str]:
    """Yield the address of a server whose catalog asks this one of Iceberg's protocol.

    `home` has Trino's `lib` and `plugin`, and `java`, the folder of a Java that is new enough.
    """
    own, port = folder / "trino", _free_port()
    for name, text in _settings(home, port, iceberg).items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    java = str(home / "java/bin/java")
    options = [*_JVM, "-Dconfig=etc/config.properties", "-Dnode.environment=test", "-Dnode.data-dir=data"]
    command = [java, *options, "-cp", f"{home}/lib/*", "io.trino.server.TrinoServer"]
    with (own / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=own, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
    try:
        _wait(process, own / "server.log", f"http://127.0.0.1:{port}/v1/info")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _settings(home: Path, port: int, iceberg: str) -> dict[str, str]:
    config = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": str(port),
        "node.bind-ip": "127.0.0.1",  # nothing on the network
        "node.internal-address": "127.0.0.1",
        "discovery.uri": f"http://127.0.0.1:{port}",
        "query.max-memory": "400MB",
        "query.max-memory-per-node": "400MB",
        "plugin.dir": str(home / "plugin"),
    }
    catalog = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": iceberg,
        "fs.hadoop.enabled": "true",
    }
    lake = {**catalog, "iceberg.rest-catalog.warehouse": "lake"}
    found = {
        "etc/config.properties": config,
        "etc/catalog/sh.properties": catalog,
        "etc/catalog/shlake.properties": lake,
    }
    return {name: _lines(properties) for name, properties in found.items()}


def _lines(properties: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _wait(process: subprocess.Popen[bytes], log: Path, info: str) -> None:
    end = time.monotonic() + START_S_MAX
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(info, timeout=5) as answer:
                if not json.load(answer)["starting"]:
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"Trino did not start: {log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
