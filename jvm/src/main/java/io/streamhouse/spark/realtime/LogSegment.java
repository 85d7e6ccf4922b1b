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

/** Adjacent rows of one bucket: an Arrow file, a part of one, or inline in a commit record. */
final class LogSegment {
  private static final int FILE_HEAD_BYTES = 8;

  /** So many bytes are read with all their columns: that takes no longer than another request. */
  private static final long ONE_REQUEST_BYTES_MAX = 1 << 20;

  /** Bytes between two ranges that are read together: about those that move in the time of a request. */
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

  /** The rows behind an update, by turns the first of some and the one behind their last. */
  private final long[] updatedRuns;

  private LogStore.Read<SegmentBytes[]> prefetched;

  /**
   * Takes a segment as a record describes it, and its index: the record's own or one that Python sent along. Of inline
   * rows the record is there that holds them.
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

  /** A segment of an action of the record. */
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

  /** The commit time of a row, by its number in the segment. Times of merged segments may decrease. */
  long timeMs(long row) {
    int at = timeStarts.length - 1;
    while (at > 0 && timeStarts[at] > row) at--;
    return timesMs[Math.max(at, 0)];
  }

  /** Whether a row, by its number in the segment, is one behind an update, of a table without a primary key. */
  boolean isUpdated(long row) {
    int at = Arrays.binarySearch(updatedRuns, row);
    return ((at < 0 ? -at - 2 : at) & 1) == 0;
  }

  /** Loads some columns of a batch of the rows, once their bytes match their checksums. */
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
    long at = start == 0 ? ColumnSelection.headEnd(first, FILE_HEAD_BYTES) : start; // the first lies behind the schema
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

  /** Begins to read a small object beside others, where reads take long: its rows are asked for soon. */
  void prefetch() {
    long bytes = entry.path("bytes").asLong(0);
    if (prefetched != null || entry.has("inline") || bytes > ONE_REQUEST_BYTES_MAX) return;
    prefetched = store.prefetch(() -> readRanges(new long[] {0, bytes}));
  }

  /** A batch all of whose bytes are in one piece. */
  private static void loadWhole(
      SegmentBytes piece, long at, ColumnSelection columns, BufferAllocator allocator, VectorLoader loader) {
    SegmentBytes[] pieces = new SegmentBytes[columns.schema.getFields().size()];
    Arrays.fill(pieces, piece);
    columns.load(ColumnSelection.readHead(piece, at), ColumnSelection.headEnd(piece, at), pieces, allocator, loader);
  }

  /** The verified bytes of ranges, given in ascending order; neighbours are read together. */
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
      throw SparkErrors.corruptData(store.displayPath(name) + " is missing although the table names it");
    }
    SegmentBytes[] pieces = new SegmentBytes[ranges.length];
    for (int i = 0; i < contents.length; i++) verifyChecksums(contents[i], mergedRanges.get(i)[0] - part, part, name);
    for (int i = 0; i < pieces.length; i++) {
      pieces[i] = new SegmentBytes(contents[mergedIndexes[i]], mergedRanges.get(mergedIndexes[i])[0] - part);
    }
    return pieces;
  }

  /** Compares the checksums of bytes that begin with a block, at a position of the segment. */
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
