package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.util.SparkErrors;
import io.streamhouse.spark.util.Xxh3;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorLoader;

/** A segment: consecutive rows of one bucket in an Arrow file, in a part of one, or inline in a commit record. */
final class LogSegment {
  private static final int FILE_HEAD_BYTES = 8;

  /** Up to this size, a batch is read with all its columns, since that takes no longer than another request. */
  private static final long ONE_REQUEST_BYTES_MAX = 1 << 20;

  /** Ranges closer than this are read together. About as many bytes arrive in the time of a request. */
  private static final long GAP_BYTES_MAX = 256 << 10;

  final int bucket;
  final long baseOffset;
  final int rows;
  final String schema;
  private final JsonNode entry;
  private final LogStore store;
  private final CommitRecord record;
  private final int blockBytes;
  private final long[] batchStarts;
  private final long[] batchRows;
  private final long[] blockSums;
  private final long[] timeStarts;
  private final long[] timesMs;

  /** Ranges of rows that resulted from updates, as alternating starts and ends. */
  private final long[] updatedRuns;

  private LogStore.Read<SegmentBytes[]> prefetched;

  /**
   * Creates a segment from its entry and its index, which comes from the record or from Python. {@code record} contains
   * the rows if they are inline.
   */
  LogSegment(JsonNode entry, byte[] index, LogStore store, CommitRecord record) {
    this.entry = entry;
    this.store = store;
    this.record = record;
    bucket = entry.get("bucket").asInt();
    baseOffset = entry.get("base").asLong();
    rows = entry.get("rows").asInt();
    schema = entry.get("schema").asText();
    LongBuffer words = ByteBuffer.wrap(index).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
    boolean has = words.hasRemaining();
    blockBytes = has ? (int) words.get() : 0;
    batchStarts = new long[has ? (int) words.get() : 1];
    blockSums = new long[has ? (int) words.get() : 0];
    timeStarts = new long[has ? (int) words.get() : 0];
    timesMs = new long[Math.max(1, timeStarts.length)];
    batchRows = new long[batchStarts.length];
    if (has) {
      words.get(batchStarts).get(batchRows).get(blockSums).get(timeStarts).get(timesMs, 0, timeStarts.length);
    } else {
      batchRows[0] = rows;
    }
    if (timeStarts.length == 0) timesMs[0] = entry.get("time").get(0).asLong();
    JsonNode runs = entry.path("updated");
    updatedRuns = new long[2 * runs.size()];
    for (int i = 0; i < updatedRuns.length; i++) updatedRuns[i] = runs.get(i / 2).get(i % 2).asLong();
  }

  /** Creates the segment of an action of a commit record. */
  static LogSegment of(JsonNode entry, LogStore store, CommitRecord record) {
    JsonNode span = entry.get("index");
    int payload = record.body.payload;
    byte[] index =
        span == null
            ? new byte[0]
            : Arrays.copyOfRange(record.body.bytes, payload + span.get(0).asInt(), payload + span.get(1).asInt());
    return new LogSegment(entry, index, store, record);
  }

  long endOffset() {
    return baseOffset + rows;
  }

  int batchCount() {
    return batchStarts.length;
  }

  int rowCount(int batch) {
    return (int) batchRows[batch];
  }

  /** Returns the commit time of a row. Times in a compacted segment may decrease. */
  long timeMs(long row) {
    int at = timeStarts.length - 1;
    while (at > 0 && timeStarts[at] > row) at--;
    return timesMs[Math.max(at, 0)];
  }

  /** Returns whether a row resulted from an update, in a table without a primary key. */
  boolean isUpdated(long row) {
    int at = Arrays.binarySearch(updatedRuns, row);
    return ((at < 0 ? -at - 2 : at) & 1) == 0;
  }

