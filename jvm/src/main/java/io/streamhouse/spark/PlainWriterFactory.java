package io.streamhouse.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;

/** Makes the plain writers of tasks. */
final class PlainWriterFactory implements DataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final DataWriterFactory inner;

  PlainWriterFactory(DataWriterFactory inner) {
    this.inner = inner;
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task) {
    DataWriter<InternalRow> writer = Errors.plainly(() -> inner.createWriter(partition, task));
    return new PlainWriter(writer);
  }
}
