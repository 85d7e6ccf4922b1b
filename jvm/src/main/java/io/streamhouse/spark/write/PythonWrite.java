package io.streamhouse.spark.write;

import io.streamhouse.spark.metrics.MetricsCommitMessage;
import io.streamhouse.spark.util.SparkErrors;
import io.streamhouse.spark.util.WeightedLruCache;
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
 * The write of Python's data source, with its errors shown by their message. Tasks of a stream may send a few rows to
 * the driver inline, in their commit message.
 */
final class PythonWrite implements BatchWrite, StreamingWrite {
  private static final long INLINE_BYTES_MAX = 256 << 10;
  private static final long BATCH_INLINE_BYTES_MAX = 16 << 20;
  private static final long PLAN_TTL_NS = 10_000_000_000L;
  private static final WeightedLruCache<PythonWrite> PLANS = new WeightedLruCache<>(1 << 20);
  private final long createdNs = System.nanoTime();
  private final BatchWrite batch;
  private final LogicalWriteInfo info;
  private final String table;
  private final Consumer<Map<String, String>> metricsListener;
  private StreamingWrite stream;
  private StreamingDataWriterFactory factory;

  PythonWrite(BatchWrite batch) {
    this.batch = batch;
    this.info = null;
    this.table = null;
    this.metricsListener = null;
  }

  /**
   * Creates a streaming write. Tasks send inline rows if {@code table} is not null; it need not be unique. The metrics
   * of a batch are reported after its commit.
   */
  PythonWrite(
      StreamingWrite stream, LogicalWriteInfo info, String table, Consumer<Map<String, String>> metricsListener) {
    this.metricsListener = metricsListener;
    this.batch = null;
    this.stream = stream;
    this.info = info;
    this.table = table;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
    DataWriterFactory pythonFactory = SparkErrors.unwrapPythonErrors(() -> batch.createBatchWriterFactory(physical));
    return new PythonWriterFactory(pythonFactory, null, 0);
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
    long share = BATCH_INLINE_BYTES_MAX / Math.max(1, physical.numPartitions());
    long inlineBytesMax = table == null ? 0 : Math.min(INLINE_BYTES_MAX, share);
    StreamingDataWriterFactory pythonFactory = SparkErrors.unwrapPythonErrors(() -> reuseOrCreateFactory(physical));
    return new PythonWriterFactory(pythonFactory, info.schema(), inlineBytesMax);
  }

  /**
   * Reuses Python's plan of an earlier batch for a while, since tasks with inline rows need no plan. The commit uses
   * the current table and rejects rows of a task that no longer fit it.
   */
  private StreamingDataWriterFactory reuseOrCreateFactory(PhysicalWriteInfo physical) {
    if (table == null) return stream.createStreamingWriterFactory(physical);
    String key = info.queryId() + table + info.options().asCaseSensitiveMap() + info.schema().json();
    PythonWrite cached = PLANS.get(key);
    if (cached == null || System.nanoTime() - cached.createdNs > PLAN_TTL_NS) {
      factory = stream.createStreamingWriterFactory(physical);
      PLANS.put(key, this, 0);
      return factory;
    }
    stream = cached.stream;
    return cached.factory;
  }

  @Override
  public boolean useCommitCoordinator() {
    return batch != null ? batch.useCommitCoordinator() : stream.useCommitCoordinator();
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    SparkErrors.unwrapPythonErrors(
        () -> {
          batch.commit(messages);
          return null;
        });
  }

  @Override
  public void commit(long epoch, WriterCommitMessage[] messages) {
    SparkErrors.unwrapPythonErrors(
        () -> {
          stream.commit(epoch, MetricsCommitMessage.unwrap(messages));
          return null;
        });
    metricsListener.accept(MetricsCommitMessage.sum(messages));
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    batch.abort(messages);
  }

  /** Does nothing, like Python's abort. A call would fail where the commit failed and hide the first error. */
  @Override
  public void abort(long epoch, WriterCommitMessage[] messages) {}
}
