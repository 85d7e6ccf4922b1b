package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.metrics.MetricsCommitMessage;
import io.streamhouse.spark.metrics.RecordsWritten;
import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Commits rows while its task runs: when no row is waiting to be read, or some time after the last commit.
 *
 *
 * <p>The reader of the same task triggers the commit before it returns another row. By then all rows that the query
 * derived from earlier rows have arrived. So the offsets of the reader tell which source rows the commit contains.
 */
public final class RealTimeWriter implements DataWriter<InternalRow> {
  private static final long COMMIT_INTERVAL_NS = 100_000_000;
  private static final long CHUNK_BYTES = 8L << 20;

  /** Metric for commit records: one for each bucket of the source that has rows in a commit. */
  static final String COMMITS = "commits";

  /** Precedes the stored offsets in the message of a Python writer that got no rows. */
  static final String STORED_KEY = "streamhouse.stored";

  private static final String CONFLICT = "COMMIT_CONFLICT";
  private static final Map<Long, RealTimeWriter> BY_TASK = new ConcurrentHashMap<>();

  private final String table;
  private final Supplier<DataWriter<InternalRow>> writerFactory;
  private final UnsafeProjection copyProjection;
  private final UnsafeProjection positionProjection;
  private final TreeMap<Integer, Long> storedOffsets;
  private final List<InternalRow> rows = new ArrayList<>();
  private final List<Integer> buckets = new ArrayList<>();
  private final List<Long> offsets = new ArrayList<>();
  private final TaskCounters counters = new TaskCounters();
  private LogTailReader reader;
  private long bytes;
  private long committedNs = System.nanoTime() - COMMIT_INTERVAL_NS;

  /**
   * Creates a writer of rows with {@code schema}. {@code storedOffsets} has the next offset to store per source bucket.
   */
  public RealTimeWriter(
      String table,
      StructType schema,
      StructType written,
      TreeMap<Integer, Long> storedOffsets,
      Supplier<DataWriter<InternalRow>> writerFactory) {
    this.table = table;
    this.writerFactory = writerFactory;
    this.storedOffsets = new TreeMap<>(storedOffsets);
    copyProjection = UnsafeProjection.create(schema);
    positionProjection = UnsafeProjection.create(written);
  }

  /** Returns the writer of the running task, or null. */
  static RealTimeWriter ofCurrentTask() {
    TaskContext task = TaskContext.get();
    return task == null ? null : BY_TASK.get(task.taskAttemptId());
  }

  /** Connects the reader of the task, which skips rows that are already stored. */
  void attachReader(LogTailReader logReader) {
    if (reader != null) throw new IllegalStateException("two readers in one task");
    reader = logReader;
    TaskContext task = TaskContext.get();
    if (task.attemptNumber() > 0 || task.stageAttemptNumber() > 0) refreshStored();
    storedOffsets.forEach(reader::advanceTo);
  }

  /**
   * Asks Python how far rows are stored, because an earlier attempt of this task may have stored rows of this batch.
   */
  private void refreshStored() {
    String text = new String(writeWithPython(Collections.emptyIterator()), StandardCharsets.ISO_8859_1);
    int at = text.lastIndexOf(STORED_KEY + "{") + STORED_KEY.length();
    JsonNode offsets = Json.parse(text.substring(at, text.indexOf('}', at) + 1));
    offsets.properties().forEach(entry ->
        storedOffsets.put(Integer.valueOf(entry.getKey()), entry.getValue().asLong()));
  }

  /** Sends rows to Python's writer and returns its commit message. */
  private byte[] writeWithPython(Iterator<InternalRow> batch) {
    return SparkErrors.unwrapPythonErrors(
        () -> {
          try (DataWriter<InternalRow> writer = writerFactory.get()) {
            writer.writeAll(batch);
            return ((PythonWriterCommitMessage) writer.commit()).pickledMessage();
          }
        });
  }

  @Override
  public void writeAll(Iterator<InternalRow> input) {
    long task = TaskContext.get().taskAttemptId();
    BY_TASK.put(task, this);
    try {
      while (input.hasNext()) write(input.next());
      commitRows();
    } finally {
      BY_TASK.remove(task);
    }
  }

  @Override
  public void write(InternalRow row) {
    if (reader == null) throw RealTimeMode.unsupported(table, "another task reads the rows");
    UnsafeRow copy = copyProjection.apply(row).copy();
    rows.add(copy);
    buckets.add(reader.currentBucket());
    offsets.add(reader.currentOffset());
    bytes += copy.getSizeInBytes();
  }

  /** Commits if it is time. The reader calls this between two rows. */
  void commitIfDue() {
    if (rows.isEmpty()) return;
    if (bytes >= CHUNK_BYTES || System.nanoTime() - committedNs >= COMMIT_INTERVAL_NS) commitRows();
  }

  private void commitRows() {
    while (!rows.isEmpty()) {
      try {
        tryCommit();
      } catch (Exception error) { // Python's errors are checked exceptions that are not declared
        if (!SparkErrors.hasCondition(error, CONFLICT) || !dropStoredRows()) {
          throw SparkErrors.<RuntimeException>sneakyThrow(error);
        }
      }
    }
  }

  /**
   * Drops the rows that another run of the query has stored since this one started. The last commit of a stopped query
   * may come after its successor started. Returns whether anything was stored.
   */
  private boolean dropStoredRows() {
    TreeMap<Integer, Long> before = new TreeMap<>(storedOffsets);
    refreshStored();
    storedOffsets.forEach(reader::advanceTo);
    for (int i = rows.size() - 1; i >= 0; i--) {
      if (offsets.get(i) >= storedOffsets.getOrDefault(buckets.get(i), -1L)) continue;
      rows.remove(i);
      buckets.remove(i);
      offsets.remove(i);
    }
    return !storedOffsets.equals(before);
  }

  private void tryCommit() {
    TailOffsets reached = reader.getOffset();
    UTF8String attempt = UTF8String.fromString(reached.attempt);
    JoinedRow joined = new JoinedRow();
    Iterator<Integer> bucketOfRow = buckets.iterator();
    Iterator<InternalRow> positionedRows =
        rows.stream().map(
            row -> {
              int bucket = bucketOfRow.next();
              long begin = storedOffsets.getOrDefault(bucket, -1L);
              Object[] position = {bucket, begin, reached.offsets.get(bucket), reached.record, attempt};
              return (InternalRow) positionProjection.apply(joined.apply(new GenericInternalRow(position), row));
            }).iterator();
    counters.addFromMessage(writeWithPython(positionedRows));
    counters.add(RecordsWritten.NAME, rows.size());
    counters.add(COMMITS, new HashSet<>(buckets).size());
    for (int bucket : buckets) storedOffsets.put(bucket, reached.offsets.get(bucket));
    rows.clear();
    buckets.clear();
    offsets.clear();
    bytes = 0;
    committedNs = System.nanoTime();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return counters.toCustomMetrics();
  }

  @Override
  public WriterCommitMessage commit() {
    return new MetricsCommitMessage(null, counters.counts());
  }

  @Override
  public void abort() {}

  @Override
  public void close() {}
}