  /** Loads the selected columns of a batch after verifying their checksums. */
  void load(int batch, ColumnSelection columns, BufferAllocator allocator, VectorLoader loader) throws IOException {
    JsonNode inline = entry.get("inline");
    if (inline != null) {
      int from = record.body.payload + inline.get(0).asInt();
      loadWhole(new SegmentBytes(record.body.bytes, -from), 0, columns, allocator, loader);
      return;
    }
    long start = batchStarts[batch];
    long end = batch + 1 < batchStarts.length ? batchStarts[batch + 1] : entry.get("bytes").asLong();
    boolean isNarrow = !columns.isComplete && end - start > ONE_REQUEST_BYTES_MAX;
    long readEnd = isNarrow ? Math.min(end, start + columns.headBytesMax + (start == 0 ? blockBytes : 0)) : end;
    SegmentBytes first = (prefetched == null ? readRanges(new long[] {start, readEnd}) : prefetched.get())[0];
    // the schema precedes the first batch
    long at = start == 0 ? ColumnSelection.headEnd(first, FILE_HEAD_BYTES) : start;
    if (!isNarrow) {
      loadWhole(first, at, columns, allocator, loader);
      return;
    }
    if (!first.containsUpTo(at + columns.headBytesMax)) {
      first = readRanges(new long[] {at, at + columns.headBytesMax})[0];
    }
    long body = ColumnSelection.headEnd(first, at);
    RecordBatch head = ColumnSelection.readHead(first, at);
    columns.load(head, body, readRanges(columns.columnRanges(head, body)), allocator, loader);
  }

  /** Starts to read a small segment in the background if reads are slow, because its rows are needed soon. */
  void prefetch() {
    long bytes = entry.path("bytes").asLong(0);
    if (prefetched != null || entry.has("inline") || bytes > ONE_REQUEST_BYTES_MAX) return;
    prefetched = store.prefetch(() -> readRanges(new long[] {0, bytes}));
  }

  /** Loads a batch whose bytes are in one piece. */
  private static void loadWhole(
      SegmentBytes piece, long at, ColumnSelection columns, BufferAllocator allocator, VectorLoader loader) {
    SegmentBytes[] pieces = new SegmentBytes[columns.schema.getFields().size()];
    Arrays.fill(pieces, piece);
    columns.load(ColumnSelection.readHead(piece, at), ColumnSelection.headEnd(piece, at), pieces, allocator, loader);
  }

  /** Reads and verifies byte ranges, which must ascend. Neighboring ranges are read together. */
  private SegmentBytes[] readRanges(long[]... ranges) throws IOException {
    long size = entry.get("bytes").asLong();
    long part = entry.path("part").asLong(0);
    String name = "segments/" + entry.get("segment").asText() + ".arrow";
    List<long[]> mergedRanges = new ArrayList<>();
    int[] mergedIndexes = new int[ranges.length];
    for (int i = 0; i < ranges.length; i++) {
      long low = part + ranges[i][0] / blockBytes * blockBytes;
      long high = part + Math.min((ranges[i][1] + blockBytes - 1) / blockBytes * blockBytes, size);
      long[] last = mergedRanges.isEmpty() ? null : mergedRanges.get(mergedRanges.size() - 1);
      if (last != null && low - last[1] <= GAP_BYTES_MAX) last[1] = Math.max(last[1], high);
      else mergedRanges.add(new long[] {low, high});
      mergedIndexes[i] = mergedRanges.size() - 1;
    }
    byte[][] contents = store.read(name, part + size, !entry.has("part"), mergedRanges.toArray(new long[0][]));
    if (contents == null) {
      throw SparkErrors.corruptData(store.displayPath(name) + " is missing");
    }
    SegmentBytes[] pieces = new SegmentBytes[ranges.length];
    for (int i = 0; i < contents.length; i++) verifyChecksums(contents[i], mergedRanges.get(i)[0] - part, part, name);
    for (int i = 0; i < pieces.length; i++) {
      pieces[i] = new SegmentBytes(contents[mergedIndexes[i]], mergedRanges.get(mergedIndexes[i])[0] - part);
    }
    return pieces;
  }

  /** Verifies the checksums of bytes that start at a block boundary. */
  private void verifyChecksums(byte[] contents, long low, long part, String name) {
    for (int from = 0; from < contents.length; from += blockBytes) {
      int length = Math.min(blockBytes, contents.length - from);
      if (Xxh3.hash64(contents, from, length) != blockSums[(int) ((low + from) / blockBytes)]) {
        long at = part + low + from;
        String bytes = "bytes [" + at + ", " + (at + length) + ")";
        throw SparkErrors.corruptData(store.displayPath(name) + ": " + bytes + " do not match their checksum");
      }
    }
  }
}
