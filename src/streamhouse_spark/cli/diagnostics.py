"""Checks of this machine and of a warehouse, with remedies.

`run_doctor` runs all checks. Functions ``find_…`` examine the machine. Functions ``check_…`` assess what was found, and
can be tested on any machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from streamhouse_spark.config.spark_options import WAREHOUSE_VARIABLE
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.scan.file_systems import S3A, file_system_remedy, scheme_of
from streamhouse_spark.errors import StreamhouseError, WarehouseNotFoundError, count_of
from streamhouse_spark.kv.lmdb.environment import Environment
from streamhouse_spark.kv.lmdb.tablet_files import (
    CACHE_BYTES_VARIABLE,
    CACHE_DIR_VARIABLE,
    cache_bytes_max,
    cache_folder,
    list_cached_tablets,
)
from streamhouse_spark.log.catalog.log_locations import log_locations_of
from streamhouse_spark.log.tiering_failures import list_failures
from streamhouse_spark.storage.factory import network_file_system
from streamhouse_spark.table.status import TableHealth, table_health
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.versioning.branches import IncompleteBranch, find_incomplete_branches
from streamhouse_spark.warehouse.table_batch import open_listed
from streamhouse_spark.warehouse.warehouse import Warehouse

JAVA_MIN: Final = 17
PYTHON_MIN: Final = (3, 11)
PYTHON_END: Final = (3, 15)
DISTRIBUTION: Final = "streamhouse-spark"
SKEW_WARN_MS: Final = 30_000
SKEW_MAX_MS: Final = 5 * 60_000
"""Writers fail if their clock differs more from the store's clock."""
DISK_FREE_WARN_BYTES: Final = 2 << 30
DISK_FREE_MIN_BYTES: Final = 100 << 20
_RUN_SECONDS_MAX: Final = 60
_KEY_CACHE: Final = "cache of rows by key"
_CACHE_REMEDY: Final = f"set {CACHE_DIR_VARIABLE} to a writable folder on a local disk"
_LAKE_READER: Final = "reader of lake files in Spark"
_HADOOP_JAR: Final = re.compile(r"hadoop-client-api-(.+)\.jar")
_MESSAGE_REMEDY: Final = "follow the message"
_PUT_IF_ABSENT_WORKS: Final = "the store rejected a second write of an object"
_INCOMPLETE_MS_MAX: Final = 10 * 60_000
_INCOMPLETE_BRANCHES: Final = {
    "sealed": (
        "the branch is sealed and accepts no rows, but was not published",
        "streamhouse publish-branch {table} {name}, or streamhouse drop-branch {table} {name}",
    ),
    "dropped": (
        "the branch was dropped, but the table still references its files",
        "streamhouse drop-branch {table} {name}",
    ),
    "published": (
        "the branch was published, but its log has not ended",
        "run streamhouse maintain, which ends the log",
    ),
}
"""State of a branch → finding and remedy."""

