"""Differences between PySpark 4.1, 4.2 and 4.3. No other module checks the version of PySpark.

Python sources support admission control and ``Trigger.AvailableNow`` since 4.2. Spark 4.1 calls `latestOffset` without
arguments and reads all rows in one batch, so rate limits are rejected instead of ignored.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import StructType

from streamhouse_spark.errors import InvalidOptionError


def spark_version() -> tuple[int, int]:
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


HAS_ADMISSION_CONTROL = spark_version() >= (4, 2)
HAS_VIEWS = spark_version() >= (4, 2)
"""Whether Spark catalogs support views. Spark before 4.2 cannot load a class that implements them."""

if TYPE_CHECKING:
    from pyspark.sql import Column

if TYPE_CHECKING or not HAS_ADMISSION_CONTROL:

    class SupportsTriggerAvailableNow(ABC):
        """Replacement for a class that PySpark does not have. Spark then runs AvailableNow as one batch."""

        @abstractmethod
        def prepareForTriggerAvailableNow(self) -> None: ...  # noqa: N802 - Spark's name

else:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow  # noqa: PLC0414 - exported


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that every batch of a read with this Spark schema must have."""
    if spark_version() >= (4, 2):
        return arrow_types.to_arrow_schema(schema, timezone="UTC")
    return arrow_types.to_arrow_schema(schema)


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the Spark schema of canonical Arrow columns. Timestamps without zone become ``timestamp_ntz``."""
    return arrow_types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def refuse_limits_without_admission_control(**limits: int | None) -> None:
    """Raise `InvalidOptionError` for a rate limit that this PySpark does not support."""
    limit_names = [name for name, value in limits.items() if value is not None]
    if limit_names and not HAS_ADMISSION_CONTROL:
        raise InvalidOptionError(
            f"option {limit_names[0]} requires PySpark 4.2 or newer, found {pyspark.__version__}, which reads all rows "
            "in one batch; omit the option, or upgrade"
        )


def read_limit(max_rows: int | None, max_bytes: int | None) -> Any:
    """Return Spark's read limit for the options. Requires `HAS_ADMISSION_CONTROL`."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    if max_rows is not None:
        return ReadMaxRows(max_rows)
    return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)


def limit_rows_and_bytes(limit: Any, max_rows: int | None, max_bytes: int | None) -> tuple[int | None, int | None]:
    """Return the row limit and the byte limit of a micro-batch; None means unlimited.

    Spark passes one limit. If both options are set, both limits apply, unless Spark reads all rows.
    """
    kind = type(limit).__name__
    if limit is None or kind == "ReadAllAvailable":
        return None, None
    rows = [n for n in (max_rows, getattr(limit, "max_rows", None)) if n is not None]
    sizes = [n for n in (max_bytes, getattr(limit, "max_bytes", None)) if n is not None]
    return min(rows, default=None), min(sizes, default=None)


def java_class(session: Any, name: str) -> Any | None:
    """Return a Java class, or None if the session's JVM does not have it. Requires a classic session, because Spark
    Connect has no local JVM.
    """
    resolved = functools.reduce(getattr, name.split("."), session._jvm)  # noqa: SLF001 - as PySpark's own functions do
    return None if type(resolved).__name__ == "JavaPackage" else resolved


def java_function(function: Any, argument: Column, *more: Any) -> Column:
    """Return the column that a Java function computes from a column and plain values. Requires a classic session."""
    from pyspark.sql import Column
    from pyspark.sql.classic.column import _to_java_column

    return Column(function(_to_java_column(argument), *more))
