package io.streamhouse.spark.rpc;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** What Python reads of a plan: a partition for each of its groups, and their reader, which belong together. */
public final class PythonPartitions {
  public final InputPartition[] partitions;
  public final PartitionReaderFactory readerFactory;

  PythonPartitions(InputPartition[] partitions, PartitionReaderFactory readerFactory) {
    this.partitions = partitions;
    this.readerFactory = readerFactory;
  }
}
