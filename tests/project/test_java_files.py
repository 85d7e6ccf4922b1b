"""The jar of the SQL catalog is that of the Java sources, whose packages depend on lower ones alone."""

from __future__ import annotations

import re
import zipfile

import build_jar
import pytest

from doc_pages import ROOT
from streamhouse_spark.datasource.catalog.jar import CATALOG_CLASS, VIEW_CATALOG_CLASS, jar_path

SOURCES = sorted(path for path in (ROOT / "jvm").rglob("*.java") if path.stem != "package-info")
TYPES = re.compile(r"(?:public )?(?:abstract |final )?(?:class|interface|enum) (\w+)")
ROOT_PACKAGE = "io.streamhouse.spark"
LOWER_PACKAGES = {
    "util": set(),
    "metrics": {"util"},
    "storage": {"util"},
    "cdc": {"util"},
    "rpc": {"storage", "util"},
    "catalog": {"rpc", "util"},
    "procedure": {"rpc", "util"},
    "read": {"storage", "metrics", "util"},
    "stream": {"catalog", "read", "rpc", "metrics", "util"},
    "realtime": {"stream", "catalog", "read", "rpc", "storage", "metrics", "util"},
    "scan": {"realtime", "stream", "catalog", "read", "rpc", "metrics", "util"},
    "write": {"scan", "realtime", "catalog", "rpc", "metrics", "util"},
    "rules": {"write", "scan", "realtime", "stream", "catalog", "rpc", "util"},
}
"""Sub-package → those that it may import."""


def test_the_jar_was_built_from_its_source():
    with zipfile.ZipFile(jar_path()) as jar:
        assert jar.read("META-INF/MANIFEST.MF") == build_jar.manifest(), "run make jar"


def test_the_jar_is_small_and_has_no_dates():
    with zipfile.ZipFile(jar_path()) as jar:
        for name in (CATALOG_CLASS, VIEW_CATALOG_CLASS):
            assert name.replace(".", "/") + ".class" in jar.namelist()
        assert {entry.date_time for entry in jar.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert jar_path().stat().st_size < 290_000  # readers of logs in stores and of change events are 20 kB each of it


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_java_file_has_one_type_and_lines_of_at_most_120_characters(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 120
    types = [match[1] for match in map(TYPES.match, lines) if match]
    assert types == [path.stem]


@pytest.mark.parametrize("package", LOWER_PACKAGES)
def test_a_java_package_imports_lower_ones_alone(package):
    folder = build_jar.SOURCES.joinpath(*ROOT_PACKAGE.split("."), package)
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.java"))
    imported = set(re.findall(rf"^import {re.escape(ROOT_PACKAGE)}\.(\w+)", text, re.MULTILINE))
    assert imported <= LOWER_PACKAGES[package]
    assert (folder / "package-info.java").is_file()


def test_each_java_package_is_listed():
    folder = build_jar.SOURCES.joinpath(*ROOT_PACKAGE.split("."))
    assert {path.name for path in folder.iterdir() if path.is_dir()} == set(LOWER_PACKAGES)
