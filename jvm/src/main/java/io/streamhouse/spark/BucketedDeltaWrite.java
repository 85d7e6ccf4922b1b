package io.streamhouse.spark;

import java.util.function.Supplier;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.types.StructType;

/** Changes of rows that are clustered by bucket. */
final class BucketedDeltaWrite extends KeyedDeltaWrite implements ClusteredByBucket {
  BucketedDeltaWrite(WritableTable table, Write shown, Supplier<Write> inner, StructType written) {
    super(table, shown, inner, written);
  }

  @Override
  public WritableTable table() {
    return table;
  }
}
