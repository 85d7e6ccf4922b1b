package io.streamhouse.spark.read;

import java.lang.reflect.Field;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.datasources.parquet.SpecificParquetRecordReaderBase;

/**
 * How many rows Spark's Parquet reader gives of its file. It knows that once it has opened it, and tells nobody. Where
 * all rows come, their positions can be counted: Spark makes an object for each row that it numbers, which takes longer
 * than reading some columns.
 */
final class RowCountHint {
  private RowCountHint() {}

  /** The number; -1 for a reader that is made in another way than those that are known. */
  static long of(PartitionReader<?> reader) {
    try {
      for (Field field : reader.getClass().getDeclaredFields()) {
        if (!SpecificParquetRecordReaderBase.class.isAssignableFrom(field.getType())) continue;
        field.setAccessible(true);
        Field total = SpecificParquetRecordReaderBase.class.getDeclaredField("totalRowCount");
        total.setAccessible(true);
        return total.getLong(field.get(reader));
      }
    } catch (ReflectiveOperationException | RuntimeException error) {
      return -1;
    }
    return -1;
  }
}
