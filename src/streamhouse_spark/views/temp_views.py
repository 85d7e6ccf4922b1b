"""Temporary views of a refresh: its sources at the old and the new version, and the changes in between.

The names are unique to the refresh. The refresh drops the temporary views when it ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.log.transactions import SourceVersion
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from streamhouse_spark.table.refresh_commit import RefreshStep

CATALOG = "streamhouse"
_WEIGHT_SQL = "CASE WHEN _change_type IN ('insert', 'update_after') THEN 1 ELSE -1 END"


class TempViews:
    """Temporary views of a refresh. A view is created when a statement refers to it."""

    def __init__(self, spark: SparkSession, prefix: str, names: Sequence[str], keyed: Mapping[str, bool]) -> None:
        self._spark = spark
        self.prefix = prefix
        self._names = tuple(names)
        self._keyed = keyed
        self._created: set[str] = set()
        self._local: dict[str, tuple[pa.Table, StructType]] = {}
        self._step: RefreshStep | None = None
        self.read_by_name: set[str] = set()
        """Sources that Spark has read by name. A name may have referred to a recreated table."""

    @property
    def ids(self) -> dict[str, str]:
        """Source → name of the source in plans."""
        return {name: f"t{number}" for number, name in enumerate(self._names)}

    def begin(self, step: RefreshStep) -> None:
        """Drop the temporary views, and read at the versions of a step."""
        self.drop()
        self._step = step

    def sql(self, text: str) -> DataFrame:
        """Return the rows of a query over the relations."""
        for name in sorted(self._relation_names(text) - self._created):
            frame = (
                self._spark.createDataFrame(*self._local[name]) if name in self._local else self._read_relation(name)
            )
            frame.createOrReplaceTempView(name)
            self._created.add(name)
        return self._spark.sql(text)

    def create(self, name: str, rows: pa.Table, schema: StructType) -> str:
        """Create a relation of local rows, and return its name. Spark then knows the number of rows."""
        full = f"{self.prefix}{name}"
        self._spark.createDataFrame(rows, schema).createOrReplaceTempView(full)
        self._created.add(full)
        return full

    def register_local(self, name: str, rows: pa.Table) -> None:
        """Register local rows for a relation. The relation is created when a query refers to it."""
        self._local[f"{self.prefix}{name}"] = (rows, spark_versions.spark_schema_of(rows.schema))

    def is_local(self, text: str) -> bool:
        """Return whether a query reads only local rows."""
        return self._relation_names(text) <= self._local.keys()

    def _relation_names(self, text: str) -> set[str]:
        return set(re.findall(rf"\b{self.prefix}t\d+_(?:old|new|delta)(?:_by_c\d+)?\b", text))

    def at_version(self, table: str, version: int, name: str) -> str:
        """Create a relation of a table at a version, and return its name."""
        full = f"{self.prefix}{name}"
        self._read_version(table, version).createOrReplaceTempView(full)
        self._created.add(full)
        return full

    def drop(self) -> None:
        for name in self._created:
            self._spark.catalog.dropTempView(name)
        self._created.clear()
        self._local.clear()

    def _read_relation(self, full: str) -> DataFrame:
        assert self._step is not None
        number, _, kind = full.removeprefix(f"{self.prefix}t").partition("_")
        name = self._names[int(number)]
        self.read_by_name.add(name)
        new = _find_source(self._step.new.sources, name)
        old = _find_source(self._step.old.sources, name) if self._step.old is not None else None
        if kind == "new" or old is None or (kind == "old" and old.ends == new.ends):
            return self._read_rows(name, new)
        return self._read_rows(name, old) if kind == "old" else self._read_delta(name, old, new)

    def _read_version(self, name: str, version: int) -> DataFrame:
        return self._spark.sql(_version_sql(name, version))

    def _read_rows(self, name: str, source: SourceVersion) -> DataFrame:
        if not source.is_cut:
            return self._read_version(name, source.version)
        below = f"WITH ('endingOffsets' = '{_offsets_json(source.ends)}')"
        return self._spark.sql(f"{_version_sql(name, source.version)} {below}")

    def _read_delta(self, name: str, old: SourceVersion, new: SourceVersion) -> DataFrame:
        ends = {"startingOffsets": _offsets_json(old.ends), "endingOffsets": _offsets_json(new.ends)}
        if self._keyed[name]:
            rows = self._spark.read.options(**ends).table(_quote_path(f"{name}$changelog"))
            return rows.selectExpr(f"{_WEIGHT_SQL} AS {WEIGHT}", "*")
        # Read at the new version, so that rows that were deleted later are included.
        options = ", ".join(f"'{option}' = '{offsets}'" for option, offsets in ends.items())
        return self._spark.sql(f"{_version_sql(name, new.version)} WITH ({options})").selectExpr(f"1 AS {WEIGHT}", "*")


def _find_source(sources: Sequence[SourceVersion], name: str) -> SourceVersion:
    return next(source for source in sources if source.name == name)


def _version_sql(name: str, version: int) -> str:
    return f"SELECT * FROM {_quote_path(name)} VERSION AS OF {version}"


def _offsets_json(ends: Mapping[int, int]) -> str:
    return json.dumps({str(bucket): end for bucket, end in sorted(ends.items())})


def _quote_path(name: str) -> str:
    return ".".join([CATALOG, *map(quote_name, name.split("."))])
