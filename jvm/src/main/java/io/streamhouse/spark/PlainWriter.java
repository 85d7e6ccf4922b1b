package io.streamhouse.spark;

import java.io.IOException;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** Python's writer in a task. */
final class PlainWriter implements DataWriter<InternalRow> {
  private final DataWriter<InternalRow> inner;

  PlainWriter(DataWriter<InternalRow> inner) {
    this.inner = inner;
  }

  @Override
  public void write(InternalRow row) {
    Errors.plainly(() -> inner.write(row));
  }

  @Override
  public void writeAll(Iterator<InternalRow> rows) {
    Errors.plainly(() -> inner.writeAll(rows));
  }

  @Override
  public WriterCommitMessage commit() {
    return Errors.plainly(inner::commit);
  }

  @Override
  public void abort() throws IOException {
    inner.abort();
  }

  @Override
  public void close() throws IOException {
    inner.close();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return inner.currentMetricsValues();
  }
}
