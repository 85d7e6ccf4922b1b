package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;

/** A write of rows that are clustered by bucket. */
final class BucketedWrite extends TableWrite implements RequiresBucketDistribution {
  BucketedWrite(WritableTable table, LogicalWriteInfo info, Write inner, ObjectNode overwriteFilter) {
    super(table, info, inner, overwriteFilter);
  }

  @Override
  public WritableTable table() {
    return table;
  }
}
