"""The servers of the benchmarks: their class paths and settings, and commands that end with their starter."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from benchmarks import server_processes
from benchmarks.server_clients import Ours, batch_of, columns_text
from benchmarks.server_processes import (
    class_path,
    fluss_settings,
    free_ports,
    kafka_settings,
    properties,
    running,
    yaml,
)

from kit.waiting import wait_for

ROOT = Path(__file__).parents[1]
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def maven(tmp_path, monkeypatch) -> list[Path]:
    """The poms that Maven was asked for; it answers with two jars that are there."""
    asked: list[Path] = []
    jars = [tmp_path / name for name in ("a.jar", "b.jar")]

    def run(command, *, check):
        asked.append(command[command.index("-f") + 1])
        for jar in jars:
            jar.touch()
        Path(command[-1].partition("=")[2]).write_text(":".join(map(str, jars)) + "\n")

    monkeypatch.setattr(server_processes.subprocess, "run", run)
    monkeypatch.setattr(server_processes.shutil, "which", lambda name: name)
    return asked


def test_a_class_path_is_asked_for_once(maven, tmp_path):
    folder = tmp_path / "servers"
    first, second = (class_path("kafka", folder) for _ in range(2))
    assert first == second == f"{tmp_path}/a.jar:{tmp_path}/b.jar"
    assert [pom.name for pom in maven] == ["kafka.xml"]


def test_a_class_path_whose_jar_is_gone_is_asked_for_again(maven, tmp_path):
    class_path("kafka", tmp_path)
    (tmp_path / "b.jar").unlink()
    class_path("kafka", tmp_path)
    assert len(maven) == 2


def test_without_maven_the_message_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(server_processes.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="mvn was not found"):
        class_path("kafka", tmp_path)


@pytest.mark.parametrize("name", ["kafka", "fluss-server", "fluss-client"])
def test_each_class_path_has_a_pom_with_one_version(name):
    text = (server_processes.JAVA_SOURCES / f"{name}.xml").read_text()
    assert text.count("<dependency>") == 2
    assert f"<artifactId>{'kafka_2.13' if name == 'kafka' else name}</artifactId><version>" in text


def test_free_ports_of_servers_differ():
    assert len(set(free_ports(5))) == 5


def test_settings_stay_on_loopback_and_in_their_folder():
    kafka = kafka_settings(Path("/x/data"), 1001, 1002)
    fluss = fluss_settings(Path("/x"), 1003, 1004)
    assert kafka["log.dirs"] == Path("/x/data")
    assert kafka["listeners"] == "PLAINTEXT://127.0.0.1:1001,CONTROLLER://127.0.0.1:1002"
    assert "log.dirs=/x/data\n" in properties(kafka)
    assert "data.dir: /x/data\nremote.data.dir: /x/remote\n" in yaml(fluss)
    assert "bind.listeners: FLUSS://127.0.0.1:1004\n" in yaml(fluss)


def test_a_running_command_ends_with_its_block(tmp_path):
    log = tmp_path / "log"
    family: list[psutil.Process] = []

    def interrupted() -> None:
        with running([sys.executable, "-c", SLEEPS], log) as process:
            wait_for(log.read_text, "the start of the command")
            family.extend([psutil.Process(process.pid), *psutil.Process(process.pid).children()])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(family) == 2
    assert not any(map(still_runs, family))


def test_a_running_command_ends_with_a_process_that_is_killed(tmp_path):
    log = tmp_path / "log"
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom benchmarks.server_processes import running\n"
        f"with running([sys.executable, '-c', {SLEEPS!r}], Path({str(log)!r})):\n    time.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    wait_for(lambda: log.exists() and log.read_text(), "the start of the command")
    family = psutil.Process(starter.pid).children(recursive=True)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    assert len(family) == 2
    wait_for(lambda: not any(map(still_runs, family)), "the end of the command")


def still_runs(process: psutil.Process) -> bool:
    """Whether it still runs; one that nobody waited for does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_columns_are_told_to_java_by_their_types():
    schema = pa.schema([("a", pa.int64()), ("b", pa.decimal128(15, 2)), ("c", pa.date32()), ("d", pa.string())])
    assert columns_text(schema) == "a BIGINT;b DECIMAL;c DATE;d STRING"


def test_batches_go_round_the_rows():
    rows = pa.table({"a": range(2500)})
    assert [batch_of(rows, number)["a"][0].as_py() for number in range(3)] == [0, 1000, 499]


@pytest.mark.parametrize("waits", [False, True])
def test_ours_writes_each_batch_of_each_writer(tmp_path, waits):
    ours = Ours(tmp_path, pa.table({"a": range(1500)}))
    ours.create("crew")
    ours.append_by("crew", 2, 3, waits=waits)
    written = ours._table("crew").to_arrow()
    assert written.num_rows == 7 * 1000  # one to begin with
    assert ours.log_bytes("crew") > 0
