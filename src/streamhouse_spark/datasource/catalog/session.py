"""Configure a Spark session with the catalog."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from streamhouse_spark.config.spark_options import SETTING_PREFIXES
from streamhouse_spark.datasource.catalog.jar import catalog_class, jar_path, require_catalog_name
from streamhouse_spark.datasource.worker_python import use_python
from streamhouse_spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HIDDEN: Final = "(?i)secret|password|token|access[.]?key"
"""Spark's default pattern of configuration keys whose values it redacts."""
_HIDDEN_TOO: Final = "account-key"


def configure_session(
    builder: SparkSession.Builder, warehouse: str, catalog: str, settings: Mapping[str, str]
) -> SparkSession.Builder:
    from pyspark.sql import SparkSession

    for key, value in configuration(warehouse, catalog, settings).items():
        builder = builder.config(key, value)
    jar = str(jar_path())
    active = SparkSession.getActiveSession()
    options = {key: str(value) for key, value in builder._options.items()}  # noqa: SLF001 - it cannot be asked otherwise
    if active is not None:  # its JVM has already read spark.jars
        active.sql(f"ADD JAR '{jar}'")
    else:
        use_python(sys.executable, options, os.environ)
    configured_jars = options.get("spark.jars", "")
    jars = [name for name in configured_jars.split(",") if name and name != jar]
    hidden = options.get("spark.redaction.regex", _HIDDEN)
    if _HIDDEN_TOO not in hidden and any(_HIDDEN_TOO in key.lower() for key in settings):
        builder = builder.config("spark.redaction.regex", f"{hidden}|{_HIDDEN_TOO}")
    return builder.config("spark.jars", ",".join([*jars, jar]))


def configuration(warehouse: str, catalog: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the catalog's configuration, without the jar."""
    require_catalog_name(catalog)
    if not str(warehouse).strip():
        raise InvalidOptionError("no warehouse was given: say configure(builder, warehouse='<directory or URL>')")
    for key in settings:
        if not key.lower().startswith(SETTING_PREFIXES):
            raise InvalidOptionError(
                f"setting {key!r} is unknown; settings begin with {', '.join(SETTING_PREFIXES)}",
            )
    prefix = f"spark.sql.catalog.{catalog}"
    return {
        prefix: catalog_class(),
        f"{prefix}.warehouse": str(warehouse),
        **{f"{prefix}.{key}": str(value) for key, value in settings.items()},
    }
