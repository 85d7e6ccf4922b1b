package io.streamhouse.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;

/** A write of rows that are clustered by bucket. */
final class BucketedWrite extends TableWrite implements ClusteredByBucket {
  BucketedWrite(WritableTable table, LogicalWriteInfo info, Write inner, ObjectNode replaced) {
    super(table, info, inner, replaced);
  }

  @Override
  public WritableTable table() {
    return table;
  }
}
