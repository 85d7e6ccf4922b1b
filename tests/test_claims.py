"""Each claim of the pages has a record in claims.toml, and what a record names is there.

A record is a phrase of the claim, below the path of its page, and what shows it: ids of tests,
``benchmarks/file.py::function``, ``Makefile::target``, ``docs/page.md::phrase`` where another page says the same with a
record of its own, addresses for what is said of others, or ``advice``.
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
from doc_pages import CLAIMING, ROOT
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.config.properties import TableProperties
from streamhouse_spark.core import slicing
from streamhouse_spark.datasource.catalog.procedures.jobs import JOB_BYTES_MIN
from streamhouse_spark.datasource.catalog.procedures.procedures import PROCEDURES
from streamhouse_spark.errors import ErrorKind
from streamhouse_spark.log.lifecycle.cleaning import GRACE_MS
from streamhouse_spark.table.lake_maintain import SNAPSHOTS_KEPT_MAX
from streamhouse_spark.table.lake_view import LakeView
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
RECORDS: dict[str, dict[str, list[str]]] = tomllib.loads((ROOT / "tests/claims.toml").read_text("utf-8"))
CLAIMS = {page: list(claims_of(text)) for page, text in CLAIMING.items()}
ALL_TEXT = "\n".join(CLAIMING.values())
ADVICE = "advice"


def without_record(claims: dict[str, list[str]], records: dict[str, dict[str, list[str]]]) -> list[str]:
    said = [(page, claim) for page, found in claims.items() for claim in found]
    return [f"{page}: {claim}" for page, claim in said if not any(p in claim for p in records.get(page, ()))]


def without_claim(claims: dict[str, list[str]], records: dict[str, dict[str, list[str]]]) -> list[str]:
    """Phrases that are in no claim of their page, or in several."""
    found = [(page, phrase) for page, phrases in records.items() for phrase in phrases]
    return [f"{page}: {p}" for page, p in found if sum(p in claim for claim in claims.get(page, ())) != 1]


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
    if path.endswith(".md") and path in CLAIMS:
        return any(not shown.startswith((*CLAIMS, ADVICE)) for shown in RECORDS[path].get(name, ()))
    return evidence == ADVICE or re.fullmatch(r"https://\S+", evidence) is not None


def test_every_claim_has_a_record():
    lacking = without_record(CLAIMS, RECORDS)
    assert not lacking, "say in tests/claims.toml what shows these, or take them out:\n" + "\n".join(lacking)


def test_every_record_has_its_claim():
    strays = without_claim(CLAIMS, RECORDS)
    assert not strays, "these phrases of tests/claims.toml are not in one claim of their page:\n" + "\n".join(strays)


def test_what_records_name_is_there():
    named = [
        (p, evidence) for phrases in RECORDS.values() for p, found in phrases.items() for evidence in found or [""]
    ]
    lost = [f"{phrase}: {evidence}" for phrase, evidence in named if not exists(evidence)]
    assert not lost, "no such test, benchmark, target or address:\n" + "\n".join(lost)


def test_what_is_not_recorded_or_not_there_is_found():
    text = "# One\n\nRows stay. They are\nnever lost.\n\n- A point.\n\n| a |\n| - |\n| a row |\n\n[More](b.md)\n"
    text += "\n```python\nrun()\n```\n\n```sh\nmake it  # so\n```\n"
    claims = list(claims_of(text))
    assert claims == ["Rows stay.", "They are never lost.", "A point.", "| a row |", "$ make it # so"]
    records: dict[str, Any] = {"a.md": {"Rows stay": [], "A point": [], "| a row": [], "$ make it": [], "gone": []}}
    assert without_record({"a.md": claims}, records) == ["a.md: They are never lost."]
    assert without_claim({"a.md": claims}, {**records, "b.md": {"Rows stay": []}}) == ["a.md: gone", "b.md: Rows stay"]
    assert exists("tests/test_claims.py::test_every_claim_has_a_record")
    for absent in ("tests/test_claims.py::test_gone", "tests/gone.py::test_x", "tests/test_claims.py::exists", "", "x"):
        assert not exists(absent), absent
    assert exists("Makefile::test")
    assert not exists("Makefile::tests")


# -- claims about the project's own files ---------------------------------------------------------------------------


def test_the_versions_of_python_are_those_of_the_package():
    (said,) = re.findall(r"You need Python ([\d., or]+) and Java", ALL_TEXT)
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert re.findall(r"3\.\d+", said) == named
    assert PROJECT["requires-python"] == f">={named[0]},<3.{int(named[-1].removeprefix('3.')) + 1}"


def test_the_version_is_that_of_the_package():
    (said,) = re.findall(r"It is new: version (\d+\.\d+)\.", ALL_TEXT)
    assert sh.__version__.startswith(f"{said}.")


def test_the_versions_of_spark_are_those_of_the_package():
    said = set(re.findall(r"4\.\d to 4\.\d", ALL_TEXT))
    (asked,) = (d for d in PROJECT["optional-dependencies"]["spark"] if d.startswith("pyspark"))
    first, behind = re.findall(r"4\.(\d)", asked)
    assert said == {f"4.{first} to 4.{int(behind) - 1}"}


def test_extras_that_the_pages_install_exist():
    for extras in re.findall(r"streamhouse-spark\[([\w,]+)\]", ALL_TEXT):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    paimon = PROJECT["optional-dependencies"]["paimon"]
    assert "every pyarrow from 18 on will do" in " ".join(ALL_TEXT.split())
    assert any(d.startswith("pyarrow>=18,<20") for d in paimon)
    assert [d for d in PROJECT["dependencies"] if d.startswith("pyarrow")] == ["pyarrow>=18"]


def test_extras_are_those_of_the_package():
    """Those for users, and what each asks for."""
    extras = PROJECT["optional-dependencies"]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+)", CLAIMING["docs/get-started/local.md"], re.MULTILINE))
    assert set(rows) == set(extras) - {
        "testing",
        "dev",
        "newest",
        "interop",
        "engines",
        "catalogs",
        "bench",
        "deploy",
        "stores",
        "dbt",
    }
    for extra in ("spark", "iceberg", "paimon", "s3"):
        assert extras[extra][0].startswith(rows[extra].lower()), extra
    assert extras["metrics"][0].startswith(f"{rows['metrics']}-")


def test_procedures_are_those_of_the_code():
    (row,) = (claim for claim in CLAIMS["docs/reference/sql.md"] if claim.startswith("| `CALL streamhouse.system.…` |"))
    assert set(re.findall(r"`(\w+)`", row)) == set(PROCEDURES)
    assert set(re.findall(r"CALL streamhouse\.system\.(\w+)", ALL_TEXT)) <= set(PROCEDURES)


def test_kinds_of_errors_are_those_of_the_code():
    (said,) = re.findall(r"`kind` \(([\w, ]+)\)", ALL_TEXT)
    assert said.split(", ") == [kind.value for kind in ErrorKind if kind is not ErrorKind.INTERNAL]


def test_figures_are_those_of_the_code():
    hours = re.findall(r"grace \((\d+) hours\)", ALL_TEXT)
    assert [int(h) * 3_600_000 for h in hours] == [GRACE_MS]
    assert set(re.findall(r"more than (\d+)(?: snapshots|, (?:for|those))", ALL_TEXT)) == {str(SNAPSHOTS_KEPT_MAX)}
    assert SNAPSHOTS_KEPT_MAX * TableProperties().datalake_freshness_ms == 10 * 3_600_000
    assert f"{SNAPSHOTS_KEPT_MAX} snapshots are ten hours" in ALL_TEXT
    mib = re.findall(r"Where (\d+) MiB or more are to be written", ALL_TEXT)
    assert [int(m) << 20 for m in mib] == [JOB_BYTES_MIN]
    assert slicing.ROW_BYTES_MAX == 512 << 20
    assert slicing.KEY_ROWS_BYTES_MAX == slicing.KEYS_BYTES_MAX == 1 << 30


def test_conditions_are_those_of_the_code():
    """Of the errors that users meet; the others are turned into these."""
    errors = {name: getattr(sh, name) for name in sh.__all__ if name.endswith("Error") and name != "StreamhouseError"}
    table = [claim for claim in CLAIMS["docs/reference/errors.md"] if claim.startswith("|")]
    said = {condition for row in table for condition in re.findall(r"`([A-Z_.]+)`", row.split("|")[1])}
    of_spark = {"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "CANNOT_LOAD_CATALOG.PLUGIN_CLASS_NOT_FOUND"}
    of_classes = {error("").condition for error in errors.values()}
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert of_classes <= said
    for condition in said - of_classes - of_spark - {"DATA_SOURCE_NOT_FOUND"}:
        class_name = condition.title().replace("_", "") + "Error"
        assert f'"{condition}' in sources or f"class {class_name}(" in sources, condition


def test_options_of_commands_exist():
    for claim in CLAIMS["docs/reference/command-line.md"]:
        if row := re.match(r"\| `streamhouse ([\w-]+)", claim):
            known = {
                name
                for option in streamhouse.commands[row[1]].params
                for name in (*option.opts, *option.secondary_opts)
            }
            assert set(re.findall(r"`(--?[a-z][\w-]*)", claim)) <= known, claim


def test_the_names_of_the_module_are_on_the_page():
    """Errors are on a page of their own, by their conditions."""
    page = CLAIMING["docs/reference/python.md"]
    names = {
        name for name in sh.__all__ if not name.endswith("Error") and name not in ("ErrorKind", "Table", "__version__")
    }
    assert names <= set(re.findall(r"`sh\.(\w+)", page))


def test_what_is_called_exists():
    owners = {"sh": sh, "orders": Table, "people": Table, "orders.lake": LakeView, "Warehouse(W)": Warehouse}
    called = re.findall(
        r"(?<![\w.)])(sh\.Warehouse\(W\)|Warehouse\(W\)|orders\.lake|orders|people|sh)\.(\w+)\(", ALL_TEXT
    )
    assert len(called) > 30
    for owner, name in called:
        assert callable(getattr(owners[owner.removeprefix("sh.") if "(" in owner else owner], name)), (owner, name)
    for verb in (Table.maintain, LakeView.compact, LakeView.expire_snapshots, LakeView.remove_orphan_files):
        assert "dry_run" in signature(verb).parameters
    assert "dry_run" in signature(LakeView.optimize).parameters
    assert "dry_run" in signature(LakeView.rewrite_manifests).parameters
