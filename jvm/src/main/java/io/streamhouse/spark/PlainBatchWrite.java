package io.streamhouse.spark;

import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** Python's write; its errors on the driver and in tasks, such as a row that does not fit, are shown plainly. */
final class PlainBatchWrite implements BatchWrite {
  private final BatchWrite inner;

  PlainBatchWrite(BatchWrite inner) {
    this.inner = inner;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    DataWriterFactory factory = Errors.plainly(() -> inner.createBatchWriterFactory(info));
    return new PlainWriterFactory(factory);
  }

  @Override
  public boolean useCommitCoordinator() {
    return inner.useCommitCoordinator();
  }

  @Override
  public void onDataWriterCommit(WriterCommitMessage message) {
    inner.onDataWriterCommit(message);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    Errors.plainly(() -> inner.commit(messages));
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    inner.abort(messages);
  }
}
