package io.streamhouse.spark;

import java.util.Map;
import java.util.function.Consumer;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/**
 * Python's write; its errors on the driver and in tasks, such as a row that does not fit, are shown plainly. Tasks of a
 * stream may carry few rows to the driver.
 */
final class PlainWrite implements BatchWrite, StreamingWrite {
  private static final long CARRIED_BYTES_MAX = 256 << 10;
  private static final long BATCH_BYTES_MAX = 16 << 20;
  private static final long KEPT_NS = 10_000_000_000L;
  private static final Kept<PlainWrite> KNOWN = new Kept<>(1 << 20);
  private final long made = System.nanoTime();
  private final BatchWrite batch;
  private final LogicalWriteInfo info;
  private final String table;
  private final Consumer<Map<String, String>> told;
  private StreamingWrite stream;
  private StreamingDataWriterFactory factory;

  PlainWrite(BatchWrite batch) {
    this.batch = batch;
    this.info = null;
    this.table = null;
    this.told = null;
  }

  /**
   * Carries rows if the id of the table is told; it need not be this one's alone. What a batch wrote is {@code told}
   * behind its commit.
   */
  PlainWrite(StreamingWrite stream, LogicalWriteInfo info, String table, Consumer<Map<String, String>> told) {
    this.told = told;
    this.batch = null;
    this.stream = stream;
    this.info = info;
    this.table = table;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
    DataWriterFactory found = Errors.plainly(() -> batch.createBatchWriterFactory(physical));
    return new PlainWriterFactory(found, null, 0);
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
    long share = BATCH_BYTES_MAX / Math.max(1, physical.numPartitions());
    long most = table == null ? 0 : Math.min(CARRIED_BYTES_MAX, share);
    StreamingDataWriterFactory found = Errors.plainly(() -> planned(physical));
    return new PlainWriterFactory(found, info.schema(), most);
  }

  /**
   * Takes Python's plan of an earlier batch of the query for a while, because tasks that carry their rows need none.
   * The commit is planned by the present table, and refuses rows of a task that do not fit it any more.
   */
  private StreamingDataWriterFactory planned(PhysicalWriteInfo physical) {
    if (table == null) return stream.createStreamingWriterFactory(physical);
    String key = info.queryId() + table + info.options().asCaseSensitiveMap() + info.schema().json();
    PlainWrite known = KNOWN.find(key);
    if (known == null || System.nanoTime() - known.made > KEPT_NS) {
      factory = stream.createStreamingWriterFactory(physical);
      KNOWN.keep(key, this, 0);
      return factory;
    }
    stream = known.stream;
    return known.factory;
  }

  @Override
  public boolean useCommitCoordinator() {
    return batch != null ? batch.useCommitCoordinator() : stream.useCommitCoordinator();
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    Errors.plainly(
        () -> {
          batch.commit(messages);
          return null;
        });
  }

  @Override
  public void commit(long epoch, WriterCommitMessage[] messages) {
    Errors.plainly(
        () -> {
          stream.commit(epoch, CountedMessage.plain(messages));
          return null;
        });
    told.accept(CountedMessage.sums(messages));
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    batch.abort(messages);
  }

  /** Does nothing, as Python does. Asking it would only fail again where the commit did, and hide the first error. */
  @Override
  public void abort(long epoch, WriterCommitMessage[] messages) {}
}
