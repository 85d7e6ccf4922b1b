package io.streamhouse.spark.write;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.types.StructType;

/** Makes the writer of each task. */
final class RowDeltaWriterFactory implements DeltaWriterFactory {
  private static final long serialVersionUID = 1L;
  private final DataWriterFactory pythonWriters;
  private final StructType written;
  private final int columns;

  RowDeltaWriterFactory(DataWriterFactory pythonWriters, StructType written, int columns) {
    this.pythonWriters = pythonWriters;
    this.written = written;
    this.columns = columns;
  }

  @Override
  public DeltaWriter<InternalRow> createWriter(int partition, long task) {
    return new RowDeltaWriter(pythonWriters, partition, task, written, columns);
  }
}
