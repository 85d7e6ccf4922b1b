package io.streamhouse.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.types.StructType;

/** Makes the writer of each task. */
final class ChunkWriterFactory implements DeltaWriterFactory {
  private static final long serialVersionUID = 1L;
  private final DataWriterFactory inner;
  private final StructType written;
  private final int columns;

  ChunkWriterFactory(DataWriterFactory inner, StructType written, int columns) {
    this.inner = inner;
    this.written = written;
    this.columns = columns;
  }

  @Override
  public DeltaWriter<InternalRow> createWriter(int partition, long task) {
    return new ChunkWriter(inner, partition, task, written, columns);
  }
}
