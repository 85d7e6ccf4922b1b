"""Spark sessions: configuration of the catalog and of the Python of workers, and the warehouse of a session.

PySpark is imported only in functions that have a session or a builder, because commands configure workers before they
check whether PySpark is installed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamhouse_spark.config.spark_options import SETTING_PREFIXES, WAREHOUSE_VARIABLE
from streamhouse_spark.datasource.catalog.jar import catalog_class, jar_path, require_catalog_name
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.warehouse.process_cache import Connection, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER_VARIABLE: Final = "PYSPARK_PYTHON"
_WORKER_OPTION: Final = "spark.pyspark.python"
_LOCAL: Final = re.compile(r"local(\[.*\])?")
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set if spark-submit started this process. Then Python and master are already chosen."""
_LINE: Final = re.compile(r"\s*(?P<name>[^\s=:#]+)\s*[\s=:]\s*(?P<value>.*?)\s*")
_REDACTED: Final = "(?i)secret|password|token|access[.]?key"
"""Spark's default pattern of configuration keys whose values it redacts."""
_ALSO_REDACTED: Final = "account-key"
_CATALOG = "spark.sql.catalog.streamhouse."


def set_worker_python(executable: str, options: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Set the Python executable of workers in the environment, for a session with these options. Does nothing if
    another Python was set, if the master is not local, or if spark-submit started this process.

    A master that is set on the builder later is ignored.
    """
    if WORKER_VARIABLE in environ or _SUBMITTED in environ:
        return
    settings = {**_read_spark_defaults(environ), **options}
    if _WORKER_OPTION not in settings and _LOCAL.fullmatch(_master(settings, environ)):
        environ[WORKER_VARIABLE] = executable


def _master(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    remote = settings.get("spark.remote") or environ.get("SPARK_REMOTE")
    arguments = re.search(r"--master[\s=]+(\S+)", environ.get("PYSPARK_SUBMIT_ARGS", ""))
    submitted = arguments[1] if arguments else None
    return remote or settings.get("spark.master") or submitted or environ.get("MASTER") or "local[*]"


def _read_spark_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in Spark's defaults file, or no settings if the file does not exist."""
    home = environ.get("SPARK_HOME")
    folder = environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if folder is None:
        return {}
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return {match["name"]: match["value"] for match in matches if match is not None}


def configure_session(
    builder: SparkSession.Builder, warehouse: str, catalog: str, settings: Mapping[str, str]
) -> SparkSession.Builder:
    from pyspark.sql import SparkSession

    for key, value in catalog_configuration(warehouse, catalog, settings).items():
        builder = builder.config(key, value)
    jar = str(jar_path())
    active = SparkSession.getActiveSession()
    options = {key: str(value) for key, value in builder._options.items()}  # noqa: SLF001 - no public API
    if active is not None:  # its JVM has already read spark.jars
        active.sql(f"ADD JAR '{jar}'")
    else:
        set_worker_python(sys.executable, options, os.environ)
    configured_jars = options.get("spark.jars", "")
    jars = [name for name in configured_jars.split(",") if name and name != jar]
    redacted = options.get("spark.redaction.regex", _REDACTED)
    if _ALSO_REDACTED not in redacted and any(_ALSO_REDACTED in key.lower() for key in settings):
        builder = builder.config("spark.redaction.regex", f"{redacted}|{_ALSO_REDACTED}")
    return builder.config("spark.jars", ",".join([*jars, jar]))


def catalog_configuration(warehouse: str, catalog: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the catalog's configuration, without the jar."""
    require_catalog_name(catalog)
    if not str(warehouse).strip():
        raise InvalidOptionError(
            "warehouse is empty, expected a directory or URL: configure(builder, warehouse='<directory or URL>')"
        )
    for key in settings:
        if not key.lower().startswith(SETTING_PREFIXES):
            raise InvalidOptionError(
                f"unknown setting {key!r}, expected a name that starts with {', '.join(SETTING_PREFIXES)}"
            )
    prefix = f"spark.sql.catalog.{catalog}"
    return {
        prefix: catalog_class(),
        f"{prefix}.warehouse": str(warehouse),
        **{f"{prefix}.{key}": str(value) for key, value in settings.items()},
    }


def connect_session(
    spark: SparkSession, warehouse: str | None, settings: Mapping[str, str] | None = None
) -> Connection:
    """Connect to ``warehouse``, or to the warehouse of the environment, or of the session's catalog ``streamhouse``.

    For the catalog, its settings are used, and ``settings`` override them. Raises `InvalidOptionError` if no warehouse
    is found.
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
        raise InvalidOptionError(
            "the session has no catalog streamhouse; create the session with streamhouse_spark.configure"
        )
    return connect({**_catalog_settings(spark), "warehouse": warehouse}, {})


def _catalog_settings(spark: SparkSession) -> dict[str, str]:
    catalog_options = (
        (key.removeprefix(_CATALOG), value) for key, value in spark.conf.getAll.items() if key.startswith(_CATALOG)
    )
    return {key: value for key, value in catalog_options if key.lower().startswith(SETTING_PREFIXES)}
