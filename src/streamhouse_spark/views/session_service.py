"""The service of views of a Spark session: it refreshes by the session, in the warehouse of its catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.datasource.session_warehouse import catalog_connection
from streamhouse_spark.errors import InvalidOptionError, quote
from streamhouse_spark.views.refresh import Refresher
from streamhouse_spark.views.service import ViewService, ViewStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POOL: Final = "streamhouse-views"
"""Pool of Spark's scheduler in which refreshes run beside rounds, where its mode is FAIR."""


def session_views(
    spark: SparkSession,
    warehouse: str,
    names: Sequence[str] | None,
    on_view: Callable[[ViewStatus], None] | None = None,
) -> ViewService:
    """Return the service of these views; of all where there are no names. Raises `InvalidOptionError` where the
    session's catalog ``streamhouse`` is of another warehouse.
    """
    connection = catalog_connection(spark)
    if connection.location != warehouse:
        raise InvalidOptionError(
            f"warehouse is {quote(warehouse)}, and the session's catalog streamhouse is of "
            f"{quote(connection.location)}; use one"
        )
    begin = partial(_enter_pool, spark)
    run = Refresher(spark, connection).step
    return ViewService(run, connection, SystemClock(), names, on_view=on_view, begin=begin)


def _enter_pool(spark: SparkSession) -> None:
    """Have the jobs of this thread run in a pool of their own: long ones of others leave it its share."""
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is not None:
        context.setLocalProperty("spark.scheduler.pool", POOL)
