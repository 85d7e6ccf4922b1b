package io.streamhouse.spark.read;

import org.apache.spark.sql.connector.read.PartitionReader;

/** Reader of a partition without rows. */
final class EmptyReader<T> implements PartitionReader<T> {
  @Override
  public boolean next() {
    return false;
  }

  @Override
  public T get() {
    throw new IllegalStateException("there are no rows");
  }

  @Override
  public void close() {}
}
