package io.streamhouse.spark.write;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.types.StructType;

/** Creates the writers of the tasks of a batch or streaming write. */
final class PythonWriterFactory implements DataWriterFactory, StreamingDataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final Serializable pythonFactory;
  private final StructType schema;
  private final long inlineBytesMax;

  /** Creates a factory. {@code inlineBytesMax} is 0 if tasks must not send rows inline. */
  PythonWriterFactory(Serializable pythonFactory, StructType schema, long inlineBytesMax) {
    this.pythonFactory = pythonFactory;
    this.schema = schema;
    this.inlineBytesMax = inlineBytesMax;
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task) {
    return new PythonWriter(() -> ((DataWriterFactory) pythonFactory).createWriter(partition, task), schema, 0, false);
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
    return new PythonWriter(
        () -> ((StreamingDataWriterFactory) pythonFactory).createWriter(partition, task, epoch), schema, inlineBytesMax,
            true);
  }
}
