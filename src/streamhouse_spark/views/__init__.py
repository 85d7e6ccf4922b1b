"""Materialized tables and their incremental refresh."""

from importlib.util import find_spec

from streamhouse_spark.errors import MissingExtraError

if find_spec("sqlglot") is None:
    raise MissingExtraError(
        "materialized tables need sqlglot, which is not installed; use pip install 'streamhouse-spark[spark]'"
    )
