package io.streamhouse.spark;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;

/** A write of rows that are clustered by bucket. */
final class BucketedWrite extends TableWrite implements ClusteredByBucket {
  BucketedWrite(WritableTable table, LogicalWriteInfo info, Write inner) {
    super(table, info, inner);
  }

  @Override
  public WritableTable table() {
    return table;
  }
}
