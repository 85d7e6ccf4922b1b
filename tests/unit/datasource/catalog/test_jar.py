"""The jar is built reproducibly, and `configure` puts it into a session's configuration."""

from __future__ import annotations

import re
import shutil

import build_jar
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import streamhouse_spark
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.datasource.catalog.jar import catalog_class, jar_path
from streamhouse_spark.datasource.session import catalog_configuration


@pytest.mark.long
def test_building_again_gives_the_same_classes():
    if shutil.which("javac") is None:
        pytest.skip("only a JRE is here, which Spark is content with; building the jar needs a JDK")
    assert build_jar.stored_entries() == build_jar.built_entries(), "run make jar"


def test_configure_sets_the_catalog_and_its_settings():
    assert catalog_configuration("/data/wh", "streamhouse", {"s3.region": "eu-north-1"}) == {
        "spark.sql.catalog.streamhouse": catalog_class(),
        "spark.sql.catalog.streamhouse.warehouse": "/data/wh",
        "spark.sql.catalog.streamhouse.s3.region": "eu-north-1",
    }


def test_jars_that_the_builder_has_stay_and_ours_comes_once():
    builder = SparkSession.Builder().config("spark.jars", "/a.jar,/b.jar")
    for _ in range(2):
        builder = streamhouse_spark.configure(builder, warehouse="/data/wh", catalog="lakehouse")
    assert builder._options["spark.jars"] == f"/a.jar,/b.jar,{jar_path()}"
    assert builder._options["spark.sql.catalog.lakehouse.warehouse"] == "/data/wh"


@pytest.mark.parametrize("given", ["", "(?i)secret|pin", "(?i)account-key"])
def test_spark_hides_the_key_of_an_account(given):
    builder = SparkSession.Builder()
    if given:
        builder = builder.config("spark.redaction.regex", given)
    for catalog in ("a", "b"):
        builder = streamhouse_spark.configure(
            builder, warehouse="abfss://w", catalog=catalog, settings={"adls.account-key": "k"}
        )
    hidden = builder._options["spark.redaction.regex"]
    assert re.search(hidden, "spark.sql.catalog.a.adls.account-key")
    assert hidden.count("account-key") == 1
    assert hidden.startswith(given or "(?i)secret|password|token")


def test_what_spark_hides_is_left_alone_without_such_a_key():
    builder = streamhouse_spark.configure(SparkSession.Builder(), warehouse="/w", settings={"s3.region": "x"})
    assert "spark.redaction.regex" not in builder._options


@pytest.mark.parametrize("name", ["", "a.b", "a-b", "a b", "1a", "`a`", "spark_catalog"])
def test_a_catalog_name_that_sql_cannot_say_is_refused(name):
    with pytest.raises(InvalidOptionError, match="cannot be used in SQL"):
        catalog_configuration("/data/wh", name, {})


def test_an_unknown_setting_and_an_empty_warehouse_are_refused():
    with pytest.raises(InvalidOptionError, match="unknown setting 'endpoint'"):
        catalog_configuration("/data/wh", "streamhouse", {"endpoint": "x"})
    with pytest.raises(InvalidOptionError, match="warehouse is empty"):
        catalog_configuration(" ", "streamhouse", {})


def test_the_command_line_prints_the_jar_and_the_options():
    assert CliRunner().invoke(streamhouse, ["jar"]).output.strip() == str(jar_path())
    printed = CliRunner().invoke(streamhouse, ["-w", "/data/wh", "jar", "--options", "--catalog", "lakehouse"]).output
    assert printed.split() == [
        "--jars",
        str(jar_path()),
        "--conf",
        f"spark.sql.catalog.lakehouse={catalog_class()}",
        "--conf",
        "spark.sql.catalog.lakehouse.warehouse=/data/wh",
    ]
