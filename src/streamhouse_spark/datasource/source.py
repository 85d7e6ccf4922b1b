"""The data source ``streamhouse``: the methods that Spark calls.

Spark passes arguments by name, so parameter names are part of the interface. Spark imports this module in each Python
worker, so methods import only what they need.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from streamhouse_spark.config.spark_options import (
    WAREHOUSE_VARIABLE,
    Mode,
    StreamReadOptions,
    parse_read_options,
    parse_stream_read_options,
    parse_stream_write_options,
    parse_write_options,
    table_option,
)
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import rpc_arguments
from streamhouse_spark.datasource.worker import ErrorBoundary, release_memory_after
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.warehouse.process_cache import Connection, connect

if TYPE_CHECKING:
    from streamhouse_spark.config.spark_options import WriteOptions
    from streamhouse_spark.datasource.read.read_target import ReadTarget
    from streamhouse_spark.datasource.write.replaced_part import ReplacedPart
    from streamhouse_spark.log.state import TableState
    from streamhouse_spark.table.table import Table


class StreamhouseDataSource(ErrorBoundary, DataSource):
    """Tables of a streamhouse warehouse, for ``format("streamhouse")``.

    ::

        spark.read.format("streamhouse").option("warehouse", W).load("sales.orders")
        spark.read.format("streamhouse").option("warehouse", W).load("sales.orders$lake")
        spark.readStream.format("streamhouse").option("warehouse", W).load("sales.orders")
        df.write.format("streamhouse").option("warehouse", W).mode("append").save("sales.orders")
        df.write.format("streamhouse").option("warehouse", W).mode("overwrite").save("sales.orders")
        sdf.writeStream.format("streamhouse").option("warehouse", W).option("checkpointLocation", C).start("sales.copy")

    Two limits of Spark:

    * Spark pushes neither columns nor filters to a Python source. If the session has the jar, the catalog pushes them
      down for batch reads and streams. Without the jar, name the columns:
      ``spark.read.schema("order_id long, amount double").format("streamhouse")…`` reads only these.
    * A DataFrame, or a temporary view of it, reads the state of its **first** use, because Spark plans its partitions
      once. Call ``load`` again to read newer rows.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Captured on the driver and pickled: executors may have another environment.
        self._environ = {k: v for k, v in os.environ.items() if k == WAREHOUSE_VARIABLE}
        self.keeps_traceback = any(map(rpc_arguments.is_internal, options))

    @classmethod
    def name(cls) -> str:
        return "streamhouse"

    def schema(self) -> StructType:
        if rpc_arguments.CALL_OPTION in self.options:  # from the catalog, not from a user
            from streamhouse_spark.datasource.catalog.rpc import answer

            return answer(self._connection, self.options)
        from streamhouse_spark.datasource.spark_schema import add_text_lengths, read_schema
        from streamhouse_spark.table.system_views import CHANGELOG, LAKE

        options = _user_options(self.options)
        table, suffix = self._open_table(options, "read")
        state, target = _resolve_on_one_state(table, lambda: _resolve_any_target(table, suffix, options))
        offered = read_schema(target.schema, state.schema)
        return add_text_lengths(offered, state.schema) if suffix in (None, LAKE, CHANGELOG) else offered

    def reader(self, schema: StructType) -> DataSourceReader:
        if self.options.get(rpc_arguments.CALL_OPTION) == rpc_arguments.READ_STREAM:
            from streamhouse_spark.datasource.scan.stream_pushdown import StreamPartReader

            return StreamPartReader(self._connection())
        if self.options.get(rpc_arguments.CALL_OPTION) == rpc_arguments.RUN_TASKS:
            from streamhouse_spark.datasource.catalog.procedures.spark_jobs import TaskReader

            return TaskReader(self._connection(), self.options[rpc_arguments.ARGUMENTS_OPTION], schema)
        if rpc_arguments.CALL_OPTION in self.options:
            from streamhouse_spark.datasource.scan.arrow_reader import ArrowReader

            return ArrowReader(self._connection(), self.options[rpc_arguments.ARGUMENTS_OPTION])
        from streamhouse_spark.datasource.read.batch import StreamhouseReader
        from streamhouse_spark.datasource.read.read_target import resolve_batch_target

        user_options = _user_options(self.options)
        options = parse_read_options(user_options)
        table, suffix = self._open_table(user_options, "read")
        state, target = _resolve_on_one_state(table, lambda: resolve_batch_target(table, suffix, options))
        return StreamhouseReader(self._connection(), target, options, schema, state.schema).with_tracebacks(self)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            return self._stream_reader(schema)
        except StreamhouseError as error:
            return UnsupportedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from streamhouse_spark.datasource.read.read_target import resolve_stream_target
        from streamhouse_spark.datasource.stream.micro_batch_stream import StreamhouseStreamReader

        user_options = _user_options(self.options)
        options = self._stream_read_options(user_options)
        table, suffix = self._open_table(user_options, "readStream")
        state, target = _resolve_on_one_state(table, lambda: resolve_stream_target(table, suffix, options))
        reader_class = StreamhouseStreamReader
        if rpc_arguments.NEED_OPTION in self.options:
            from streamhouse_spark.datasource.scan.stream_pushdown import PrunedStreamReader

            reader_class = PrunedStreamReader
        return reader_class(self._connection(), target, options, schema, state)

    @release_memory_after
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        user_options = _user_options(self.options)
        options = parse_write_options(user_options)
        name = table_option(user_options, "write")
        staged = self.options[rpc_arguments.UUID_OPTION] if rpc_arguments.STAGED_OPTION in self.options else None
        if staged is None:
            self._require_loaded(name)
        if rpc_arguments.READ_OPTION in self.options:
            return self._row_level_writer(name, schema)
        from streamhouse_spark.datasource.write.spark_writer import StreamhouseWriter

        write_arguments: dict[str, Any] = {
            "overwrite": overwrite,
            "is_clustered": self._is_clustered(),
            "staged": staged,
        }
        replaced = self._replaced_part(name, options, overwrite=overwrite)
        return StreamhouseWriter(
            self._connection(), name, options, schema, replaced=replaced, **write_arguments
        ).with_tracebacks(self)

    def _replaced_part(self, name: str, options: WriteOptions, *, overwrite: bool) -> ReplacedPart | None:
        if rpc_arguments.REPLACED_OPTION in self.options:
            from streamhouse_spark.datasource.dml.pushed_conditions import parse_overwrite_filter

            return parse_overwrite_filter(self._connection(), name, self.options[rpc_arguments.REPLACED_OPTION])
        if options.replace_where is None:
            return None
        if not overwrite:
            raise InvalidOptionError(
                f"replaceWhere requires mode('overwrite'), but the write to {name} uses mode('append'); use "
                "mode('overwrite'), or omit replaceWhere"
            )
        from streamhouse_spark.datasource.write.replaced_part import parse_replace_where

        return parse_replace_where(self._connection().table(name), options.replace_where)

    def _row_level_writer(self, name: str, schema: StructType) -> DataSourceWriter:
        from streamhouse_spark.datasource.dml.read_set import ReadSet
        from streamhouse_spark.log.read_version import ReadVersion

        connection = self._connection()
        read = ReadSet.from_text(self.options[rpc_arguments.SCOPE_OPTION]).restrict(
            ReadVersion.from_text(self.options[rpc_arguments.READ_OPTION])
        )
        if not connection.table(name).state.primary_key:
            from streamhouse_spark.datasource.dml.log_rewrite_writer import LogRewriteWriter

            return LogRewriteWriter(connection, name, read)
        from streamhouse_spark.datasource.dml.keyed_row_writer import KeyedRowWriter

        return KeyedRowWriter(connection, name, read, schema, is_clustered=self._is_clustered())

    @release_memory_after
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001
        user_options = _user_options(self.options)
        options = parse_stream_write_options(user_options)
        name = table_option(user_options, "writeStream")
        if overwrite:
            raise InvalidOptionError(
                f"stream into {name}: output mode complete would append all results again in each batch; use "
                "outputMode('append'), or overwrite a separate table with the results in foreachBatch"
            )
        self._require_loaded(name)
        from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter

        checkpoint = user_options.get("checkpointlocation")
        if rpc_arguments.REAL_TIME_OPTION in self.options:
            from streamhouse_spark.datasource.realtime.sink import RealTimeStreamWriter
            from streamhouse_spark.datasource.write.sink_transactions import SourceProgress

            rows = SourceProgress(*self.options[rpc_arguments.REAL_TIME_OPTION].split(" "))
            return RealTimeStreamWriter(
                self._connection(), name, options, checkpoint, schema, rows=rows
            ).with_tracebacks(self)
        return StreamhouseStreamWriter(
            self._connection(), name, options, checkpoint, schema, is_clustered=self._is_clustered()
        ).with_tracebacks(self)

    def _is_clustered(self) -> bool:
        return rpc_arguments.CLUSTERED_OPTION in self.options

    def _connection(self) -> Connection:
        return connect(self.options, self._environ)

    def _open_table(self, user_options: Mapping[str, str], mode: Mode) -> tuple[Table, str | None]:
        name = parse_table_name(table_option(user_options, mode))
        table = self._connection().table(str(name.path))
        self._require_same_table(table)
        return table, name.suffix

    def _stream_read_options(self, user_options: Mapping[str, str]) -> StreamReadOptions:
        if rpc_arguments.UUID_OPTION not in self.options:
            return parse_stream_read_options(user_options)
        from streamhouse_spark.datasource.scan.catalog_options import parse_catalog_stream_options

        return parse_catalog_stream_options(table_option(user_options, "readStream"), user_options)

    def _require_loaded(self, name: str) -> None:
        if rpc_arguments.UUID_OPTION in self.options:
            self._require_same_table(self._connection().table(name))

    def _require_same_table(self, table: Table) -> None:
        if (uuid := self.options.get(rpc_arguments.UUID_OPTION)) is not None:
            rpc_arguments.require_loaded_table(table.name, table.uuid, uuid)


class UnsupportedStream(ErrorBoundary, DataSourceStreamReader):
    """Placeholder for an invalid stream. Its first use raises the error.

    If ``streamReader`` itself raised the error, Spark would hide it: Spark would fail while it stops the missing
    reader.
    """

    def __init__(self, error: StreamhouseError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802, ARG002
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        raise self._error


def _resolve_on_one_state(table: Table, make: Callable[[], ReadTarget]) -> tuple[TableState, ReadTarget]:
    """Return a target and the state that it was resolved on. Concurrent queries may refresh the table, then retry."""
    while True:
        state, target = table.state, make()
        if table.state is state:
            return state, target


def _resolve_any_target(table: Table, suffix: str | None, user_options: Mapping[str, str]) -> ReadTarget:
    """Return the target of a batch read or a stream. Spark requests the schema of either with the same call."""
    from streamhouse_spark.datasource.read.read_target import resolve_batch_target, resolve_stream_target

    try:
        return resolve_batch_target(table, suffix, parse_read_options(user_options))
    except InvalidOptionError as error:
        try:
            return resolve_stream_target(table, suffix, parse_stream_read_options(user_options))
        except StreamhouseError:
            raise error from None


def _user_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items() if not rpc_arguments.is_internal(name)}
