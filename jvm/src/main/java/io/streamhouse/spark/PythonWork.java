package io.streamhouse.spark;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** What Python reads of a plan: a partition for each of its groups, and their reader, which belong together. */
final class PythonWork {
  final InputPartition[] partitions;
  final PartitionReaderFactory reader;

  PythonWork(InputPartition[] partitions, PartitionReaderFactory reader) {
    this.partitions = partitions;
    this.reader = reader;
  }
}
