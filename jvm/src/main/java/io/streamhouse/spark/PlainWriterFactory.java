package io.streamhouse.spark;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.types.StructType;

/** Makes the plain writers of tasks, of a batch's or of a stream's. */
final class PlainWriterFactory implements DataWriterFactory, StreamingDataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final Serializable inner;
  private final StructType schema;
  private final long carriedBytesMax;

  /** Carries no rows if the most bytes of a task are 0. */
  PlainWriterFactory(Serializable inner, StructType schema, long carriedBytesMax) {
    this.inner = inner;
    this.schema = schema;
    this.carriedBytesMax = carriedBytesMax;
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task) {
    return new PlainWriter(() -> ((DataWriterFactory) inner).createWriter(partition, task), schema, 0, false);
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
    return new PlainWriter(
        () -> ((StreamingDataWriterFactory) inner).createWriter(partition, task, epoch), schema, carriedBytesMax, true);
  }
}
