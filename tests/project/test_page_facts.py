"""Figures, names and lists of the user pages are those of the code and of pyproject.toml.

A fact is a table row, a code span, or the text between ``<!-- fact: id -->`` and ``<!-- /fact -->``.
"""

from __future__ import annotations

import re
import tomllib
from inspect import signature
from pathlib import Path

import pytest

import streamhouse_spark as sh
from doc_pages import PAGES, ROOT, USER_PAGES
from streamhouse_spark.config.table_properties import TableProperties
from streamhouse_spark.core import arrow_rows
from streamhouse_spark.datasource.catalog.procedures.procedures import PROCEDURES
from streamhouse_spark.datasource.catalog.procedures.spark_jobs import JOB_BYTES_MIN
from streamhouse_spark.errors import ErrorKind
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.storage.azure import storage as azure
from streamhouse_spark.storage.gcs import storage as gcs
from streamhouse_spark.storage.hdfs import storage as hdfs
from streamhouse_spark.table.lake import LakeView
from streamhouse_spark.table.maintenance.lake import SNAPSHOTS_KEPT_MAX
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
INTERNAL_EXTRAS = {"testing", "dev", "newest", "interop", "engines", "catalogs", "bench", "deploy", "stores", "dbt"}
ALL_TEXT = "\n".join(USER_PAGES.values())
FACT = re.compile(r"<!-- fact: ([\w-]+) -->(.*?)<!-- /fact -->")
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


def read_fact(name: str) -> str:
    """Return the text of the fact ``name``, which is the same wherever the pages state it."""
    texts = {text for marked, text in FACT.findall(ALL_TEXT) if marked == name}
    assert len(texts) == 1, f"the pages state {name} as {texts or 'nothing'}"
    return texts.pop()


def read_bytes_fact(name: str) -> int:
    number, unit = read_fact(name).split()
    return int(number) * UNITS[unit]


def table_rows(page: str) -> list[str]:
    return [line for line in PAGES[page].splitlines() if line.startswith("|")]


def test_every_fact_of_the_pages_is_compared_and_every_compared_fact_is_in_a_page():
    compared = set(re.findall(r'read_(?:bytes_)?fact\("([\w-]+)"\)', Path(__file__).read_text("utf-8")))
    assert {name for name, _ in FACT.findall(ALL_TEXT)} == compared
    assert len(FACT.findall(ALL_TEXT)) == sum(text.count("<!-- fact:") for text in PAGES.values())


def test_python_versions_are_those_of_the_package():
    versions = re.findall(r"3\.\d+", read_fact("python-versions"))
    assert versions == [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert PROJECT["requires-python"] == f">={versions[0]},<3.{int(versions[-1].removeprefix('3.')) + 1}"


def test_the_version_is_that_of_the_package():
    version = read_fact("package-version")
    assert sh.__version__.startswith(f"{version}.")


def test_spark_versions_are_those_of_the_package():
    (requirement,) = (dependency for dependency in EXTRAS["spark"] if dependency.startswith("pyspark"))
    first, end = re.findall(r"4\.(\d)", requirement)
    assert set(re.findall(r"4\.\d to 4\.\d", "\n".join(PAGES.values()))) == {f"4.{first} to 4.{int(end) - 1}"}


def test_extras_that_the_pages_install_exist():
    for extras in re.findall(r"streamhouse-spark\[([\w,]+)\]", ALL_TEXT):
        assert set(extras.split(",")) <= set(EXTRAS)


def test_the_oldest_pyarrow_is_that_of_the_package():
    minimum = read_fact("pyarrow-minimum")
    assert any(dependency.startswith(f"pyarrow>={minimum},<20") for dependency in EXTRAS["paimon"])
    assert [d for d in PROJECT["dependencies"] if d.startswith("pyarrow")] == [f"pyarrow>={minimum}"]


def test_extras_for_users_have_a_row_that_names_what_they_install():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+)", PAGES["docs/get-started/local.md"], re.MULTILINE))
    assert set(rows) == set(EXTRAS) - INTERNAL_EXTRAS
    for extra in ("spark", "iceberg", "paimon", "s3"):
        assert EXTRAS[extra][0].startswith(rows[extra].lower()), extra
    assert EXTRAS["metrics"][0].startswith(f"{rows['metrics']}-")


