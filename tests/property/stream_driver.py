"""Drives a stream reader as Spark's micro-batch engine does, without Spark: to be stopped and repeated at any batch."""

from __future__ import annotations

import json

from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.read_target import resolve_stream_target
from streamhouse_spark.datasource.stream.micro_batch_stream import StreamhouseStreamReader


class Opened:
    """The part of a connection that a reader needs, for a warehouse in memory."""

    def __init__(self, warehouse):
        self._warehouse = warehouse

    def table(self, name):
        return self._warehouse.table(str(parse_table_name(name).path))

    def find_table(self, name):
        return self._warehouse.find_table(str(parse_table_name(name).path))

    def find_table_with(self, name, _beside):
        return self.find_table(name), None

    def table_by_uuid(self, name, _uuid):
        return self.table(name)


class Query:
    """A streaming query: its checkpoint, and the rows of each batch in the order of its tasks."""

    def __init__(self, name, **options):
        self.name = name
        self.options = options
        self.offsets = []
        """The end of each batch that began, as text."""
        self.committed = 0
        self.batches = {}

    def reader(self, warehouse):
        options = parse_stream_read_options(self.options)
        connection = Opened(warehouse)
        table = connection.table(self.name)
        target = resolve_stream_target(table, parse_table_name(self.name).suffix, options)
        return StreamhouseStreamReader(
            connection, target, options, spark_versions.spark_schema_of(target.schema), table.state
        )

    def run(self, warehouse, *, batches=None, unfinished=False):
        """Run from the checkpoint until nothing is new, or for so many batches; ``unfinished`` dies within the last.

        A batch that is repeated has to give the same rows, in whatever order.
        """
        reader = self.reader(warehouse)
        start = self.offsets[self.committed - 1] if self.committed else json.dumps(reader.initialOffset())
        left = batches
        while left != 0:
            if len(self.offsets) == self.committed:
                end = json.dumps(reader.latestOffset(json.loads(start), reader.getDefaultReadLimit()))
                if end == start:
                    return
                self.offsets.append(end)
            end = self.offsets[self.committed]
            found = self._rows(reader, json.loads(start), json.loads(end))
            before = self.batches.setdefault(self.committed, found)
            assert sorted(found, key=str) == sorted(before, key=str)
            left = None if left is None else left - 1
            if unfinished and left == 0:
                return
            reader.commit(json.loads(end))
            self.committed, start = self.committed + 1, end

    def _rows(self, reader, start, end):
        partitions = reader.partitions(start, end)
        return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]

    @property
    def rows(self):
        """All rows, batch by batch."""
        return [row for number in sorted(self.batches) for row in self.batches[number]]
