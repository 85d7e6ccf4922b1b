"""The jar of the SQL catalog is that of the Java sources, and each source has one type."""

from __future__ import annotations

import zipfile

import build_jar
import pytest

from doc_pages import ROOT
from streamhouse_spark.datasource.catalog.jar import CATALOG_CLASS, VIEW_CATALOG_CLASS, jar_path

SOURCES = sorted((ROOT / "jvm").rglob("*.java"))
TYPES = ("class ", "final class ", "public class ", "public final class ", "interface ")


def test_the_jar_was_built_from_its_source():
    with zipfile.ZipFile(jar_path()) as jar:
        assert jar.read("META-INF/MANIFEST.MF") == build_jar.manifest(), "run make jar"


def test_the_jar_is_small_and_has_no_dates():
    with zipfile.ZipFile(jar_path()) as jar:
        for name in (CATALOG_CLASS, VIEW_CATALOG_CLASS):
            assert name.replace(".", "/") + ".class" in jar.namelist()
        assert {entry.date_time for entry in jar.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert jar_path().stat().st_size < 265_000  # a reader of logs in stores is 19 kB of it


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_java_file_has_one_type_and_lines_of_at_most_120_characters(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 120
    types = [line for line in lines if line.startswith(TYPES)]
    assert len(types) == 1
    assert path.stem in types[0].replace("<", " ").split()
