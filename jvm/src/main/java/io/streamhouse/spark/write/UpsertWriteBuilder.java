package io.streamhouse.spark.write;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/** Builds a write to a table with upserts, which accepts streams in update mode. */
final class UpsertWriteBuilder extends TableWriteBuilder implements SupportsStreamingUpdateAsAppend {
  UpsertWriteBuilder(WritableTable table, LogicalWriteInfo info, WriteBuilder inner) {
    super(table, info, inner);
  }
}
