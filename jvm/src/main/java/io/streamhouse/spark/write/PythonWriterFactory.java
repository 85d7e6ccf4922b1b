package io.streamhouse.spark.write;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.types.StructType;

/** Makes the plain writers of tasks, of a batch's or of a stream's. */
final class PythonWriterFactory implements DataWriterFactory, StreamingDataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final Serializable pythonFactory;
  private final StructType schema;
  private final long inlineBytesMax;

  /** Carries no rows if the most bytes of a task are 0. */
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
