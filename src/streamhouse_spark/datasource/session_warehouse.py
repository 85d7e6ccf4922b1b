"""The warehouse of a Spark session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamhouse_spark.config.spark_options import SETTING_PREFIXES, WAREHOUSE_VARIABLE
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.warehouse.process_cache import Connection, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOG = "spark.sql.catalog.streamhouse."


def connect_session(
    spark: SparkSession, warehouse: str | None, settings: Mapping[str, str] | None = None
) -> Connection:
    """Connect to ``warehouse``, else to that of the environment, else to that of the session's catalog ``streamhouse``.

    The catalog's settings come with it; ``settings`` override them. Raises `InvalidOptionError` if there is none.
    """
    options = dict(settings or {})
    if warehouse is None and not os.environ.get(WAREHOUSE_VARIABLE):
        warehouse = spark.conf.get(f"{_CATALOG}warehouse", None)
        if warehouse is not None:
            options = {**_catalog_settings(spark), **options}
    if warehouse is not None:
        options["warehouse"] = warehouse
    return connect(options, os.environ)


def connect_catalog(spark: SparkSession) -> Connection:
    """Connect to the warehouse of the session's catalog ``streamhouse``, with its settings, ignoring the environment.
    Raises `InvalidOptionError` if there is no such catalog.
    """
    warehouse = spark.conf.get(f"{_CATALOG}warehouse", None)
    if warehouse is None:
        raise InvalidOptionError("the session has no catalog streamhouse; make it with streamhouse_spark.configure")
    return connect({**_catalog_settings(spark), "warehouse": warehouse}, {})


def _catalog_settings(spark: SparkSession) -> dict[str, str]:
    catalog_options = (
        (key.removeprefix(_CATALOG), value) for key, value in spark.conf.getAll.items() if key.startswith(_CATALOG)
    )
    return {key: value for key, value in catalog_options if key.lower().startswith(SETTING_PREFIXES)}