_EXTRAS: Final = {
    "pyspark": "spark",
    "pandas": "spark",
    "pyiceberg": "iceberg",
    "pypaimon": "paimon",
    "s3fs": "s3",
    "google-auth": "gcs",
    "azure-storage-blob": "azure",
    "requests": "hdfs",
}
"""Optional distribution → the extra that installs it."""

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. The remedy is empty if the level is ``ok``."""

    check: str
    level: Level
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Java:
    """The Java that Spark would start."""

    command: str
    origin: str
    """``JAVA_HOME`` or ``PATH``."""
    version: int | None
    """Major version; None if Java does not exist or run."""


@dataclass(frozen=True, slots=True)
class WorkerPython:
    """The Python that Spark starts on workers."""

    command: str
    version: str | None
    """Version such as ``3.12``; None if it does not run."""
    has_package: bool


@dataclass(frozen=True, slots=True)
class KeyCache:
    """The folder in which this host caches rows by key."""

    folder: str
    num_tablets: int
    num_bytes: int
    """Bytes on disk of the tablets of the current boot."""
    bytes_max: int
    free_bytes: int
    network_fs: str | None
    """Type and mount point of the network file system of the folder, or None."""
    failure: str | None
    """The error of writing a tablet there, or None."""


def run_doctor(warehouse: str | None, settings: Mapping[str, str] | None = None) -> list[Finding]:
    """Check this machine, and the warehouse at a path or URL if it is not None.

    Writes and deletes a probe object in the warehouse, and a probe tablet in the cache of rows by key, or near its
    future location.
    """
    java, release = find_java(os.environ), os_release()
    installed = installed_versions()
    findings = [check_python(sys.version_info[:2]), check_java(java, platform.system(), release)]
    findings += [
        check_distribution(name, installed.get(name), required)
        for name, required in read_requirements(installed).items()
    ]
    if installed.get("pyspark"):
        findings.append(check_worker_python(find_worker_python(os.environ), sys.version_info[:2]))
        findings += check_lake_reader(warehouse or "", spark_jars(os.environ))
    findings += [check_key_cache(), *check_warehouse(warehouse, settings, World())]
    return findings


def check_python(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    if PYTHON_MIN <= version < PYTHON_END:
        return Finding("Python", "ok", text)
    return Finding("Python", "fail", text, "create the environment with Python 3.11, 3.12, 3.13 or 3.14")


def check_java(java: Java, system: str, release: Mapping[str, str]) -> Finding:
    install = java_install_command(system, release)
    if java.version is None:
        text = f"none: {java.command} (from {java.origin}) does not run"
        return Finding("Java", "fail", text, f"Spark requires Java {JAVA_MIN} or later: {install}")
    text = f"{java.version} at {java.command} (from {java.origin})"
    if java.version >= JAVA_MIN:
        return Finding("Java", "ok", text)
    hint = ", and set JAVA_HOME to it" if java.origin == "JAVA_HOME" else ""
    return Finding("Java", "fail", text, f"Spark requires Java {JAVA_MIN} or later: {install}{hint}")


def java_install_command(system: str, release: Mapping[str, str]) -> str:
    """Return the command that installs a suitable Java on this operating system."""
    if system == "Darwin":
        return "brew install openjdk@21, then export JAVA_HOME=$(brew --prefix openjdk@21)"
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    if family & {"debian", "ubuntu"}:
        is_new_debian = release.get("ID") == "debian" and release.get("VERSION_ID", "0").split(".")[0] >= "13"
        return f"sudo apt-get install openjdk-{21 if is_new_debian else 17}-jre-headless"
    if family & {"fedora", "rhel", "centos"}:
        return "sudo dnf install java-21-openjdk-headless"
    return "install OpenJDK 21 from your package manager, or from https://adoptium.net, and set JAVA_HOME"


def check_distribution(name: str, version: str | None, required: str) -> Finding:
    """Assess the version of a distribution against a range such as ``>=18,<20,!=19.0.0``.

    Optional distributions may be missing.
    """
    extra = _EXTRAS.get(name)
    install = f'pip install "{DISTRIBUTION}[{extra}]"' if extra else f'pip install "{name}{required}"'
    if version is None:
        return Finding(name, "warn" if extra else "fail", "not installed", f"if you use it: {install}")
    if is_in_range(version, required):
        return Finding(name, "ok", version)
    return Finding(name, "fail", f"{version}, expected {required}", install)


def check_worker_python(worker: WorkerPython, driver: tuple[int, ...]) -> Finding:
    """Assess the workers' Python, which must have the driver's minor version and this package."""
    name = "worker Python"
    same = f"export PYSPARK_PYTHON={sys.executable}"
    driver_version = ".".join(map(str, driver))
    if worker.version is None:
        return Finding(name, "fail", f"{worker.command} does not run", same)
    if worker.version != driver_version:
        text = f"{worker.command} is Python {worker.version}, the driver is {driver_version}"
        return Finding(name, "fail", text, same)
    if not worker.has_package:
        text = f"{worker.command} does not have {DISTRIBUTION}"
        return Finding(name, "fail", text, f"{same}, or install {DISTRIBUTION} there")
    return Finding(name, "ok", f"{worker.version} at {worker.command}")


def check_lake_reader(location: str, jars: Iterable[str]) -> Iterator[Finding]:
    """Assess by the names of Spark's jars whether Spark can read lake files. Sessions may add jars."""
    scheme = scheme_of(location)
    if scheme != S3A:
        return
    jars = tuple(jars)
    aws_jar = next((jar for jar in jars if jar.startswith("hadoop-aws-")), None)
    if aws_jar is not None:
        yield Finding(_LAKE_READER, "ok", f"Spark, over {scheme}, with {aws_jar}")
        return
    version = next((match[1] for jar in jars if (match := _HADOOP_JAR.fullmatch(jar))), None)
    slower = f"Python, which is slower, because Spark's jars have no file system {scheme}"
    yield Finding(
        _LAKE_READER, "warn", slower, f"start Spark with the file system: {file_system_remedy(scheme, version)}"
    )


