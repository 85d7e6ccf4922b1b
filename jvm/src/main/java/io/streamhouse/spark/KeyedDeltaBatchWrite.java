package io.streamhouse.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/** Calls Python's writer once a chunk in each task: it takes an iterator, and Spark hands rows over one by one. */
final class KeyedDeltaBatchWrite implements DeltaBatchWrite {
  private final BatchWrite inner;
  private final StructType written;
  private final int columns;

  KeyedDeltaBatchWrite(BatchWrite inner, StructType written, int columns) {
    this.inner = inner;
    this.written = written;
    this.columns = columns;
  }

  @Override
  public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return new ChunkWriterFactory(inner.createBatchWriterFactory(info), written, columns);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    inner.commit(flat(messages));
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    inner.abort(flat(messages));
  }

  private static WriterCommitMessage[] flat(WriterCommitMessage[] messages) {
    List<WriterCommitMessage> found = new ArrayList<>();
    for (WriterCommitMessage message : messages) {
      if (message == null) found.add(null);
      else found.addAll(((ChunkMessages) message).chunks);
    }
    return found.toArray(new WriterCommitMessage[0]);
  }
}
