"""Fixtures that several test folders share, and the grouping of tests over processes."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from durations import MARKS, STORE, Durations, file_of, files_of_ci, is_short, merge_recording
from faults.share import Share
from patient_spark import fill_conf_folder
from storage.s3_server import S3Server, running_s3_server
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.read.scan_executor import changelog_cache
from streamhouse_spark.storage.remote import conditional_put_probe

# Spark starts `python3` of the PATH on workers unless it is told otherwise; that one may lack the package.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
# A JVM of tests waits for Python most of the time; to optimise its code costs half of all it does.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# What tests keep by key goes with them. Processes that they start keep it there too.
if "STREAMHOUSE_CACHE_DIR" not in os.environ:
    os.environ["STREAMHOUSE_CACHE_DIR"] = tempfile.mkdtemp(prefix="streamhouse-tests-")
    atexit.register(shutil.rmtree, os.environ["STREAMHOUSE_CACHE_DIR"], ignore_errors=True)
# Every JVM of tests has it, also those of examples and commands.
if "SPARK_CONF_DIR" not in os.environ:
    os.environ["SPARK_CONF_DIR"] = tempfile.mkdtemp(prefix="streamhouse-tests-spark-")
    atexit.register(shutil.rmtree, os.environ["SPARK_CONF_DIR"], ignore_errors=True)
    fill_conf_folder(Path(os.environ["SPARK_CONF_DIR"]))
# A child must not free what other tests left: a server or a channel of gRPC hangs or crashes in one.
os.register_at_fork(after_in_child=gc.freeze)
RACE_ROUNDS = conditional_put_probe.ROUNDS
RACE_HELD_ROUNDS = conditional_put_probe.HELD_ROUNDS
WITHOUT_PAIMON = bool(os.environ.get("STREAMHOUSE_TEST_WITHOUT_PAIMON"))
OURS = "STREAMHOUSE_TEST_"
_CHOSEN = pytest.StashKey[set[str]]()
_DURATIONS = pytest.StashKey[Durations]()
NO_PAIMON = "needs the extra paimon, which is left out"
# How long an example takes says how busy the machine is, no more.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def one_race_a_warehouse() -> Iterator[None]:
    """Each new warehouse on a test's S3 server is raced for once: the server is the same all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conditional_put_probe, "ROUNDS", 1)
        patch.setattr(conditional_put_probe, "HELD_ROUNDS", 0)
        yield


