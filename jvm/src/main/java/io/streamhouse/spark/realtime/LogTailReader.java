package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
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
 * Reads the rows of the buckets of one task, then follows the commit log and reads the rows that new records append.
 *
 * <p>A record that cannot be read here, or has an action that Python did not list, ends the reader's part of the batch.
 * All readers of the log end at that record, and Python handles it when it plans the next batch.
 */
final class LogTailReader implements SupportsRealTimeRead<InternalRow> {
  /** Number of segments that are prefetched if reads are slow. */
  private static final int PREFETCH_SEGMENTS = 8;

  private final BufferAllocator allocator =
      ArrowUtils.rootAllocator().newChildAllocator("streamhouse-follow", 0, Long.MAX_VALUE);
  private final LogStore store;
  private final LogTail tail;
  private final String uuid;
  private final Set<String> allowedActions;
  private final Map<Integer, TailedBucket> buckets = new TreeMap<>();
  private final Map<String, RowLayout> layouts = new HashMap<>();
  private final Deque<LogSegment> pending = new ArrayDeque<>();
  private boolean isFollowing;
  private long nextRecord;
  private String attempt;
  private Long rowRecordNumber;
  private String rowRecordAttempt;
  private LogSegment segment;
  private int batchNumber;
  private ColumnarBatch batch;
  private long firstRow;
  private int row;
  private InternalRow current;
  private RealTimeWriter writer;
  private boolean isStarted;
  private boolean isClosed;

  /** Creates the reader of a task. {@code tail} starts at the task's position. */
  LogTailReader(JsonNode task, StructType schema, LogStore store, LogTail tail) {
    this.store = store;
    this.tail = tail;
    uuid = task.get("uuid").asText();
    allowedActions = new HashSet<>(Json.toList(task.get("allowed_actions")));
    isFollowing = task.get("follows").asBoolean();
    nextRecord = task.get("next").asLong();
    attempt = task.get("attempt").isNull() ? null : task.get("attempt").asText();
    JsonNode mark = task.get("mark");
    if (!mark.isNull()) {
      rowRecordNumber = mark.get(0).asLong();
      rowRecordAttempt = mark.get(1).asText();
    }
    task.get("layouts").properties().forEach(
        layout -> layouts.put(
            layout.getKey(),
            new RowLayout(layout.getValue(), schema, Json.toList(task.get("kinds")), allocator)));
    Map<Long, CommitRecord> records = readInlineRecords(task.get("buckets"));
    for (JsonNode bucketJson : task.get("buckets")) {
      TailedBucket bucket = new TailedBucket(bucketJson);
      buckets.put(bucket.bucket, bucket);
      for (JsonNode segmentJson : bucketJson.get("segments")) pending.add(plannedSegment(segmentJson, records));
    }
    TaskContext running = TaskContext.get();
    if (running != null) running.addTaskCompletionListener((TaskCompletionListener) taskContext -> close());
  }

  /** Reads the records that hold inline rows of the planned segments, concurrently if reads are slow. */
  private Map<Long, CommitRecord> readInlineRecords(JsonNode bucketsJson) {
    Map<Long, LogStore.Read<CommitRecord>> reads = new TreeMap<>();
    for (JsonNode bucket : bucketsJson) {
      for (JsonNode segmentJson : bucket.get("segments")) {
        long number = segmentJson.get("commit").asLong();
        if (!segmentJson.has("inline") || reads.containsKey(number)) continue;
        LogStore.Read<CommitRecord> read = () -> fetchRecord(number);
        LogStore.Read<CommitRecord> prefetch = store.prefetch(read);
        reads.put(number, prefetch == null ? read : prefetch);
      }
    }
    Map<Long, CommitRecord> records = new HashMap<>();
    reads.forEach((number, read) -> records.put(number, awaitRecord(number, read)));
    return records;
  }

  private CommitRecord fetchRecord(long number) throws IOException {
    return CommitRecord.decode(store.read(CommitRecord.fileName(number)), store, uuid, number);
  }

  private CommitRecord awaitRecord(long number, LogStore.Read<CommitRecord> read) {
    CommitRecord record;
    try {
      record = read.get();
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
    if (record == null) {
      throw SparkErrors.corruptData(store.displayPath(CommitRecord.fileName(number)) + " cannot be read");
    }
    return record;
  }

  /** Creates a segment that the log had when the batch was planned. */
  private LogSegment plannedSegment(JsonNode segmentJson, Map<Long, CommitRecord> records) {
    CommitRecord record = records.get(segmentJson.get("commit").asLong());
    return new LogSegment(segmentJson, Base64.getDecoder().decode(segmentJson.get("sums").asText()), store, record);
  }

  /** Called by Spark 4.1. */
  public RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
    return nextWithTimeout(System.currentTimeMillis(), timeoutMs);
  }

  /** Called by Spark 4.2 and newer. */
  public RecordStatus nextWithTimeout(Long startMs, Long timeoutMs) throws IOException {
    long deadlineMs = startMs + timeoutMs;
    if (!isStarted) attachToWriter();
    if (writer != null) writer.commitIfDue();
    while (!advance()) {
      if (writer != null) writer.commitIfDue();
      if (!isFollowing || System.currentTimeMillis() >= deadlineMs) {
        return RecordStatus.newStatusWithoutArrivalTime(false);
      }
      checkInterrupted();
      if (!pollRecord(deadlineMs)) tail.awaitRecord();
    }
    return RecordStatus.newStatusWithArrivalTimeMs(segment.timeMs(firstRow + row - 1));
  }

