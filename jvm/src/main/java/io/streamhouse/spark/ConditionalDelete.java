package io.streamhouse.spark;

import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A DELETE from a table without a primary key, until Spark sees that its condition is one that the table takes whole.
 * If it is not, Spark asks for a write, which Python refuses with what to do.
 */
final class ConditionalDelete implements RowLevelOperation {
  private final WritableTable table;
  private final RowLevelOperationInfo info;

  ConditionalDelete(WritableTable table, RowLevelOperationInfo info) {
    this.table = table;
    this.info = info;
  }

  @Override
  public Command command() {
    return Command.DELETE;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.newScanBuilder(options);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo written) {
    return new WriteBuilder() {
      @Override
      public Write build() {
        return new Write() {
          @Override
          public BatchWrite toBatch() {
            KeyedRowLevelOperation.described(table, Command.DELETE, info.options().asCaseSensitiveMap());
            throw new IllegalStateException("a table without a primary key takes no rewritten rows");
          }
        };
      }
    };
  }
}
