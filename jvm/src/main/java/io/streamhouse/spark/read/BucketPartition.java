package io.streamhouse.spark.read;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;

/** A partition with the rows of one bucket. Spark joins such partitions of two tables without a shuffle. */
public final class BucketPartition implements HasPartitionKey {
  private static final long serialVersionUID = 1L;
  final InputPartition inner;
  private final int bucket;

  public BucketPartition(InputPartition inner, int bucket) {
    this.inner = inner;
    this.bucket = bucket;
  }

  @Override
  public InternalRow partitionKey() {
    return new GenericInternalRow(new Object[] {bucket});
  }

  static InputPartition unwrap(InputPartition partition) {
    return partition instanceof BucketPartition ? ((BucketPartition) partition).inner : partition;
  }
}
