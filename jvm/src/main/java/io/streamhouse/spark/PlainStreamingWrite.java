package io.streamhouse.spark;

import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/** The {@link PlainBatchWrite} of a stream. */
final class PlainStreamingWrite implements StreamingWrite {
  private final StreamingWrite inner;

  PlainStreamingWrite(StreamingWrite inner) {
    this.inner = inner;
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    StreamingDataWriterFactory factory = Errors.plainly(() -> inner.createStreamingWriterFactory(info));
    return new PlainStreamingWriterFactory(factory);
  }

  @Override
  public boolean useCommitCoordinator() {
    return inner.useCommitCoordinator();
  }

  @Override
  public void commit(long epoch, WriterCommitMessage[] messages) {
    Errors.plainly(() -> inner.commit(epoch, messages));
  }

  @Override
  public void abort(long epoch, WriterCommitMessage[] messages) {
    inner.abort(epoch, messages);
  }
}
