package io.streamhouse.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/**
 * The changes of an operation on rows. Python's writer is called once a chunk in each task: it takes an iterator, and
 * Spark hands rows over one by one.
 */
class KeyedDeltaWrite implements DeltaWrite, DeltaBatchWrite {
  final WritableTable table;
  private final Write shown;
  private final Supplier<Write> inner;
  private final StructType written;
  private BatchWrite batch;

  /** Makes the writer when the statement runs, because it needs the statement's other reads; another one is shown. */
  KeyedDeltaWrite(WritableTable table, Write shown, Supplier<Write> inner, StructType written) {
    this.table = table;
    this.shown = shown;
    this.inner = inner;
    this.written = written;
  }

  @Override
  public String description() {
    return shown.description();
  }

  @Override
  public DeltaBatchWrite toBatch() {
    batch = new PlainWrite(inner.get().toBatch());
    return this;
  }

  @Override
  public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return new ChunkWriterFactory(batch.createBatchWriterFactory(info), written, table.schema.length());
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    batch.commit(flat(messages));
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    batch.abort(flat(messages));
  }

  private static WriterCommitMessage[] flat(WriterCommitMessage[] messages) {
    List<WriterCommitMessage> found = new ArrayList<>();
    for (WriterCommitMessage message : messages) {
      if (message == null) found.add(null);
      else found.addAll(((ChunkMessages) message).chunks);
    }
    return found.toArray(new WriterCommitMessage[0]);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return shown.supportedCustomMetrics();
  }
}
