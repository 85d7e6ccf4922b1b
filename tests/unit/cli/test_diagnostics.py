from __future__ import annotations

import shutil
import stat
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import streamhouse_spark as sh
from streamhouse_spark import StorageError
from streamhouse_spark.cli import diagnostics
from streamhouse_spark.cli.diagnostics import Java, KeyCache, WorkerPython
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import PUBLICATIONS
from streamhouse_spark.kv.lmdb.environment import Environment
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.table.status import TableHealth, table_health
from streamhouse_spark.table.versioning import publication
from streamhouse_spark.table.versioning.branches import end_branch_log, find_incomplete_branches

DAY_MS = 86_400_000


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("version", "level"),
    [((3, 10), "fail"), ((3, 11), "ok"), ((3, 14), "ok"), ((3, 15), "fail")],
)
def test_doctor_accepts_supported_python_versions_only(version, level):
    assert diagnostics.check_python(version).level == level


@pytest.mark.parametrize(("version", "level"), [(None, "fail"), (8, "fail"), (11, "fail"), (17, "ok"), (25, "ok")])
def test_doctor_advises_to_install_a_supported_java(version, level):
    finding = diagnostics.check_java(Java("/bin/java", "PATH", version), "Linux", {"ID": "ubuntu"})
    assert finding.level == level
    assert ("openjdk-17-jre-headless" in finding.remedy) is (level == "fail")


def test_an_old_java_in_java_home_has_to_be_replaced_there():
    finding = diagnostics.check_java(Java("/opt/8/bin/java", "JAVA_HOME", 8), "Linux", {"ID": "fedora"})
    assert "set JAVA_HOME to it" in finding.remedy


