"""`make matrix-newest` runs without pypaimon: only modules named after Paimon import it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from doc_pages import ROOT

IMPORT = re.compile(r"^(?:import (\S+)|from (\S+) import (\([^)]*\)|.*))", re.MULTILINE)
"""An import at the top of a module: not in a function, and not for types only."""


def test_tests_that_are_not_named_after_paimon_import_no_paimon():
    importers = defaultdict(set)
    for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/**/*.py")]:
        for name in imported_names(path):
            importers[name].add(path)
    new = set().union(*(paths for name, paths in importers.items() if name.partition(".")[0] == "pypaimon"))
    reached: set[Path] = set()
    while new:
        reached |= new
        new = set().union(*(importers[module_name(path)] for path in new)) - reached
    assert ROOT / "tests/unit/lake/paimon/test_snapshot_commit.py" in reached
    collected = {path for folder in ("unit", "contract") for path in ROOT.glob(f"tests/{folder}/**/*.py")}
    assert not [path for path in reached & collected if "paimon" not in path.relative_to(ROOT).as_posix()]


def imported_names(path: Path) -> Iterator[str]:
    for module, package, names in IMPORT.findall(path.read_text("utf-8")):
        yield module or package
        yield from (f"{package}.{name}" for name in re.findall(r"\w+", names))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
