package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
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
 * Commits the rows of a task while it runs: where none waits to be read, or the last commit is a while ago.
 *
 * <p>The reader of the same task asks for the commit, each time before it hands out another row. What the query made of
 * the rows before is here by then, and so the reader's offsets say which rows of the source the commit has.
 */
final class RealTimeWriter implements DataWriter<InternalRow> {
  private static final long INTERVAL_NS = 100_000_000;
  private static final long CHUNK_BYTES = 8L << 20;

  /** Counts the records of commits: one for each bucket of the source that has rows in it. */
  static final String COMMITS = "commits";

  /** Stands before the offsets in the message of a Python writer that got no rows. */
  static final String STORED_KEY = "streamhouse.stored";

  private static final String CONFLICT = "COMMIT_CONFLICT";
  private static final Map<Long, RealTimeWriter> OF_TASKS = new ConcurrentHashMap<>();

  private final String table;
  private final Supplier<DataWriter<InternalRow>> python;
  private final UnsafeProjection copied;
  private final UnsafeProjection placed;
  private final TreeMap<Integer, Long> stored;
  private final List<InternalRow> rows = new ArrayList<>();
  private final List<Integer> buckets = new ArrayList<>();
  private final List<Long> offsets = new ArrayList<>();
  private final ScanCounts counts = new ScanCounts();
  private FollowingReader reader;
  private long bytes;
  private long committedNs = System.nanoTime() - INTERVAL_NS;

  /** Takes the rows of {@code schema}; up to which offset those of a bucket of the source are {@code stored}. */
  RealTimeWriter(
      String table,
      StructType schema,
      StructType written,
      TreeMap<Integer, Long> stored,
      Supplier<DataWriter<InternalRow>> python) {
    this.table = table;
    this.python = python;
    this.stored = new TreeMap<>(stored);
    copied = UnsafeProjection.create(schema);
    placed = UnsafeProjection.create(written);
  }

  /** The writer of the running task; null where it has none. */
  static RealTimeWriter ofTask() {
    TaskContext task = TaskContext.get();
    return task == null ? null : OF_TASKS.get(task.taskAttemptId());
  }

  /** Begins with the rows of a reader: it leaves out those that are stored. */
  void follow(FollowingReader found) {
    if (reader != null) throw new IllegalStateException("two readers in one task");
    reader = found;
    TaskContext task = TaskContext.get();
    if (task.attemptNumber() > 0 || task.stageAttemptNumber() > 0) askStored();
    stored.forEach(reader::skip);
  }

  /** Asks Python how far rows are stored: an attempt of this task before may have stored some in this batch. */
  private void askStored() {
    String text = new String(written(Collections.emptyIterator()), StandardCharsets.ISO_8859_1);
    int at = text.lastIndexOf(STORED_KEY + "{") + STORED_KEY.length();
    JsonNode offsets = JsonTree.parse(text.substring(at, text.indexOf('}', at) + 1));
    offsets.properties().forEach(each -> stored.put(Integer.valueOf(each.getKey()), each.getValue().asLong()));
  }

  /** What Python answers to rows. */
  private byte[] written(Iterator<InternalRow> given) {
    return Errors.plainly(
        () -> {
          try (DataWriter<InternalRow> writer = python.get()) {
            writer.writeAll(given);
            return ((PythonWriterCommitMessage) writer.commit()).pickledMessage();
          }
        });
  }

  @Override
  public void writeAll(Iterator<InternalRow> given) {
    long task = TaskContext.get().taskAttemptId();
    OF_TASKS.put(task, this);
    try {
      while (given.hasNext()) write(given.next());
      commitRows();
    } finally {
      OF_TASKS.remove(task);
    }
  }

  @Override
  public void write(InternalRow row) {
    if (reader == null) throw RealTimeMode.refused(table, "another task than the one that writes reads the rows");
    UnsafeRow copy = copied.apply(row).copy();
    rows.add(copy);
    buckets.add(reader.bucket());
    offsets.add(reader.offset());
    bytes += copy.getSizeInBytes();
  }

  /** Called by the reader between two rows. */
  void commitIfDue() {
    if (rows.isEmpty()) return;
    if (bytes >= CHUNK_BYTES || System.nanoTime() - committedNs >= INTERVAL_NS) commitRows();
  }

  private void commitRows() {
    while (!rows.isEmpty()) {
      try {
        commitAll();
      } catch (Exception error) { // Python's own, which is checked and not declared
        if (!Errors.isOf(error, CONFLICT) || !leaveOutStored()) throw Errors.<RuntimeException>unchecked(error);
      }
    }
  }

  /**
   * Leaves out the rows that another run of the query has stored since this one began: a stopped query's last commit
   * may come behind the beginning of its successor. Returns whether there are any.
   */
  private boolean leaveOutStored() {
    TreeMap<Integer, Long> before = new TreeMap<>(stored);
    askStored();
    stored.forEach(reader::skip);
    for (int i = rows.size() - 1; i >= 0; i--) {
      if (offsets.get(i) >= stored.getOrDefault(buckets.get(i), -1L)) continue;
      rows.remove(i);
      buckets.remove(i);
      offsets.remove(i);
    }
    return !stored.equals(before);
  }

  private void commitAll() {
    FollowedOffsets read = reader.getOffset();
    UTF8String attempt = UTF8String.fromString(read.attempt);
    JoinedRow joined = new JoinedRow();
    Iterator<Integer> of = buckets.iterator();
    Iterator<InternalRow> all =
        rows.stream().map(
            row -> {
              int bucket = of.next();
              long begin = stored.getOrDefault(bucket, -1L);
              Object[] place = {bucket, begin, read.offsets.get(bucket), read.record, attempt};
              return (InternalRow) placed.apply(joined.apply(new GenericInternalRow(place), row));
            }).iterator();
    counts.takeFrom(written(all));
    counts.add(RecordsWritten.NAME, rows.size());
    counts.add(COMMITS, new HashSet<>(buckets).size());
    for (int bucket : buckets) stored.put(bucket, read.offsets.get(bucket));
    rows.clear();
    buckets.clear();
    offsets.clear();
    bytes = 0;
    committedNs = System.nanoTime();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return counts.values();
  }

  @Override
  public WriterCommitMessage commit() {
    return new CountedMessage(null, counts.sums());
  }

  @Override
  public void abort() {}

  @Override
  public void close() {}
}
