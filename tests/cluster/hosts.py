"""Hosts that share nothing but the network and what is installed: each has a disk of its own, in a mount namespace.

The folder `Hosts.disk` is an empty disk in each of them: temporary files, Spark's work and the cache of rows by key lie
there, and the home directory, which cannot be written. Linux alone; without root, user namespaces must be allowed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pyspark

from kit.network import free_port
from kit.waiting import wait_for

_MOUNTED = """
set -e
mount -t tmpfs tmpfs "$DISK"
mkdir "$DISK/home" "$DISK/tmp" "$DISK/work"
mount -t tmpfs -o ro tmpfs "$DISK/home"
cd "$DISK/work"
exec "$@"
"""
EXECUTOR = "CoarseGrainedExecutorBackend"
CLASS = "org.apache.spark.deploy"
WORKERS = {"worker-1": "127.0.0.2", "worker-2": "127.0.0.3"}
"""Executors of one address would read each other's shuffle files from the disk."""


@dataclass
class Hosts:
    """A standalone cluster: a master, and a worker of one core on each of two hosts. Drivers get hosts of their own."""

    folder: Path
    env: Mapping[str, str]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    master_port: int = 0

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.master_port}"

    def start(self) -> None:
        assert shutil.which("unshare"), "hosts of their own need `unshare`, of util-linux"
        self.disk.mkdir()
        self.master_port = free_port()
        spark_class = [f"{_spark_home()}/bin/spark-class"]
        at = ["--webui-port", "0", "--host"]
        master = [f"{CLASS}.master.Master", *at, "127.0.0.1", "--port", str(self.master_port)]
        self._begin("master", [*spark_class, *master])
        wait_for(lambda: "I have been elected leader" in self.log("master"), "a master that is ready")
        for name, address in WORKERS.items():
            limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.disk / "work")]
            worker = [*spark_class, f"{CLASS}.worker.Worker", *at, address, *limits, self.master]
            self.workers.append(self._begin(name, worker, address))
        for name in WORKERS:
            wait_for(lambda name=name: "Successfully registered" in self.log(name), f"{name} to join")  # type: ignore[misc]

    def driver(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a driver on a host of its own, with an empty disk. Its output is `log` of the name."""
        return self._begin(name, command)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def executors(self) -> list[int]:
        """The executors of all workers, by their process numbers."""
        parents = {worker.pid for worker in self.workers}
        return [pid for pid, parent, command in _processes() if EXECUTOR in command and parent in parents]

    def kill_driver(self, driver: subprocess.Popen[bytes]) -> None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    def stop(self) -> None:
        for process in reversed(self.running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _begin(self, name: str, command: Sequence[str], address: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        unshare = ["unshare", "--mount", "--propagation", "private", *as_root, "sh", "-c", _MOUNTED, "sh"]
        log: IO[bytes]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*unshare, *command],
                env={**self._environment(), "SPARK_LOCAL_IP": address},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STREAMHOUSE_")}
        own = {
            "DISK": str(self.disk),
            "HOME": str(self.disk / "home"),
            "TMPDIR": str(self.disk / "tmp"),
            "SPARK_LOCAL_DIRS": str(self.disk / "tmp"),
            "SPARK_HOME": _spark_home(),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={self.disk / 'tmp'} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        return {**inherited, **own, **self.env}


def _spark_home() -> str:
    return str(Path(pyspark.__file__).parent)


def _processes() -> list[tuple[int, int, str]]:
    """Number, parent and command line of each process that is there."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append((int(path.name), parent, command))
    return found
