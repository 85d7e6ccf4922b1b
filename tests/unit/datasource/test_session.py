"""The warehouse of a session's catalog, and the Python that its workers run."""

from __future__ import annotations

import pytest

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.config.spark_options import WAREHOUSE_VARIABLE
from streamhouse_spark.datasource.session import connect_catalog, set_worker_python

PYTHON = "/venv/bin/python"


def named(options=None, **environ):
    set_worker_python(PYTHON, options or {}, environ)
    return environ.get("PYSPARK_PYTHON")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"spark.master": "local"},
        {"spark.master": "local[2]"},
        {"spark.master": "local[*, 3]"},
        {"spark.remote": "local[2]"},
    ],
)
def test_a_local_master_runs_the_python_that_calls(options):
    assert named(options) == PYTHON


@pytest.mark.parametrize(
    "options",
    [
        {"spark.master": "spark://host:7077"},
        {"spark.master": "yarn"},
        {"spark.master": "k8s://https://host"},
        {"spark.master": "local-cluster[2,1,1024]"},
        {"spark.remote": "sc://host"},
        {"spark.pyspark.python": "/other/python"},
    ],
)
def test_another_master_and_another_choice_stay(options):
    assert named(options) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYSPARK_GATEWAY_PORT", "4711"),
        ("PYSPARK_SUBMIT_ARGS", "--name x --master yarn pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", "--master=spark://host:7077 pyspark-shell"),
        ("MASTER", "spark://host:7077"),
        ("SPARK_REMOTE", "sc://host"),
    ],
)
def test_the_environment_may_say_the_master(name, value):
    assert named(**{name: value}) is None


def test_who_named_a_python_gets_it():
    assert named(PYSPARK_PYTHON="/mine") == "/mine"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spark.master    yarn", None),
        ("spark.master=spark://host:7077", None),
        ("# spark.master yarn", PYTHON),
        ("spark.pyspark.python: /other/python", None),
        ("spark.master local[4]\nspark.ui.enabled false", PYTHON),
    ],
)
def test_sparks_file_of_defaults_may_say_it(tmp_path, text, expected):
    (tmp_path / "spark-defaults.conf").write_text(text)
    assert named(SPARK_CONF_DIR=str(tmp_path)) == expected


def test_the_builder_says_more_than_the_file(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.master yarn")
    assert named({"spark.master": "local[2]"}, SPARK_CONF_DIR=str(tmp_path)) == PYTHON


class Conf:
    def __init__(self, **found):
        self.getAll = {f"spark.sql.catalog.{name.replace('__', '.')}": value for name, value in found.items()}

    def get(self, key, default):
        return self.getAll.get(key, default)


class Session:
    def __init__(self, **found):
        self.conf = Conf(**found)


def test_it_has_the_settings_of_the_catalog(monkeypatch):
    """Else a store that they lead to is looked for elsewhere."""
    monkeypatch.setenv(WAREHOUSE_VARIABLE, "/elsewhere")
    there = {"streamhouse__s3.endpoint": "http://127.0.0.1:9", "other__s3.region": "x"}
    connection = connect_catalog(Session(streamhouse__warehouse="s3://b/wh", **there))
    assert (connection.location, connection.settings) == ("s3://b/wh", (("s3.endpoint", "http://127.0.0.1:9"),))


def test_a_session_without_the_catalog_has_none():
    with pytest.raises(InvalidOptionError, match="has no catalog streamhouse; create the session with"):
        connect_catalog(Session(other__warehouse="/wh"))
