package io.streamhouse.spark.write;

import io.streamhouse.spark.metrics.MetricsCommitMessage;
import io.streamhouse.spark.metrics.RecordsWritten;
import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.util.SparkErrors;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Python's writer in a task. A task of a stream may send a few rows inline, in its commit message. The worker that
 * commits stages them, so that a small batch starts no worker in its tasks.
 */
final class PythonWriter implements DataWriter<InternalRow> {
  /** Start of a pickle that calls this Python class with the arguments that follow. */
  private static final String INLINE_ROWS_CALL =
      "\u0080\u0003cstreamhouse_spark.datasource.write.inline_rows\nInlineRows\n(B";

  private final Callable<DataWriter<InternalRow>> writerFactory;
  private final StructType schema;
  private final long inlineBytesMax;
  private final boolean reportsMetrics;
  private final List<InternalRow> inlineRows = new ArrayList<>();
  private final TaskCounters counters = new TaskCounters();
  private DataWriter<InternalRow> pythonWriter;
  private WriterCommitMessage pythonMessage;

  /**
   * Creates a writer. If {@code reportsMetrics}, the commit message contains the counters, because a stream's progress
   * has no task metrics.
   */
  PythonWriter(
      Callable<DataWriter<InternalRow>> writerFactory, StructType schema, long inlineBytesMax, boolean reportsMetrics) {
    this.reportsMetrics = reportsMetrics;
    this.writerFactory = writerFactory;
    this.schema = schema;
    this.inlineBytesMax = inlineBytesMax;
  }

  @Override
  public void write(InternalRow row) {
    throw new UnsupportedOperationException("Python's writer takes all rows of a task at once");
  }

  @Override
  public void writeAll(Iterator<InternalRow> rows) {
    long bytes = 0;
    if (inlineBytesMax > 0) {
      UnsafeProjection projection = UnsafeProjection.create(schema);
      while (bytes <= inlineBytesMax && rows.hasNext()) {
        UnsafeRow row = projection.apply(rows.next()).copy();
        inlineRows.add(row);
        bytes += row.getSizeInBytes();
      }
      if (bytes <= inlineBytesMax) {
        counters.add(RecordsWritten.NAME, inlineRows.size());
        return;
      }
    }
    AtomicLong written = new AtomicLong();
    Iterator<InternalRow> allRows =
        CollectionConverters.asJava(asScala(inlineRows.iterator()).concat(() -> asScala(rows)).map(
            row -> {
              written.incrementAndGet(); // by the thread that sends rows to Python
              return row;
            }));
    SparkErrors.unwrapPythonErrors(
        () -> {
          pythonWriter = writerFactory.call();
          pythonWriter.writeAll(allRows);
          // committed here, because Spark requests metrics before it calls commit
          pythonMessage = pythonWriter.commit();
          return null;
        });
    counters.add(RecordsWritten.NAME, written.get());
    if (pythonMessage instanceof PythonWriterCommitMessage) {
      counters.addFromMessage(((PythonWriterCommitMessage) pythonMessage).pickledMessage());
    }
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return counters.toCustomMetrics();
  }

  @Override
  public WriterCommitMessage commit() {
    WriterCommitMessage message =
        SparkErrors.unwrapPythonErrors(() -> pythonWriter != null
            ? pythonMessage
            : new PythonWriterCommitMessage(pickleInlineRows()));
    return reportsMetrics ? new MetricsCommitMessage(message, counters.counts()) : message;
  }

  private byte[] pickleInlineRows() throws IOException {
    ByteArrayOutputStream pickle = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(pickle);
    out.writeBytes(INLINE_ROWS_CALL); // one byte per character
    writeBytes(out, inlineRows.isEmpty() ? new byte[0] : toArrowStream());
    String query = TaskContext.get().getLocalProperty("sql.streaming.queryId");
    out.writeByte(query == null ? 'N' : 'X');
    if (query != null) writeBytes(out, query.getBytes(StandardCharsets.UTF_8));
    out.writeBytes("tR.");
    return pickle.toByteArray();
  }

  private static void writeBytes(DataOutputStream out, byte[] data) throws IOException {
    out.writeInt(Integer.reverseBytes(data.length));
    out.write(data);
  }

  /** Encodes the inline rows as an Arrow IPC stream of one batch. */
  private byte[] toArrowStream() {
    scala.collection.Iterator<byte[]> batches =
        ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
            asScala(inlineRows.iterator()), schema, Long.MAX_VALUE, Long.MAX_VALUE, "UTC", true, false);
    byte[] stream = batches.next();
    if (batches.hasNext()) throw new IllegalStateException(); // hasNext must be called, because it frees the buffers
    return stream;
  }

  private static <T> scala.collection.Iterator<T> asScala(Iterator<T> items) {
    return CollectionConverters.asScala(items);
  }

  @Override
  public void abort() throws IOException {
    if (pythonWriter != null) pythonWriter.abort();
  }

  @Override
  public void close() throws IOException {
    if (pythonWriter != null) pythonWriter.close();
  }
}
