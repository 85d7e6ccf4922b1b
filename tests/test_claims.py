"""Each claim of the README has a record in claims.toml, and what a record names is there.

A record is a phrase of the claim, below the heading that the claim stands below, and what shows it: ids of tests,
``benchmarks/file.py::function``, ``Makefile::target``, addresses for what is said of others, or ``advice``.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import streamhouse_spark as sh
from claims import claims_of
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.config.properties import TableProperties
from streamhouse_spark.core import slicing
from streamhouse_spark.datasource.catalog.procedures.procedures import PROCEDURES
from streamhouse_spark.errors import ErrorKind
from streamhouse_spark.log.lifecycle.cleaning import GRACE_MS
from streamhouse_spark.table.lake_maintain import SNAPSHOTS_KEPT_MAX
from streamhouse_spark.table.lake_view import LakeView
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
RECORDS: dict[str, dict[str, list[str]]] = tomllib.loads((ROOT / "tests/claims.toml").read_text("utf-8"))
ADVICE = "advice"


def without_record(claims: list[tuple[str, str]], records: dict[str, dict[str, list[str]]]) -> list[str]:
    return [f"{heading}: {claim}" for heading, claim in claims if not any(p in claim for p in records.get(heading, ()))]


def without_claim(claims: list[tuple[str, str]], records: dict[str, dict[str, list[str]]]) -> list[str]:
    """Phrases that are in no claim below their heading, or in several."""
    found = [(heading, phrase) for heading, phrases in records.items() for phrase in phrases]
    return [f"{h}: {p}" for h, p in found if sum(h == heading and p in claim for heading, claim in claims) != 1]


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The ids, within the file, of its functions and of the methods of its classes; the file is not run."""
    body = ast.parse(path.read_text("utf-8")).body if path.suffix == ".py" and path.is_file() else []
    named = [(owner, item) for owner in body for item in (owner, *getattr(owner, "body", ()))]
    functions = [(owner, item) for owner, item in named if isinstance(item, ast.FunctionDef)]
    return frozenset(i.name if i is o else f"{getattr(o, 'name', '')}::{i.name}" for o, i in functions)


def exists(evidence: str) -> bool:
    path, _, name = evidence.partition("::")
    if path == "Makefile":
        return re.search(rf"^{re.escape(name)}:", (ROOT / path).read_text("utf-8"), re.MULTILINE) is not None
    if path.startswith(("tests/", "benchmarks/")):
        is_test = name.rpartition("::")[2].startswith("test_")
        return name in functions_of(ROOT / path) and is_test == path.startswith("tests/")
    return evidence == ADVICE or re.fullmatch(r"https://\S+", evidence) is not None


def test_every_claim_has_a_record():
    lacking = without_record(list(claims_of(README)), RECORDS)
    assert not lacking, "say in tests/claims.toml what shows these, or take them out:\n" + "\n".join(lacking)


def test_every_record_has_its_claim():
    strays = without_claim(list(claims_of(README)), RECORDS)
    assert not strays, "these phrases of tests/claims.toml are not in one claim below their heading:\n" + "\n".join(
        strays
    )


def test_what_records_name_is_there():
    named = [
        (p, evidence) for phrases in RECORDS.values() for p, found in phrases.items() for evidence in found or [""]
    ]
    lost = [f"{phrase}: {evidence}" for phrase, evidence in named if not exists(evidence)]
    assert not lost, "no such test, benchmark, target or address:\n" + "\n".join(lost)


def test_what_is_not_recorded_or_not_there_is_found():
    text = "# One\n\nRows stay. They are\nnever lost.\n\n- A point.\n\n| a |\n| - |\n| a row |\n"
    text += "\n```python\nrun()\n```\n\n```sh\nmake it  # so\n```\n"
    claims = list(claims_of(text))
    assert claims == [
        ("One", claim) for claim in ("Rows stay.", "They are never lost.", "A point.", "| a row |", "$ make it # so")
    ]
    records: dict[str, Any] = {"One": {"Rows stay": [], "A point": [], "| a row": [], "$ make it": [], "gone": []}}
    assert without_record(claims, records) == ["One: They are never lost."]
    assert without_claim(claims, {**records, "Two": {"Rows stay": []}}) == ["One: gone", "Two: Rows stay"]
    assert exists("tests/test_claims.py::test_every_claim_has_a_record")
    for absent in ("tests/test_claims.py::test_gone", "tests/gone.py::test_x", "tests/test_claims.py::exists", "", "x"):
        assert not exists(absent), absent
    assert exists("Makefile::test")
    assert not exists("Makefile::tests")


# -- claims about the project's own files ---------------------------------------------------------------------------


