"""The warehouse of a session's catalog, with the settings that the catalog has."""

from __future__ import annotations

import pytest

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.config.spark_options import WAREHOUSE_VARIABLE
from streamhouse_spark.datasource.session import connect_catalog


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
