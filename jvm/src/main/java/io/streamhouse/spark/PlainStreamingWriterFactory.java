package io.streamhouse.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/** Makes the plain writers of a stream's tasks. */
final class PlainStreamingWriterFactory implements StreamingDataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final StreamingDataWriterFactory inner;

  PlainStreamingWriterFactory(StreamingDataWriterFactory inner) {
    this.inner = inner;
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
    DataWriter<InternalRow> writer = Errors.plainly(() -> inner.createWriter(partition, task, epoch));
    return new PlainWriter(writer);
  }
}
