package io.streamhouse.spark;

import java.util.ArrayList;
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
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/**
 * Commits the rows of a task while it runs: where none waits to be read, or the last commit is a while ago.
 *
 * <p>The reader of the same task asks for the commit, each time before it hands out another row. What the query made of
 * the rows before is here by then, and so the reader's offsets say which rows of the source the commit has.
 */
final class RealTimeWriter implements DataWriter<InternalRow> {
  private static final long INTERVAL_NS = 100_000_000;
  private static final long CHUNK_BYTES = 8L << 20;
  private static final Map<Long, RealTimeWriter> OF_TASKS = new ConcurrentHashMap<>();

  private final String table;
  private final Supplier<DataWriter<InternalRow>> python;
  private final UnsafeProjection copied;
  private final UnsafeProjection placed;
  private final TreeMap<Integer, Long> stored;
  private final List<InternalRow> rows = new ArrayList<>();
  private final List<Integer> buckets = new ArrayList<>();
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
    stored.forEach(reader::skip);
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
    bytes += copy.getSizeInBytes();
  }

  /** Called by the reader between two rows. */
  void commitIfDue() {
    if (rows.isEmpty()) return;
    if (bytes >= CHUNK_BYTES || System.nanoTime() - committedNs >= INTERVAL_NS) commitRows();
  }

  private void commitRows() {
    if (rows.isEmpty()) return;
    TreeMap<Integer, Long> ends = reader.offsets();
    JoinedRow joined = new JoinedRow();
    Iterator<Integer> of = buckets.iterator();
    Iterator<InternalRow> all =
        rows.stream().map(
            row -> {
              int bucket = of.next();
              Object[] place = {bucket, stored.getOrDefault(bucket, -1L), ends.get(bucket)};
              return (InternalRow) placed.apply(joined.apply(new GenericInternalRow(place), row));
            }).iterator();
    Errors.plainly(
        () -> {
          try (DataWriter<InternalRow> writer = python.get()) {
            writer.writeAll(all);
            return writer.commit();
          }
        });
    for (int bucket : buckets) stored.put(bucket, ends.get(bucket));
    rows.clear();
    buckets.clear();
    bytes = 0;
    committedNs = System.nanoTime();
  }

  @Override
  public WriterCommitMessage commit() {
    return new ChunkMessages();
  }

  @Override
  public void abort() {}

  @Override
  public void close() {}
}
