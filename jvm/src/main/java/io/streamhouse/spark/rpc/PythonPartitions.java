package io.streamhouse.spark.rpc;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** The input partitions of a Python plan and the factory of their readers. */
public final class PythonPartitions {
  public final InputPartition[] partitions;
  public final PartitionReaderFactory readerFactory;

  PythonPartitions(InputPartition[] partitions, PartitionReaderFactory readerFactory) {
    this.partitions = partitions;
    this.readerFactory = readerFactory;
  }
}