def spark_jars(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the Hadoop jars in SPARK_HOME if it is set, else in PySpark."""
    homes = [environ["SPARK_HOME"]] if environ.get("SPARK_HOME") else list(_pyspark_folders())
    return sorted(path.name for home in homes for path in Path(home, "jars").glob("hadoop-*.jar"))


def _pyspark_folders() -> Iterable[str]:
    spec = importlib.util.find_spec("pyspark")
    return (spec.submodule_search_locations if spec is not None else None) or ()


def check_key_cache() -> Finding:
    """Check the cache of rows by key: LMDB must work there, on a local disk with free space."""
    try:
        return assess_key_cache(find_key_cache())
    except StreamhouseError as error:
        return Finding(_KEY_CACHE, "fail", str(error), _MESSAGE_REMEDY)
    except OSError as error:  # for example a home folder without permission
        return Finding(_KEY_CACHE, "fail", str(error), _CACHE_REMEDY)


def assess_key_cache(cache: KeyCache) -> Finding:
    if cache.network_fs is not None:
        text = f"{cache.folder} is on {cache.network_fs}, and LMDB requires a local disk"
        return Finding(_KEY_CACHE, "fail", text, _CACHE_REMEDY)
    if cache.failure is not None:
        return Finding(_KEY_CACHE, "fail", f"{cache.folder} is not usable: {cache.failure}", _CACHE_REMEDY)
    sizes = [f"{num_bytes / 2**30:.1f}" for num_bytes in (cache.num_bytes, cache.bytes_max, cache.free_bytes)]
    text = f"{cache.folder}: {cache.num_tablets} tablets, {sizes[0]} of at most {sizes[1]} GiB, {sizes[2]} GiB free"
    if cache.free_bytes >= DISK_FREE_WARN_BYTES:
        return Finding(_KEY_CACHE, "ok", text)
    remedy = f"free space, decrease {CACHE_BYTES_VARIABLE}, or set {CACHE_DIR_VARIABLE} to a folder on another disk"
    return Finding(_KEY_CACHE, "fail" if cache.free_bytes < DISK_FREE_MIN_BYTES else "warn", text, remedy)


def check_warehouse(location: str | None, settings: Mapping[str, str] | None, world: World) -> list[Finding]:
    """Open the warehouse, verify put-if-absent, and check its clock, disk and tables."""
    if location is None:
        remedy = f"run streamhouse doctor --warehouse <directory or URL>, or set {WAREHOUSE_VARIABLE}"
        return [Finding("warehouse", "warn", "not given, so storage was not checked", remedy)]
    try:
        warehouse = Warehouse(location, settings, world=world)
        tables = warehouse.tables()
    except WarehouseNotFoundError as error:
        return [Finding("warehouse", "warn", str(error), "create a table, which creates it, or correct the path")]
    except StreamhouseError as error:
        return [Finding("warehouse", "fail", str(error), _MESSAGE_REMEDY)]
    findings = [Finding("warehouse", "ok", f"{warehouse.url}, {count_of(len(tables), 'table')}")]
    try:
        warehouse.storage.check_writable()
        findings.append(Finding("put-if-absent", "ok", _PUT_IF_ABSENT_WORKS))
        findings.append(check_clock(warehouse.storage.now_ms() - world.clock.now_ms()))
    except StreamhouseError as error:
        findings.append(Finding("put-if-absent", "fail", str(error), _MESSAGE_REMEDY))
    path = warehouse.storage.local_path("")
    if path is not None:
        usage = shutil.disk_usage(path)
        findings.append(check_disk(usage.free, usage.total))
    opened = open_listed(warehouse.table, tables)
    findings += check_log_stores(warehouse)
    checked = opened.each(lambda t: list(check_table(table_health(t.state, t.properties, warehouse.storage.now_ms()))))
    checked += opened.each(
        lambda t: list(check_branches(t.name, find_incomplete_branches(t), warehouse.storage.now_ms()))
    )
    checked += opened.each(lambda t: list(check_failed_rounds(t)))
    findings += [finding for table_findings in checked for finding in table_findings]
    return [*findings, *(Finding(f"table {n}", "fail", str(e), _MESSAGE_REMEDY) for n, e in opened.failed.items())]


def check_log_stores(warehouse: Warehouse) -> Iterator[Finding]:
    """Check the other stores that hold logs of tables."""
    places = log_locations_of(warehouse.storage)
    for store in places.stores() if places is not None else ():
        try:
            store.check_writable()
            yield Finding(f"put-if-absent of {store.url}", "ok", _PUT_IF_ABSENT_WORKS)
        except StreamhouseError as error:
            yield Finding(f"put-if-absent of {store.url}", "fail", str(error), _MESSAGE_REMEDY)


def check_clock(store_ahead_ms: int) -> Finding:
    text = f"the store's clock is {abs(store_ahead_ms) / 1000:.1f} s {'ahead' if store_ahead_ms > 0 else 'behind'}"
    remedy = "set this machine's clock, for example with chrony or systemd-timesyncd"
    if abs(store_ahead_ms) > SKEW_MAX_MS:
        return Finding("clock", "fail", f"{text}, and writes fail beyond 5 minutes", remedy)
    if abs(store_ahead_ms) > SKEW_WARN_MS:
        return Finding("clock", "warn", text, remedy)
    return Finding("clock", "ok", text)


def check_disk(free_bytes: int, total_bytes: int) -> Finding:
    text = f"{free_bytes / 2**30:.1f} of {total_bytes / 2**30:.1f} GiB free"
    remedy = "free space, or run streamhouse maintain to delete expired segments"
    if free_bytes < DISK_FREE_MIN_BYTES:
        return Finding("disk", "fail", text, remedy)
    return Finding("disk", "warn", text, remedy) if free_bytes < DISK_FREE_WARN_BYTES else Finding("disk", "ok", text)


def check_table(health: TableHealth) -> Iterator[Finding]:
    """Yield a finding if a table is not tiered or not maintained."""
    if health.is_tiering_late:
        yield Finding(
            f"tiering of {health.name}",
            "warn",
            f"rows have not been tiered for {health.untiered_ms // 60_000} min, expected at most "
            f"{health.freshness_ms / 60_000:g}",
            "run a TieringService, or streamhouse tier",
        )
    if health.is_maintenance_late:
        yield Finding(
            f"maintenance of {health.name}",
            "warn",
            f"expired files have not been deleted for {health.undeleted_ms // 86_400_000} days",
            "run a TieringService, or streamhouse maintain",
        )


def check_failed_rounds(table: Table) -> Iterator[Finding]:
    """Yield the recorded failures of rounds that no later round resolved."""
    for failure in list_failures(table.storage, table.uuid):
        if not failure.is_resolved(table.state):
            text = failure.describe(table.state, table.storage.now_ms())
            yield Finding(f"{failure.work} of {table.name}", "warn", text, _MESSAGE_REMEDY)


def check_branches(table_name: str, unsettled: Iterable[IncompleteBranch], now_ms: int) -> Iterator[Finding]:
    """Yield branches whose publication or removal was interrupted."""
    for branch in unsettled:
        if now_ms - branch.since_ms >= _INCOMPLETE_MS_MAX:
            problem, remedy = _INCOMPLETE_BRANCHES[branch.is_]
            command = remedy.format(table=table_name, name=branch.name)
            yield Finding(f"branch {branch.name} of {table_name}", "warn", problem, command)


def find_key_cache() -> KeyCache:
    """Examine the cache of rows by key. Raises `InvalidOptionError` if its configured size is not a number."""
    bytes_max, cache = cache_bytes_max(), cache_folder()
    base = cache.parent.parent
    existing = next(folder for folder in (base, *base.absolute().parents) if folder.exists())
    tablets = list_cached_tablets(cache)
    return KeyCache(
        folder=str(base),
        num_tablets=len(tablets),
        num_bytes=sum(tablet.num_bytes for tablet in tablets),
        bytes_max=bytes_max,
        free_bytes=shutil.disk_usage(existing).free,
        network_fs=network_file_system(str(base)),
        failure=_test_key_cache(existing),
    )


def _test_key_cache(folder: Path) -> str | None:
    """Write and read a row with LMDB in the folder. Returns the error, or None."""
    try:
        with TemporaryDirectory(prefix=".streamhouse-doctor-", dir=folder) as probe:
            environment = Environment(Path(probe), map_bytes=1 << 20)
            try:
                environment.write(lambda writer: writer.put([b"key"], [b"value"]))
                values = environment.read(lambda reader: reader.values([b"key"]))
            finally:
                environment.close()
    except (OSError, StreamhouseError) as error:
        return str(error)
    return None if values == [b"value"] else f"read {values} after a value was written"


def find_java(environ: Mapping[str, str]) -> Java:
    """Find the Java that Spark would start, from JAVA_HOME if it is set, else from the PATH."""
    home = environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    output = _run([command, "-version"], environ)  # on stderr
    match = re.search(r'version "(?:1\.)?([0-9]+)', output or "")
    return Java(command, "JAVA_HOME" if home else "PATH", int(match[1]) if match else None)


def find_worker_python(environ: Mapping[str, str]) -> WorkerPython:
    """Find the Python of Spark's local workers, from PYSPARK_PYTHON if it is set, else python3 from the PATH."""
    command = environ.get("PYSPARK_PYTHON", "python3")
    code = (
        "import importlib.util, json, sys;"
        "print(json.dumps(['%d.%d' % sys.version_info[:2], importlib.util.find_spec('streamhouse_spark') is not None]))"
    )
    output = _run([command, "-c", code], environ)
    try:
        version, has_package = json.loads(output or "")
    except ValueError:
        return WorkerPython(command, None, has_package=False)
    return WorkerPython(command, version, has_package)


def os_release() -> dict[str, str]:
    """Return the fields of ``/etc/os-release`` on Linux; empty on other systems."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def read_requirements(installed: Mapping[str, str]) -> dict[str, str]:
    """Return distribution → version range from the metadata of this package.

    The constraints of an extra apply only if the distribution that it installs is installed.
    """
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    return parse_requirements(lines, installed)


def parse_requirements(lines: Iterable[str], installed: Mapping[str, str]) -> dict[str, str]:
    """Parse lines of metadata for `read_requirements`."""
    extras = {extra for name, extra in _EXTRAS.items() if name in installed}
    clauses: dict[str, list[str]] = {name: [] for name in ("numpy", "pyarrow", *_EXTRAS)}
    for line in lines:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*\(?([^;()]*)", line)
        if match is None or (name := match[1].lower()) not in clauses:
            continue
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", line)
        if extra is None or extra[1] == _EXTRAS.get(name) or extra[1] in extras:
            clauses[name] += [clause.strip() for clause in match[2].split(",")]
    return {name: ",".join(dict.fromkeys(ranges_)) for name, ranges_ in clauses.items() if ranges_}


def installed_versions() -> dict[str, str]:
    versions = {}
    for name in ("numpy", "pyarrow", *_EXTRAS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def is_in_range(version: str, required: str) -> bool:
    """Return whether a version is in a range such as ``>=18,<20,!=19.0.0``."""
    release = _parse_release(version)
    for clause in filter(None, (part.strip() for part in required.split(","))):
        match = re.fullmatch(r"(>=|<=|==|!=|<|>|~=)\s*(\S+)", clause)
        if match is None:
            return False
        bound = _parse_release(match[2])
        width = max(len(release), len(bound))
        left, right = release + (0,) * (width - len(release)), bound + (0,) * (width - len(bound))
        holds = {">=": left >= right, "<=": left <= right, "==": left == right, "!=": left != right}
        holds |= {"<": left < right, ">": left > right, "~=": left >= right and release[: len(bound) - 1] == bound[:-1]}
        if not holds[match[1]]:
            return False
    return True


def _parse_release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", re.split(r"[-+a-zA-Z]", version, maxsplit=1)[0]))


def _run(command: list[str], environ: Mapping[str, str]) -> str | None:
    """Run a command from the PATH and return its stdout and stderr; None if it is missing or fails."""
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, timeout=_RUN_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None