def test_procedures_that_the_pages_call_exist():
    assert set(re.findall(r"CALL streamhouse\.system\.(\w+)", ALL_TEXT)) <= set(PROCEDURES)


def test_kinds_of_errors_are_those_of_the_code():
    kinds = [kind.value for kind in ErrorKind if kind is not ErrorKind.INTERNAL]
    assert read_fact("error-kinds").split(", ") == kinds


def test_limits_of_time_and_size_are_those_of_the_code():
    assert int(read_fact("grace-hours")) * 3_600_000 == GRACE_MS
    assert read_bytes_fact("spark-job-size") == JOB_BYTES_MIN
    assert read_bytes_fact("row-size-limit") == arrow_rows.ROW_BYTES_MAX
    assert read_bytes_fact("key-size-limit") == arrow_rows.KEY_ROWS_BYTES_MAX == arrow_rows.KEYS_BYTES_MAX


def test_kept_snapshots_are_those_of_the_code():
    assert int(read_fact("snapshots-kept")) == SNAPSHOTS_KEPT_MAX
    kept_ms = SNAPSHOTS_KEPT_MAX * TableProperties().datalake_freshness_ms
    assert int(read_fact("snapshots-kept-hours")) * 3_600_000 == kept_ms


def test_error_conditions_are_those_of_the_code():
    """Only of the public errors; all other errors are raised as one of these."""
    errors = [getattr(sh, name) for name in sh.__all__ if name.endswith("Error") and name != "StreamhouseError"]
    cells = [row.split("|")[1] for row in table_rows("docs/reference/errors.md")]
    shown = {condition for cell in cells for condition in re.findall(r"`([A-Z_.]+)`", cell)}
    of_spark = {"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "CANNOT_LOAD_CATALOG.PLUGIN_CLASS_NOT_FOUND"}
    of_classes = {error("").condition for error in errors}
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert of_classes <= shown
    for condition in shown - of_classes - of_spark - {"DATA_SOURCE_NOT_FOUND"}:
        class_name = condition.title().replace("_", "") + "Error"
        assert f'"{condition}' in sources or f"class {class_name}(" in sources, condition


def test_the_python_page_has_every_public_name():
    """Errors are on their own page, by their conditions."""
    left_out = ("ErrorKind", "Table", "__version__")
    names = {name for name in sh.__all__ if not name.endswith("Error") and name not in left_out}
    assert names <= set(re.findall(r"`sh\.(\w+)", PAGES["docs/reference/python.md"]))


def test_the_api_page_documents_every_public_name():
    documented = re.findall(r"^::: streamhouse_spark\.(\w+)$", PAGES["docs/reference/api.md"], re.MULTILINE)
    assert sorted(documented) == sorted(set(sh.__all__) - {"__version__"})


def test_functions_that_the_pages_call_exist():
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


@pytest.mark.parametrize(
    ("page", "spans", "settings"),
    [
        ("docs/get-started/gcs-and-azure.md", r"`(gcs\.[a-z0-9.-]+)`", gcs),
        ("docs/get-started/gcs-and-azure.md", r"`(adls\.[a-z-]+)`", azure),
        ("docs/get-started/hdfs.md", r"`(hdfs\.[a-z0-9.-]+)`", hdfs),
    ],
    ids=["gcs", "azure", "hdfs"],
)
def test_pages_of_stores_have_all_settings(page, spans, settings):
    assert set(re.findall(spans, PAGES[page])) == set(settings._NAMES)