def test_the_versions_of_python_are_those_of_the_package():
    (said,) = re.findall(r"You need Python ([\d., or]+) and Java", README)
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert re.findall(r"3\.\d+", said) == named
    assert PROJECT["requires-python"] == f">={named[0]},<3.{int(named[-1].removeprefix('3.')) + 1}"


def test_the_versions_of_spark_are_those_of_the_package():
    said = set(re.findall(r"4\.\d to 4\.\d", README))
    (asked,) = (d for d in PROJECT["optional-dependencies"]["spark"] if d.startswith("pyspark"))
    first, behind = re.findall(r"4\.(\d)", asked)
    assert said == {f"4.{first} to 4.{int(behind) - 1}"}


def test_extras_that_the_readme_installs_exist():
    for extras in re.findall(r"streamhouse-spark\[([\w,]+)\]", README):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    paimon = PROJECT["optional-dependencies"]["paimon"]
    assert "every pyarrow from 18 on will do" in " ".join(README.split())
    assert any(d.startswith("pyarrow>=18,<20") for d in paimon)
    assert [d for d in PROJECT["dependencies"] if d.startswith("pyarrow")] == ["pyarrow>=18"]


def test_procedures_are_those_of_the_code():
    (row,) = (claim for _, claim in claims_of(README) if claim.startswith("| `CALL streamhouse.system.…` |"))
    assert set(re.findall(r"`(\w+)`", row)) == set(PROCEDURES)
    assert set(re.findall(r"CALL streamhouse\.system\.(\w+)", README)) <= set(PROCEDURES)


def test_kinds_of_errors_are_those_of_the_code():
    (said,) = re.findall(r"`kind` \(([\w, ]+)\)", README)
    assert said.split(", ") == [kind.value for kind in ErrorKind if kind is not ErrorKind.INTERNAL]


def test_figures_are_those_of_the_code():
    hours = re.findall(r"grace \((\d+) hours\)", README)
    assert [int(h) * 3_600_000 for h in hours] == [GRACE_MS]
    assert set(re.findall(r"more than (\d+)(?: snapshots|, (?:for|those))", README)) == {str(SNAPSHOTS_KEPT_MAX)}
    assert SNAPSHOTS_KEPT_MAX * TableProperties().datalake_freshness_ms == 10 * 3_600_000
    assert f"{SNAPSHOTS_KEPT_MAX} snapshots are ten hours" in README
    assert slicing.ROW_BYTES_MAX == 512 << 20
    assert slicing.KEY_ROWS_BYTES_MAX == slicing.KEYS_BYTES_MAX == 1 << 30


def test_conditions_are_those_of_the_code():
    """Of the errors that users meet; the others are turned into these."""
    errors = {name: getattr(sh, name) for name in sh.__all__ if name.endswith("Error") and name != "StreamhouseError"}
    table = [claim for heading, claim in claims_of(README) if heading == "Errors" and claim.startswith("|")]
    said = {condition for row in table for condition in re.findall(r"`([A-Z_.]+)`", row.split("|")[1])}
    of_spark = {"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "CANNOT_LOAD_CATALOG.PLUGIN_CLASS_NOT_FOUND"}
    of_classes = {error("").condition for error in errors.values()}
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert of_classes <= said
    for condition in said - of_classes - of_spark - {"DATA_SOURCE_NOT_FOUND"}:
        class_name = condition.title().replace("_", "") + "Error"
        assert f'"{condition}' in sources or f"class {class_name}(" in sources, condition


def test_options_of_commands_exist():
    for _, claim in claims_of(README):
        if row := re.match(r"\| `streamhouse ([\w-]+)", claim):
            known = {
                name
                for option in streamhouse.commands[row[1]].params
                for name in (*option.opts, *option.secondary_opts)
            }
            assert set(re.findall(r"`(--?[a-z][\w-]*)", claim)) <= known, claim


def test_what_is_called_exists():
    owners = {"sh": sh, "orders": Table, "people": Table, "orders.lake": LakeView, "Warehouse(W)": Warehouse}
    called = re.findall(
        r"(?<![\w.)])(sh\.Warehouse\(W\)|Warehouse\(W\)|orders\.lake|orders|people|sh)\.(\w+)\(", README
    )
    assert len(called) > 30
    for owner, name in called:
        assert callable(getattr(owners[owner.removeprefix("sh.") if "(" in owner else owner], name)), (owner, name)
    for verb in (Table.maintain, LakeView.compact, LakeView.expire_snapshots, LakeView.remove_orphan_files):
        assert "dry_run" in signature(verb).parameters
    assert "dry_run" in signature(LakeView.rewrite_manifests).parameters
