package io.streamhouse.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** Makes the readers of the tasks that follow a log. */
final class FollowingReaderFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;
  private final StructType schema;

  FollowingReaderFactory(StructType schema) {
    this.schema = schema;
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    return new FollowingReader(JsonTree.parse(((FollowedBuckets) partition).described), schema);
  }
}
