package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayDeque;
import java.util.Base64;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Reads the rows of some buckets that Python names, and follows the commit log from there: new records that append
 * rows.
 *
 * <p>A record with an action that Python does not list, or one that cannot be read here, ends the reader's part of the
 * batch. All readers of the log end there; Python sees it at the beginning of the next batch, and decides.
 */
final class FollowingReader implements SupportsRealTimeRead<InternalRow> {
  /** Segments that are read beside the one whose rows are handed out, where reads take long. */
  private static final int AHEAD = 8;

  private final BufferAllocator allocator =
      ArrowUtils.rootAllocator().newChildAllocator("streamhouse-follow", 0, Long.MAX_VALUE);
  private final LogFiles files;
  private final LogTail tail;
  private final String uuid;
  private final Set<String> passes;
  private final Map<Integer, FollowedBucket> buckets = new TreeMap<>();
  private final Map<String, RowLayout> layouts = new HashMap<>();
  private final Deque<LogSegment> pending = new ArrayDeque<>();
  private boolean follows;
  private long next;
  private String attempt;
  private Long markNumber;
  private String markAttempt;
  private LogSegment segment;
  private int batchNumber;
  private ColumnarBatch batch;
  private long firstRow;
  private int row;
  private InternalRow current;
  private RealTimeWriter writer;
  private boolean isRead;
  private boolean isClosed;

  /** Takes the files of the task's log, and its records behind the position of the task. */
  FollowingReader(JsonNode task, StructType schema, LogFiles files, LogTail tail) {
    this.files = files;
    this.tail = tail;
    uuid = task.get("uuid").asText();
    passes = new HashSet<>(JsonTree.list(task.get("passes")));
    follows = task.get("follows").asBoolean();
    next = task.get("next").asLong();
    attempt = task.get("attempt").isNull() ? null : task.get("attempt").asText();
    JsonNode mark = task.get("mark");
    if (!mark.isNull()) {
      markNumber = mark.get(0).asLong();
      markAttempt = mark.get(1).asText();
    }
    task.get("layouts").properties().forEach(
        each -> layouts.put(
            each.getKey(),
            new RowLayout(each.getValue(), schema, JsonTree.list(task.get("kinds")), allocator)));
    Map<Long, CommitRecord> records = records(task.get("buckets"));
    for (JsonNode described : task.get("buckets")) {
      FollowedBucket bucket = new FollowedBucket(described);
      buckets.put(bucket.bucket, bucket);
      for (JsonNode each : described.get("segments")) pending.add(known(each, records));
    }
    TaskContext running = TaskContext.get();
    if (running != null) running.addTaskCompletionListener((TaskCompletionListener) ended -> close());
  }

  /** The records that hold rows which the log had when the batch began. Where reads take long they begin together. */
  private Map<Long, CommitRecord> records(JsonNode ofBuckets) {
    Map<Long, LogFiles.Read<CommitRecord>> begun = new TreeMap<>();
    for (JsonNode bucket : ofBuckets) {
      for (JsonNode described : bucket.get("segments")) {
        long number = described.get("commit").asLong();
        if (!described.has("inline") || begun.containsKey(number)) continue;
        LogFiles.Read<CommitRecord> read = () -> record(number);
        LogFiles.Read<CommitRecord> beside = files.begin(read);
        begun.put(number, beside == null ? read : beside);
      }
    }
    Map<Long, CommitRecord> found = new HashMap<>();
    begun.forEach((number, read) -> found.put(number, held(number, read)));
    return found;
  }

  private CommitRecord record(long number) throws IOException {
    return CommitRecord.of(files.read(CommitRecord.name(number)), files, uuid, number);
  }

  private CommitRecord held(long number, LogFiles.Read<CommitRecord> read) {
    CommitRecord found;
    try {
      found = read.get();
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
    if (found == null) throw Errors.corrupt(files.place(CommitRecord.name(number)) + " cannot be read");
    return found;
  }

  /** A segment that the log had when the batch began. */
  private LogSegment known(JsonNode described, Map<Long, CommitRecord> records) {
    CommitRecord record = records.get(described.get("commit").asLong());
    return new LogSegment(described, Base64.getDecoder().decode(described.get("sums").asText()), files, record);
  }

  /** Spark 4.1 asks so. */
  public RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
    return nextWithTimeout(System.currentTimeMillis(), timeoutMs);
  }

  /** Spark 4.2 and newer ask so. */
  public RecordStatus nextWithTimeout(Long startMs, Long timeoutMs) throws IOException {
    long deadlineMs = startMs + timeoutMs;
    if (!isRead) begin();
    if (writer != null) writer.commitIfDue();
    while (!advance()) {
      if (writer != null) writer.commitIfDue();
      if (!follows || System.currentTimeMillis() >= deadlineMs) return RecordStatus.newStatusWithoutArrivalTime(false);
      requireGoingOn();
      if (!readRecord(deadlineMs)) tail.await();
    }
    return RecordStatus.newStatusWithArrivalTimeMs(segment.timeMs(firstRow + row - 1));
  }

