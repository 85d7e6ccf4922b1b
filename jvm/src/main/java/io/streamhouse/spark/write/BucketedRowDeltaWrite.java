package io.streamhouse.spark.write;

import java.util.function.Supplier;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.types.StructType;

/** Changes of rows that are clustered by bucket. */
final class BucketedRowDeltaWrite extends RowDeltaWrite implements RequiresBucketDistribution {
  BucketedRowDeltaWrite(WritableTable table, Write displayWrite, Supplier<Write> writeSupplier, StructType written) {
    super(table, displayWrite, writeSupplier, written);
  }

  @Override
  public WritableTable table() {
    return table;
  }
}
