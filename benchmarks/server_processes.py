"""Kafka and Fluss on loopback: jars by Maven, settings, processes that are started and always ended.

A server runs under ``guarded.py``, so that it ends with this process, however that ends.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

JAVA_SOURCES = Path(__file__).parent / "java"
GUARD = Path(__file__).parent / "guarded.py"
START_SECONDS = 120
OPENS = ["--add-opens=java.base/java.nio=ALL-UNNAMED", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
KAFKA_CLUSTER = "AAAAAAAAQACAAAAAAAAAAA"
ZOOKEEPER_MAIN = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain"


def class_path(name: str, folder: Path) -> str:
    """The jars of ``java/NAME.xml`` with all they need: fetched by Maven once, then remembered in ``folder``."""
    pom = JAVA_SOURCES / f"{name}.xml"
    known = folder / f"{name}.classpath"
    if not _is_usable(known, pom):
        if shutil.which("mvn") is None:
            raise SystemExit("mvn was not found, which fetches Kafka and Fluss: install Maven (Debian, Ubuntu: maven)")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mvn", "-q", "-B", "-f", pom, "dependency:build-classpath", f"-Dmdep.outputFile={known.resolve()}"]
        subprocess.run(command, check=True)
    return known.read_text().strip()


def _is_usable(known: Path, pom: Path) -> bool:
    """Whether it is younger than its pom, and its jars still lie where they lay."""
    if not known.exists() or known.stat().st_mtime < pom.stat().st_mtime:
        return False
    return all(Path(jar).exists() for jar in known.read_text().strip().split(":"))


def compiled_driver(folder: Path) -> str:
    """The class path of the driver of Fluss's Java client, which javac compiles where it is older than its source."""
    jars = class_path("fluss-client", folder)
    source, built = JAVA_SOURCES / "FlussDriver.java", folder / "FlussDriver.class"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["javac", "-d", folder, "-cp", jars, source], check=True)
    return f"{folder}:{jars}"


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def properties(settings: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def yaml(settings: Mapping[str, object]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in settings.items())


def kafka_settings(data: Path, broker: int, controller: int) -> dict[str, object]:
    """One broker that is its own controller. All else is as Kafka has it: no fsync before an answer."""
    listeners = f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}"
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
    }


def fluss_settings(folder: Path, zookeeper: int, port: int) -> dict[str, object]:
    """A coordinator or a tablet server, without copies elsewhere. All else is as Fluss has it: no fsync."""
    return {
        "zookeeper.address": f"127.0.0.1:{zookeeper}",
        "bind.listeners": f"FLUSS://127.0.0.1:{port}",
        "default.bucket.number": 1,
        "default.replication.factor": 1,
        "data.dir": folder / "data",
        "remote.data.dir": folder / "remote",
        "tablet-server.id": 0,
    }


@contextmanager
def running(command: Sequence[object], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that ends with the block, and with this process at the latest."""
    guard = [sys.executable, "-I", "-S", str(GUARD), *map(str, command)]
    with log.open("ab") as file:
        process = subprocess.Popen(guard, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


@contextmanager
def running_kafka(folder: Path, jars: Path) -> Iterator[str]:
    """A broker with data of its own; its address, where it will answer soon."""
    broker, controller = free_ports(2)
    path, settings = class_path("kafka", jars), folder / "kafka.properties"
    settings.write_text(properties(kafka_settings(folder / "data", broker, controller)))
    java = ["java", "-Xmx1g", *OPENS, "-cp", path]
    with (folder / "format.log").open("wb") as log:
        words = ["kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER, "--standalone", "-c", settings]
        subprocess.run([*java, *words], check=True, stdout=log, stderr=log)
    with running([*java, "kafka.Kafka", settings], folder / "kafka.log") as process:
        wait_until_open(broker, process, folder / "kafka.log")
        yield f"127.0.0.1:{broker}"


@contextmanager
def running_fluss(folder: Path, jars: Path) -> Iterator[str]:
    """ZooKeeper, a coordinator and a tablet server; the coordinator's address."""
    zookeeper, *ports = free_ports(3)
    path = class_path("fluss-server", jars)
    keeper = folder / "zookeeper.properties"
    keeper.write_text(
        properties(
            {
                "dataDir": folder / "zookeeper",
                "clientPort": zookeeper,
                "clientPortAddress": "127.0.0.1",
                "admin.enableServer": "false",
            }
        )
    )
    with ExitStack() as stack:

        def start(name: str, port: int, heap: str, main: str, *arguments: object) -> None:
            log = folder / f"{name}.log"
            java = ["java", f"-Xmx{heap}", *OPENS, "-cp", path, main, *arguments]
            wait_until_open(port, stack.enter_context(running(java, log)), log)

        start("zookeeper", zookeeper, "128m", ZOOKEEPER_MAIN, keeper)
        for name, port, heap, main in (
            ("coordinator", ports[0], "512m", "org.apache.fluss.server.coordinator.CoordinatorServer"),
            ("tablet", ports[1], "2g", "org.apache.fluss.server.tablet.TabletServer"),
        ):
            configuration = folder / name
            configuration.mkdir()
            (configuration / "server.yaml").write_text(yaml(fluss_settings(folder, zookeeper, port)))
            start(name, port, heap, main, "--configDir", configuration)
        yield f"127.0.0.1:{ports[0]}"


def wait_until_open(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"no server answers at port {port}; its log ends with:\n{log.read_text()[-2000:]}")