  /** Connects to the writer of the same task, which exists once it requests rows. */
  private void attachToWriter() {
    isStarted = true;
    writer = RealTimeWriter.ofCurrentTask();
    if (writer != null) writer.attachReader(this);
  }

  /**
   * Skips the rows of a bucket below an offset. The offset may be beyond the rows known here: Python has verified that
   * the log has them.
   */
  void advanceTo(int bucket, long offset) {
    TailedBucket followed = buckets.get(bucket);
    if (followed != null) followed.offset = Math.max(followed.offset, offset);
  }

  /** Returns the bucket of the current row. */
  int currentBucket() {
    return segment.bucket;
  }

  /** Returns the offset of the current row. */
  long currentOffset() {
    return segment.baseOffset + firstRow + row - 1;
  }

  private static void checkInterrupted() {
    TaskContext task = TaskContext.get();
    if (Thread.currentThread().isInterrupted() || (task != null && task.isInterrupted())) {
      throw new TaskKilledException("the query was stopped");
    }
  }

  @Override
  public boolean next() throws IOException {
    return nextWithTimeout(System.currentTimeMillis(), 0L).hasRecord();
  }

  /** Advances to the next row of the queued segments. */
  private boolean advance() throws IOException {
    while (true) {
      if (batch != null) {
        TailedBucket bucket = buckets.get(segment.bucket);
        while (row < batch.numRows()) {
          long offset = segment.baseOffset + firstRow + row;
          row++;
          if (!bucket.shouldEmit(offset)) continue;
          current = batch.getRow(row - 1);
          bucket.offset = offset + 1;
          return true;
        }
        firstRow += batch.numRows();
        batch = null;
      }
      if (segment != null && batchNumber < segment.batchCount()) {
        loadBatch();
        continue;
      }
      if (segment != null) {
        TailedBucket bucket = buckets.get(segment.bucket);
        bucket.offset = Math.max(bucket.offset, segment.endOffset());
      }
      segment = null;
      if (pending.isEmpty()) return false;
      openSegment(pending.remove());
    }
  }

  private void openSegment(LogSegment nextSegment) {
    long offset = buckets.get(nextSegment.bucket).offset;
    if (nextSegment.baseOffset > offset) {
      throw SparkErrors.analysisException(
          "CORRUPT_DATA: bucket " + nextSegment.bucket + " of table " + uuid + ": found offset "
              + nextSegment.baseOffset + ", expected " + offset + "; restart the query");
    }
    segment = nextSegment;
    batchNumber = 0;
    firstRow = 0;
    int prefetchCount = 0;
    for (LogSegment upcoming : pending) {
      if (++prefetchCount > PREFETCH_SEGMENTS) break;
      if (upcoming.endOffset() > buckets.get(upcoming.bucket).offset) upcoming.prefetch();
    }
  }

  /** Loads the next batch, or skips it if all its rows are below the offset. */
  private void loadBatch() throws IOException {
    TailedBucket bucket = buckets.get(segment.bucket);
    int rows = segment.rowCount(batchNumber);
    if (segment.baseOffset + firstRow + rows <= bucket.offset) {
      firstRow += rows;
    } else {
      batch = layouts.get(segment.schema).load(segment, batchNumber, firstRow, bucket.firstRowId);
      row = 0;
    }
    batchNumber++;
  }

  /**
   * Reads the next record, if there is one. A record that arrives after the end of the batch is ignored: it may have
   * been deleted if the process slept for more than a day.
   */
  private boolean pollRecord(long deadlineMs) throws IOException {
    if (!tail.hasRecord(nextRecord)) return false;
    CommitRecord record = tail.getRecord(nextRecord);
    if (System.currentTimeMillis() >= deadlineMs) return false;
    isFollowing = record != null && record.follows(attempt) && enqueue(record);
    if (!isFollowing) return false;
    nextRecord++;
    attempt = record.attempt();
    return true;
  }

  /** Queues the rows of a record. Returns false if the record has actions that readers must not pass. */
  private boolean enqueue(CommitRecord record) {
    Deque<LogSegment> segments = new ArrayDeque<>();
    boolean hasRows = false;
    for (JsonNode action : record.actions) {
      String kind = action.get("type").asText();
      if (!allowedActions.contains(kind)) return false;
      if (!kind.equals("append") && !kind.equals("append-parts")) continue;
      for (JsonNode segmentJson : action.get("segments")) {
        if (!layouts.containsKey(segmentJson.get("schema").asText())) return false;
        hasRows = true;
        if (buckets.containsKey(segmentJson.get("bucket").asInt())) {
          segments.add(LogSegment.of(segmentJson, store, record));
        }
      }
    }
    pending.addAll(segments);
    if (hasRows) {
      rowRecordNumber = record.number;
      rowRecordAttempt = record.attempt();
    }
    return true;
  }

  @Override
  public InternalRow get() {
    return current;
  }

  @Override
  public TailOffsets getOffset() {
    TreeMap<Integer, Long> offsets = new TreeMap<>();
    buckets.forEach((bucket, followed) -> offsets.put(bucket, followed.offset));
    return new TailOffsets(offsets, rowRecordNumber, rowRecordAttempt);
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