@pytest.fixture
def all_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new warehouse is raced for as often as users' are."""
    monkeypatch.setattr(conditional_put_probe, "ROUNDS", RACE_ROUNDS)
    monkeypatch.setattr(conditional_put_probe, "HELD_ROUNDS", RACE_HELD_ROUNDS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Divide a sweep marked ``sampled`` between the short run and the long one, by its argument ``share``."""
    marker = metafunc.definition.get_closest_marker("sampled")
    if marker is not None:
        (every,) = marker.args
        rest = pytest.param(Share(every, is_rest=True), id="rest", marks=pytest.mark.long)
        metafunc.parametrize("share", [pytest.param(Share(every), id=f"1 of {every}"), rest])


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("choice of tests")
    group.addoption("--short", action="store_true", help="the items of `make test`: short or marked always")
    group.addoption("--rest", action="store_true", help="the items that --short leaves out")
    group.addoption("--shard", metavar="K/N", help="the K-th of N shards of files with equal recorded durations")
    group.addoption("--within", metavar="SECONDS", type=float, help="of --rest, files that take so long together")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.tsv for the files that ran")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files that the run has no use for: collection is a part of its time."""
    if not (collection_path.name.startswith("test_") and collection_path.is_relative_to(config.rootpath)):
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    if config.getoption("within"):
        return None if path in chosen_files(config) else True
    return True if config.getoption("short") and not durations_of(config).may_have_short_items(path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the run's items, and keep those that share a JVM in one process."""
    durations = durations_of(config)
    if shard := config.getoption("shard"):
        number, _, num_shards = shard.partition("/")
        files = durations.shards({file_of(item.nodeid) for item in items}, int(num_shards))[int(number) - 1]
        keep_items(config, items, [item for item in items if file_of(item.nodeid) in files])
    if config.getoption("short") or config.getoption("rest"):
        short = config.getoption("short")
        keep_items(config, items, [i for i in items if is_short(durations.seconds_of(i.nodeid), mark_of(i)) == short])
    group_by_jvm(items, durations, num_jvms=1 if config.getoption("short") else 2)


def group_by_jvm(items: list[pytest.Item], durations: Durations, num_jvms: int) -> None:
    """Give the Spark tests of a file to one process, whose session they share, with equally long work for each."""
    on_spark = [item for item in items if item.get_closest_marker("spark")]
    shards = durations.shards({file_of(item.nodeid) for item in on_spark}, num_jvms)
    groups = {path: f"spark-{number}" for number, paths in enumerate(shards) for path in paths}
    for item in on_spark:
        item.add_marker(pytest.mark.xdist_group(groups[file_of(item.nodeid)]))


def durations_of(config: pytest.Config) -> Durations:
    """Return the recorded durations, read once a process."""
    if _DURATIONS not in config.stash:
        config.stash[_DURATIONS] = Durations.parse(STORE.read_text("utf-8") if STORE.exists() else "")
    return config.stash[_DURATIONS]


def chosen_files(config: pytest.Config) -> set[str]:
    """Return the files that CI runs beyond the short run, chosen once a process."""
    if _CHOSEN not in config.stash:
        config.stash[_CHOSEN] = set(files_of_ci(durations_of(config), config.getoption("within")))
    return config.stash[_CHOSEN]


def mark_of(item: pytest.Item) -> str:
    return next((mark for mark in MARKS if item.get_closest_marker(mark)), "-")


def keep_items(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def record_durations(reporter: pytest.TerminalReporter) -> None:
    """Write the seconds of this run's items (set-up, call and tear-down) to the store, file by file."""
    recorded: dict[str, tuple[float, str]] = {}
    for report in (report for reports in reporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport) and not report.skipped:
            item = _without_group(report.nodeid)
            mark = next((mark for mark in MARKS if mark in report.keywords), "-")
            recorded[item] = (recorded.get(item, (0.0, mark))[0] + report.duration, mark)
    durations = merge_recording(durations_of(reporter.config), recorded)
    STORE.write_text(durations.text(), "utf-8")
    reporter.write_line(f"{STORE.name}: {len(recorded)} items recorded")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip modules that are named after Paimon, or lie in a folder that is, as they import it, if Paimon is left out by
    intention.
    """
    report = yield
    if report.failed and WITHOUT_PAIMON and _is_of_paimon(collector.path) and _lacks_paimon(str(report.longrepr)):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, NO_PAIMON)
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The same of tests that say that they need it. All others must do without, or fail."""
    if WITHOUT_PAIMON and _says_paimon(item):
        pytest.skip(NO_PAIMON)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that runs each failed test alone, and record durations where that is asked for."""
    if terminalreporter.config.getoption("record_durations"):
        record_durations(terminalreporter)
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    names = dict.fromkeys(_without_group(report.nodeid) for report in failed)
    if not names:
        return
    terminalreporter.section("to run one of these alone")
    given = [f"{key}={shlex.quote(value)}" for key, value in sorted(os.environ.items()) if key.startswith(OURS)]
    for name in names:
        command = [os.path.relpath(sys.executable), "-m", "pytest", shlex.quote(name)]
        terminalreporter.write_line(" ".join([*given, *command]))


def _without_group(name: str) -> str:
    """Return a test's name without the group that xdist appends to it."""
    return re.sub(r"@spark-\d$", "", name)


def _is_of_paimon(path: Path) -> bool:
    return "paimon" in path.relative_to(Path(__file__).parent).as_posix()


def _lacks_paimon(text: str) -> bool:
    return "No module named 'pypaimon" in text


def _says_paimon(item: pytest.Item) -> bool:
    """Whether a test is about Paimon: by its marker, or as the case of a test that other lakes have too."""
    case = item.name.partition("[")[2].lower()
    return item.get_closest_marker("paimon") is not None or "paimon" in case


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running_s3_server() as server:
        yield server


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Caches of this test alone: simulated worlds give tables and files of several tests the same identity."""
    if "pyiceberg.manifest" in sys.modules:
        sys.modules["pyiceberg.manifest"].clear_manifest_cache()
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    close_tablets()
    changelog_cache.clear()


@pytest.fixture
def warehouse_path(tmp_path: Path) -> str:
    """Return a path of this test that does not exist yet, for a warehouse."""
    return str(tmp_path / "warehouse")