  /** Meets the writer of the task, which is there once it asks for rows. */
  private void begin() {
    isRead = true;
    writer = RealTimeWriter.ofTask();
    if (writer != null) writer.follow(this);
  }

  /**
   * Leaves out the rows of a bucket below an offset, which may lie behind all rows that are known: Python has seen that
   * the log has them.
   */
  void skip(int bucket, long offset) {
    FollowedBucket followed = buckets.get(bucket);
    if (followed != null) followed.offset = Math.max(followed.offset, offset);
  }

  /** The bucket of the row that was handed out last. */
  int bucket() {
    return segment.bucket;
  }

  /** The offset of the row that was handed out last. */
  long offset() {
    return segment.base + firstRow + row - 1;
  }

  private static void requireGoingOn() {
    TaskContext task = TaskContext.get();
    if (Thread.currentThread().isInterrupted() || (task != null && task.isInterrupted())) {
      throw new TaskKilledException("the query was stopped");
    }
  }

  @Override
  public boolean next() throws IOException {
    return nextWithTimeout(System.currentTimeMillis(), 0L).hasRecord();
  }

  /** Moves to the next row of those that are known. */
  private boolean advance() throws IOException {
    while (true) {
      if (batch != null) {
        FollowedBucket bucket = buckets.get(segment.bucket);
        while (row < batch.numRows()) {
          long offset = segment.base + firstRow + row;
          row++;
          if (!bucket.wants(offset)) continue;
          current = batch.getRow(row - 1);
          bucket.offset = offset + 1;
          return true;
        }
        firstRow += batch.numRows();
        batch = null;
      }
      if (segment != null && batchNumber < segment.batches()) {
        load();
        continue;
      }
      if (segment != null) {
        FollowedBucket bucket = buckets.get(segment.bucket);
        bucket.offset = Math.max(bucket.offset, segment.end());
      }
      segment = null;
      if (pending.isEmpty()) return false;
      open(pending.remove());
    }
  }

  private void open(LogSegment opened) {
    long offset = buckets.get(opened.bucket).offset;
    if (opened.base > offset) {
      throw Errors.analysis(
          "CORRUPT_DATA: bucket " + opened.bucket + " of table " + uuid + ": offset " + offset
              + " expected, found " + opened.base + "; start the query again");
    }
    segment = opened;
    batchNumber = 0;
    firstRow = 0;
    int ahead = 0;
    for (LogSegment each : pending) {
      if (++ahead > AHEAD) break;
      if (each.end() > buckets.get(each.bucket).offset) each.expect();
    }
  }

  /** Loads the next batch that has rows to hand out. */
  private void load() throws IOException {
    FollowedBucket bucket = buckets.get(segment.bucket);
    int rows = segment.rowsOf(batchNumber);
    if (segment.base + firstRow + rows <= bucket.offset) {
      firstRow += rows;
    } else {
      batch = layouts.get(segment.schema).load(segment, batchNumber, firstRow, bucket.firstRowId);
      row = 0;
    }
    batchNumber++;
  }

  /**
   * Takes the next record, if there is one. What is read behind the end of the batch does not count: records are
   * deleted a day after newer ones, and a process may sleep for longer.
   */
  private boolean readRecord(long deadlineMs) throws IOException {
    if (!tail.has(next)) return false;
    CommitRecord record = tail.get(next);
    if (System.currentTimeMillis() >= deadlineMs) return false;
    follows = record != null && record.follows(attempt) && take(record);
    if (!follows) return false;
    next++;
    attempt = record.attempt();
    return true;
  }

  /** Queues the rows of a record; false if the record does more than that. */
  private boolean take(CommitRecord record) {
    Deque<LogSegment> found = new ArrayDeque<>();
    boolean hasRows = false;
    for (JsonNode action : record.actions) {
      String kind = action.get("type").asText();
      if (!passes.contains(kind)) return false;
      if (!kind.equals("append") && !kind.equals("append-parts")) continue;
      for (JsonNode described : action.get("segments")) {
        if (!layouts.containsKey(described.get("schema").asText())) return false;
        hasRows = true;
        if (buckets.containsKey(described.get("bucket").asInt())) found.add(LogSegment.of(described, files, record));
      }
    }
    pending.addAll(found);
    if (hasRows) {
      markNumber = record.number;
      markAttempt = record.attempt();
    }
    return true;
  }

  @Override
  public InternalRow get() {
    return current;
  }

  @Override
  public FollowedOffsets getOffset() {
    TreeMap<Integer, Long> offsets = new TreeMap<>();
    buckets.forEach((bucket, followed) -> offsets.put(bucket, followed.offset));
    return new FollowedOffsets(offsets, markNumber, markAttempt);
  }

  @Override
  public void close() {
    if (isClosed) return;
    isClosed = true;
    tail.close();
    layouts.values().forEach(RowLayout::close);
    allocator.close();
  }
}