@pytest.mark.parametrize(
    ("system", "release", "command"),
    [
        ("Linux", {"ID": "debian", "VERSION_ID": "12"}, "sudo apt-get install openjdk-17-jre-headless"),
        ("Linux", {"ID": "debian", "VERSION_ID": "13"}, "sudo apt-get install openjdk-21-jre-headless"),
        ("Linux", {"ID": "ubuntu", "VERSION_ID": "24.04"}, "sudo apt-get install openjdk-17-jre-headless"),
        ("Linux", {"ID": "mint", "ID_LIKE": "ubuntu debian"}, "sudo apt-get install openjdk-17-jre-headless"),
        ("Linux", {"ID": "fedora"}, "sudo dnf install java-21-openjdk-headless"),
        ("Linux", {"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "sudo dnf install java-21-openjdk-headless"),
        ("Darwin", {}, "brew install openjdk@21"),
        ("Linux", {"ID": "void"}, "adoptium.net"),
    ],
)
def test_the_install_command_fits_the_system(system, release, command):
    assert command in diagnostics.java_install_command(system, release)


def test_finds_java_of_java_home_before_the_path(tmp_path):
    home = tmp_path / "jdk"
    script(home / "bin" / "java", "echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")
    script(tmp_path / "bin" / "java", "echo 'java version \"1.8.0_402\"' >&2")
    environ = {"JAVA_HOME": str(home), "PATH": str(tmp_path / "bin")}
    assert diagnostics.find_java(environ) == Java(str(home / "bin" / "java"), "JAVA_HOME", 21)
    assert diagnostics.find_java({"PATH": environ["PATH"]}) == Java("java", "PATH", 8)
    assert diagnostics.find_java({"PATH": str(tmp_path)}) == Java("java", "PATH", None)


@pytest.mark.parametrize(
    ("name", "version", "required", "level"),
    [
        ("pyarrow", "19.0.1", ">=18,<20,!=19.0.0", "ok"),
        ("pyarrow", "19.0.0", ">=18,<20,!=19.0.0", "fail"),
        ("pyarrow", "20.0.0", ">=18,<20,!=19.0.0", "fail"),
        ("pyarrow", None, ">=18", "fail"),
        ("pyspark", "4.1.4", ">=4.1,<4.4", "ok"),
        ("pyspark", "4.0.2", ">=4.1,<4.4", "fail"),
        ("pyspark", "4.4.0.dev1", ">=4.1,<4.4", "fail"),
        ("pyspark", None, ">=4.1,<4.4", "warn"),
    ],
)
def test_doctor_checks_the_versions_of_libraries(name, version, required, level):
    assert diagnostics.check_distribution(name, version, required).level == level


@pytest.mark.parametrize(
    ("version", "required", "inside"),
    [
        ("1.2", "", True),
        ("1.2", "==1.2.0", True),
        ("1.2.3", "~=1.2", True),
        ("2.0", "~=1.2", False),
        ("1.2", ">1.2", False),
        ("1.2", "<=1.2", True),
        ("1.2", "is odd", False),
    ],
)
def test_version_ranges_include_and_exclude_their_bounds(version, required, inside):
    assert diagnostics.is_in_range(version, required) is inside


def test_the_ranges_are_those_of_the_installed_package():
    installed = diagnostics.installed_versions()
    required = diagnostics.read_requirements(installed)
    assert set(required) == {*diagnostics._EXTRAS, "numpy", "pyarrow"}
    assert ("!=19.0.0" in required["pyarrow"]) == ("pypaimon" in installed)
    for name, version in installed.items():
        assert diagnostics.check_distribution(name, version, required[name]).level == "ok"


def test_what_paimon_asks_of_pyarrow_counts_where_paimon_is():
    lines = [
        "numpy>=1.26",
        "pyarrow>=18",
        "pyspark<4.4,>=4.1; extra == 'spark'",
        "pyspark[connect]<4.4,>=4.1; extra == 'dev'",
        "pypaimon<2.2,>=2.1; extra == 'paimon'",
        "pyarrow!=19.0.0,<20,>=18; extra == 'paimon'",
    ]
    without = diagnostics.parse_requirements(lines, {"pyarrow": "26.0.1", "pyspark": "4.3.0"})
    beside = diagnostics.parse_requirements(lines, {"pyarrow": "26.0.1", "pypaimon": "2.1.0"})
    assert without == {
        "numpy": ">=1.26",
        "pyarrow": ">=18",
        "pyspark": "<4.4,>=4.1",
        "pypaimon": "<2.2,>=2.1",
    }
    assert diagnostics.check_distribution("pyarrow", "26.0.1", without["pyarrow"]).level == "ok"
    assert diagnostics.check_distribution("pyarrow", "26.0.1", beside["pyarrow"]).level == "fail"
    assert diagnostics.check_distribution("pyarrow", "19.0.1", beside["pyarrow"]).level == "ok"


@pytest.mark.parametrize(
    ("worker", "level", "found"),
    [
        (WorkerPython("python3", "3.11", has_package=True), "ok", "3.11 at python3"),
        (WorkerPython("python3", "3.9", has_package=True), "fail", "python3 is Python 3.9, the driver is 3.11"),
        (WorkerPython("python3", "3.11", has_package=False), "fail", "does not have streamhouse-spark"),
        (WorkerPython("python3", None, has_package=False), "fail", "does not run"),
    ],
)
def test_doctor_compares_the_python_of_workers(worker, level, found):
    finding = diagnostics.check_worker_python(worker, (3, 11))
    assert finding.level == level
    assert found in finding.found
    assert ("PYSPARK_PYTHON" in finding.remedy) is (level == "fail")


def test_doctor_names_the_jar_that_reads_lake_files(tmp_path):
    jars = ["hadoop-client-api-3.4.2.jar", "hadoop-client-runtime-3.4.2.jar"]
    [lacking] = diagnostics.check_lake_reader("s3://bucket/wh", jars)
    assert lacking.level == "warn"
    assert lacking.remedy == "start Spark with the file system: add --packages org.apache.hadoop:hadoop-aws:3.4.2"
    [there] = diagnostics.check_lake_reader("s3a://bucket/wh", [*jars, "hadoop-aws-3.4.2.jar"])
    assert (there.level, there.found) == ("ok", "Spark, over s3a, with hadoop-aws-3.4.2.jar")
    assert (
        list(diagnostics.check_lake_reader(str(tmp_path), jars)) == list(diagnostics.check_lake_reader("", jars)) == []
    )


def test_finds_the_jars_of_spark(tmp_path):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-aws-3.4.2.jar").touch()
    assert diagnostics.spark_jars({"SPARK_HOME": str(tmp_path)}) == ["hadoop-aws-3.4.2.jar"]
    assert any(name.startswith("hadoop-client-api-") for name in diagnostics.spark_jars({}))


def test_finds_the_python_of_workers(tmp_path):
    version = "{}.{}".format(*sys.version_info[:2])
    assert diagnostics.find_worker_python({"PYSPARK_PYTHON": sys.executable}) == WorkerPython(
        sys.executable, version, True
    )
    script(tmp_path / "python3", "exit 1")
    assert diagnostics.find_worker_python({"PATH": str(tmp_path)}) == WorkerPython("python3", None, False)


@pytest.mark.parametrize(
    ("ahead_ms", "level"),
    [(0, "ok"), (-29_000, "ok"), (31_000, "warn"), (-240_000, "warn"), (301_000, "fail")],
)
def test_doctor_warns_of_a_wrong_clock(ahead_ms, level):
    assert diagnostics.check_clock(ahead_ms).level == level


@pytest.mark.parametrize(("free_bytes", "level"), [(50 << 20, "fail"), (1 << 30, "warn"), (1 << 40, "ok")])
def test_doctor_warns_of_a_full_disk(free_bytes, level):
    assert diagnostics.check_disk(free_bytes, 1 << 40).level == level


GIB = 1 << 30
CACHE = KeyCache("/cache", 3, 2 * GIB, 10 * GIB, 50 * GIB, None, None)


@pytest.mark.parametrize(
    ("changed", "level", "found"),
    [
        ({}, "ok", "/cache: 3 tablets, 2.0 of at most 10.0 GiB, 50.0 GiB free"),
        ({"free_bytes": GIB}, "warn", "1.0 GiB free"),
        ({"free_bytes": 50 << 20}, "fail", "0.0 GiB free"),
        ({"network_fs": "nfs4 at /home"}, "fail", "/cache is on nfs4 at /home, and LMDB requires a local disk"),
        ({"failure": "Read-only file system"}, "fail", "/cache is not usable: Read-only file system"),
    ],
)
def test_doctor_reports_problems_of_the_key_cache(changed, level, found):
    finding = diagnostics.assess_key_cache(replace(CACHE, **changed))
    assert finding.level == level
    assert found in finding.found
    assert ("STREAMHOUSE_CACHE_DIR" in finding.remedy) is (level != "ok")


def test_the_key_cache_is_looked_at_and_left_as_it_is(own_cache, warehouse_path):
    assert diagnostics.find_key_cache().num_tablets == 0
    assert not own_cache.exists()
    table = sh.Warehouse(warehouse_path).create_table("t", "id bigint", primary_key=["id"], buckets=2)
    table.upsert([{"id": i} for i in range(10)])
    before = set(own_cache.rglob("*"))
    found = diagnostics.find_key_cache()
    assert set(own_cache.rglob("*")) == before
    assert (found.folder, found.num_tablets, found.failure) == (str(own_cache), 2, None)
    assert 0 < found.num_bytes < 1 << 20
    assert found.free_bytes == pytest.approx(shutil.disk_usage(own_cache).free, rel=0.1)


def test_a_key_cache_that_cannot_be(own_cache, monkeypatch):
    own_cache.write_text("a file")
    finding = diagnostics.check_key_cache()
    assert finding.level == "fail"
    assert f"{own_cache} is not usable: " in finding.found
    monkeypatch.setenv("STREAMHOUSE_CACHE_BYTES_MAX", "much")
    assert "STREAMHOUSE_CACHE_BYTES_MAX is 'much'" in diagnostics.check_key_cache().found


def test_doctor_fails_if_the_key_cache_has_no_place(own_cache, monkeypatch):
    monkeypatch.delenv("STREAMHOUSE_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    finding = diagnostics.check_key_cache()
    assert finding.level == "fail"
    assert "STREAMHOUSE_CACHE_DIR" in finding.found


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_key_cache_that_lmdb_cannot_write_to(own_cache, monkeypatch):
    def full(self, _action):
        raise StorageError("the local cache failed: No space left on device")

    monkeypatch.setattr(Environment, "write", full)
    assert "No space left" in diagnostics.check_key_cache().found
    assert list(own_cache.parent.iterdir()) == []


def test_doctor_changes_no_file_of_a_good_warehouse(warehouse_path):
    sh.Warehouse(warehouse_path).create_table("sales.orders", "id bigint").append([{"id": 1}])
    before = set(Path(warehouse_path).rglob("*"))
    findings = diagnostics.check_warehouse(warehouse_path, None, World())
    assert {finding.check for finding in findings} == {"warehouse", "put-if-absent", "clock", "disk"}
    assert {finding.level for finding in findings if finding.check != "disk"} == {"ok"}
    assert set(Path(warehouse_path).rglob("*")) == before


def test_an_absent_warehouse_is_not_made(warehouse_path):
    (finding,) = diagnostics.check_warehouse(warehouse_path, None, World())
    assert finding.level == "warn"
    assert "WAREHOUSE_NOT_FOUND" in finding.found
    assert not Path(warehouse_path).exists()


def test_a_location_that_cannot_be(warehouse_path):
    (finding,) = diagnostics.check_warehouse("ftp://host/wh", None, World())
    assert finding.level == "fail"
    (finding,) = diagnostics.check_warehouse(None, None, World())
    assert finding.level == "warn"
    assert "--warehouse" in finding.remedy


def test_health_of_a_table_counts_waiting_rows_and_files(warehouse_path):
    table = sh.Warehouse(warehouse_path).create_table("sales.orders", "id bigint")
    table.append([{"id": 1}])
    state, properties = table.refresh(), table.properties
    now_ms = state.time_ms
    assert table_health(state, properties, now_ms + 1000) == TableHealth("sales.orders", 180_000, 1000, 0)
    assert not table_health(state, properties, now_ms + 1000).is_tiering_late
    late = table_health(state, properties, now_ms + DAY_MS)
    assert late.is_tiering_late
    (finding,) = diagnostics.check_table(late)
    assert finding.found == "rows have not been tiered for 1440 min, expected at most 3"


def test_rows_past_their_time_wait_for_maintenance(warehouse_path):
    properties = {"table.datalake.enabled": "false", "table.log.ttl": "1d"}
    table = sh.Warehouse(warehouse_path).create_table("sales.orders", "id bigint", properties=properties)
    table.append([{"id": 1}])
    health = table_health(table.refresh(), table.properties, table.state.time_ms + 5 * DAY_MS)
    assert health.undeleted_ms == 4 * DAY_MS
    (finding,) = diagnostics.check_table(health)
    assert finding.check == "maintenance of sales.orders"
    assert not table_health(table.state, table.properties, table.state.time_ms + GRACE_MS).is_maintenance_late


def branch_findings(warehouse_path, *, later_ms=DAY_MS):
    table = sh.Warehouse(warehouse_path).table("sales.orders")
    return list(
        diagnostics.check_branches(table.name, find_incomplete_branches(table), table.storage.now_ms() + later_ms)
    )


def test_doctor_reports_a_branch_whose_publication_died(warehouse_path, monkeypatch):
    table = sh.Warehouse(warehouse_path).create_table("sales.orders", "id bigint")
    table.create_branch("audit")
    table.create_branch("other")
    table.branch("audit").append([{"id": 1}])
    assert branch_findings(warehouse_path) == []
    with monkeypatch.context() as patched:
        patched.setattr(publication, "stage_branch_rows", lambda *_, **__: no_home())
        with pytest.raises(RuntimeError):
            table.fast_forward("audit")
    (finding,) = branch_findings(warehouse_path)
    assert finding.check == "branch audit of sales.orders"
    assert "not published" in finding.found
    assert "streamhouse publish-branch sales.orders audit" in finding.remedy
    assert branch_findings(warehouse_path, later_ms=0) == [], "somebody may just be about to end it"
    with monkeypatch.context() as patched:
        patched.setattr(publication, "end_branch_log", lambda _: None)
        table.fast_forward("audit")
    (finding,) = branch_findings(warehouse_path)
    assert finding.found == "the branch was published, but its log has not ended"
    table.fast_forward("audit")
    assert "published" in branch_findings(warehouse_path)[0].found, "it was told that this was done"
    end_branch_log(CommitLog(table.storage, _uuid_of_published(table), table.world))
    assert branch_findings(warehouse_path) == []


def test_doctor_reports_a_branch_whose_dropping_died(warehouse_path):
    table = sh.Warehouse(warehouse_path).create_table("sales.orders", "id bigint")
    table.create_branch("audit")
    end_branch_log(table.branch("audit").log)
    (finding,) = branch_findings(warehouse_path)
    assert "the branch was dropped" in finding.found
    assert [f.check for f in diagnostics.check_warehouse(warehouse_path, None, World()) if f.level == "warn"] in (
        [],
        ["disk"],
    )
    table.drop_branch("audit")
    assert branch_findings(warehouse_path) == []


def _uuid_of_published(table) -> str:
    (app_id,) = [one for one in table.refresh().transactions if one.startswith(PUBLICATIONS)]
    return app_id.rpartition(".")[2]


def test_doctor_checks_the_environment_before_the_warehouse(warehouse_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    findings = diagnostics.run_doctor(warehouse_path)
    checks = [finding.check for finding in findings]
    assert checks[:2] == ["Python", "Java"]
    assert {"pyarrow", "worker Python", "cache of rows by key", "warehouse"} <= set(checks)
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    assert shutil.which("java") is None or findings[1].level == "ok"
