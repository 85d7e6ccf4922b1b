package io.streamhouse.spark;

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
 * Python's writer in a task. A task of a stream may carry few rows to the driver, in its commit message: the worker
 * that commits stages them, so that a small batch waits for no worker in its tasks.
 */
final class PlainWriter implements DataWriter<InternalRow> {
  /** A pickle's beginning: a call of this class of Python's, whose arguments follow. */
  private static final String CALL = "\u0080\u0003cstreamhouse_spark.datasource.write.inline_rows\nInlineRows\n(B";

  private final Callable<DataWriter<InternalRow>> python;
  private final StructType schema;
  private final long carriedBytesMax;
  private final boolean tellsCounts;
  private final List<InternalRow> carried = new ArrayList<>();
  private final ScanCounts counts = new ScanCounts();
  private DataWriter<InternalRow> inner;
  private WriterCommitMessage told;

  /** Tells the driver of its counts in the message if {@code tellsCounts}: Spark's progress has no metrics of tasks. */
  PlainWriter(
      Callable<DataWriter<InternalRow>> python, StructType schema, long carriedBytesMax, boolean tellsCounts) {
    this.tellsCounts = tellsCounts;
    this.python = python;
    this.schema = schema;
    this.carriedBytesMax = carriedBytesMax;
  }

  @Override
  public void write(InternalRow row) {
    throw new UnsupportedOperationException("Python's writer takes all rows of a task at once");
  }

  @Override
  public void writeAll(Iterator<InternalRow> rows) {
    long bytes = 0;
    if (carriedBytesMax > 0) {
      UnsafeProjection projection = UnsafeProjection.create(schema);
      while (bytes <= carriedBytesMax && rows.hasNext()) {
        UnsafeRow row = projection.apply(rows.next()).copy();
        carried.add(row);
        bytes += row.getSizeInBytes();
      }
      if (bytes <= carriedBytesMax) {
        counts.add(RecordsWritten.NAME, carried.size());
        return;
      }
    }
    AtomicLong written = new AtomicLong();
    Iterator<InternalRow> all = CollectionConverters.asJava(scala(carried.iterator()).concat(() -> scala(rows)));
    Errors.plainly(
        () -> {
          inner = python.call();
          inner.writeAll(new CountedRows(all, written));
          told = inner.commit(); // Python's answer, which came behind the rows: Spark asks for counts before it commits
          return null;
        });
    counts.add(RecordsWritten.NAME, written.get());
    if (told instanceof PythonWriterCommitMessage) {
      counts.takeFrom(((PythonWriterCommitMessage) told).pickledMessage());
    }
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return counts.values();
  }

  @Override
  public WriterCommitMessage commit() {
    WriterCommitMessage found =
        Errors.plainly(() -> inner != null ? told : new PythonWriterCommitMessage(message()));
    return tellsCounts ? new CountedMessage(found, counts.sums()) : found;
  }

  private byte[] message() throws IOException {
    ByteArrayOutputStream found = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(found);
    out.writeBytes(CALL); // a byte a character
    add(out, carried.isEmpty() ? new byte[0] : arrow());
    String query = TaskContext.get().getLocalProperty("sql.streaming.queryId");
    out.writeByte(query == null ? 'N' : 'X');
    if (query != null) add(out, query.getBytes(StandardCharsets.UTF_8));
    out.writeBytes("tR.");
    return found.toByteArray();
  }

  private static void add(DataOutputStream out, byte[] data) throws IOException {
    out.writeInt(Integer.reverseBytes(data.length));
    out.write(data);
  }

  /** The rows as a stream of Arrow's format, of one batch. */
  private byte[] arrow() {
    scala.collection.Iterator<byte[]> batches =
        ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
            scala(carried.iterator()), schema, Long.MAX_VALUE, Long.MAX_VALUE, "UTC", true, false);
    byte[] only = batches.next();
    if (batches.hasNext()) throw new IllegalStateException(); // asked in any case, because this frees the buffers
    return only;
  }

  private static <T> scala.collection.Iterator<T> scala(Iterator<T> items) {
    return CollectionConverters.asScala(items);
  }

  @Override
  public void abort() throws IOException {
    if (inner != null) inner.abort();
  }

  @Override
  public void close() throws IOException {
    if (inner != null) inner.close();
  }
}
