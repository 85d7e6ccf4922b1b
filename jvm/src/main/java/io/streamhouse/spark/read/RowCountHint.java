package io.streamhouse.spark.read;

import java.lang.reflect.Field;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.datasources.parquet.SpecificParquetRecordReaderBase;

/**
 * The number of rows that Spark's Parquet reader will return for a file. The reader knows it once the file is open but
 * does not expose it, so it is read by reflection.
 *
 *
 * <p>If all rows are returned, their positions can be counted. Spark would create an object for each row that it
 * numbers, which takes longer than reading some columns.
 */
final class RowCountHint {
  private RowCountHint() {}

  /** Returns the number, or -1 if this version of the reader is unknown. */
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
