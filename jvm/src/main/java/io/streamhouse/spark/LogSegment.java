package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
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
  final long base;
  final int rows;
  final String schema;
  private final JsonNode described;
  private final LogFiles files;
  private final CommitRecord record;
  private final int blockBytes;
  private final long[] batchStarts;
  private final long[] batchRows;
  private final long[] blockSums;
  private final long[] timeStarts;
  private final long[] timesMs;

  /** The rows behind an update, by turns the first of some and the one behind their last. */
  private final long[] updated;

  private LogFiles.Read<SegmentPiece[]> ahead;

  /**
   * Takes a segment as a record describes it, and its index: the record's own or one that Python sent along. Of inline
   * rows the record is there that holds them.
   */
  LogSegment(JsonNode described, byte[] index, LogFiles files, CommitRecord record) {
    this.described = described;
    this.files = files;
    this.record = record;
    bucket = described.get("bucket").asInt();
    base = described.get("base").asLong();
    rows = described.get("rows").asInt();
    schema = described.get("schema").asText();
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
    if (timeStarts.length == 0) timesMs[0] = described.get("time").get(0).asLong();
    JsonNode runs = described.path("updated");
    updated = new long[2 * runs.size()];
    for (int i = 0; i < updated.length; i++) updated[i] = runs.get(i / 2).get(i % 2).asLong();
  }

  /** A segment of an action of the record. */
  static LogSegment of(JsonNode described, LogFiles files, CommitRecord record) {
    JsonNode span = described.get("index");
    int payload = record.body.payload;
    byte[] index =
        span == null
            ? new byte[0]
            : Arrays.copyOfRange(record.body.bytes, payload + span.get(0).asInt(), payload + span.get(1).asInt());
    return new LogSegment(described, index, files, record);
  }

  long end() {
    return base + rows;
  }

  int batches() {
    return batchStarts.length;
  }

  int rowsOf(int batch) {
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
    int at = Arrays.binarySearch(updated, row);
    return ((at < 0 ? -at - 2 : at) & 1) == 0;
  }

  /** Loads some columns of a batch of the rows, once their bytes match their checksums. */
  void load(int batch, ChosenColumns columns, BufferAllocator allocator, VectorLoader loader) throws IOException {
    JsonNode inline = described.get("inline");
    if (inline != null) {
      int from = record.body.payload + inline.get(0).asInt();
      whole(new SegmentPiece(record.body.bytes, -from), 0, columns, allocator, loader);
      return;
    }
    long start = batchStarts[batch];
    long end = batch + 1 < batchStarts.length ? batchStarts[batch + 1] : described.get("bytes").asLong();
    boolean isNarrow = !columns.isAll && end - start > ONE_REQUEST_BYTES_MAX;
    long known = isNarrow ? Math.min(end, start + columns.headBytesMax + (start == 0 ? blockBytes : 0)) : end;
    SegmentPiece first = (ahead == null ? pieces(new long[] {start, known}) : ahead.get())[0];
    long at = start == 0 ? ChosenColumns.headEnd(first, FILE_HEAD_BYTES) : start; // the first lies behind the schema
    if (!isNarrow) {
      whole(first, at, columns, allocator, loader);
      return;
    }
    if (!first.has(at + columns.headBytesMax)) first = pieces(new long[] {at, at + columns.headBytesMax})[0];
    long body = ChosenColumns.headEnd(first, at);
    RecordBatch head = ChosenColumns.head(first, at);
    columns.load(head, body, pieces(columns.ranges(head, body)), allocator, loader);
  }

  /** Begins to read a small object beside others, where reads take long: its rows are asked for soon. */
  void expect() {
    long bytes = described.path("bytes").asLong(0);
    if (ahead != null || described.has("inline") || bytes > ONE_REQUEST_BYTES_MAX) return;
    ahead = files.begin(() -> pieces(new long[] {0, bytes}));
  }

  /** A batch all of whose bytes are in one piece. */
  private static void whole(
      SegmentPiece piece, long at, ChosenColumns columns, BufferAllocator allocator, VectorLoader loader) {
    SegmentPiece[] pieces = new SegmentPiece[columns.schema.getFields().size()];
    Arrays.fill(pieces, piece);
    columns.load(ChosenColumns.head(piece, at), ChosenColumns.headEnd(piece, at), pieces, allocator, loader);
  }

  /** The verified bytes of ranges, given in ascending order; neighbours are read together. */
  private SegmentPiece[] pieces(long[]... ranges) throws IOException {
    long size = described.get("bytes").asLong();
    long part = described.path("part").asLong(0);
    String name = "segments/" + described.get("segment").asText() + ".arrow";
    List<long[]> together = new ArrayList<>();
    int[] places = new int[ranges.length];
    for (int i = 0; i < ranges.length; i++) {
      long low = part + ranges[i][0] / blockBytes * blockBytes;
      long high = part + Math.min((ranges[i][1] + blockBytes - 1) / blockBytes * blockBytes, size);
      long[] last = together.isEmpty() ? null : together.get(together.size() - 1);
      if (last != null && low - last[1] <= GAP_BYTES_MAX) last[1] = Math.max(last[1], high);
      else together.add(new long[] {low, high});
      places[i] = together.size() - 1;
    }
    byte[][] found = files.read(name, part + size, !described.has("part"), together.toArray(new long[0][]));
    if (found == null) throw Errors.corrupt(files.place(name) + " is missing although the table names it");
    SegmentPiece[] pieces = new SegmentPiece[ranges.length];
    for (int i = 0; i < found.length; i++) verify(found[i], together.get(i)[0] - part, part, name);
    for (int i = 0; i < pieces.length; i++) {
      pieces[i] = new SegmentPiece(found[places[i]], together.get(places[i])[0] - part);
    }
    return pieces;
  }

  /** Compares the checksums of bytes that begin with a block, at a position of the segment. */
  private void verify(byte[] found, long low, long part, String name) {
    for (int from = 0; from < found.length; from += blockBytes) {
      int length = Math.min(blockBytes, found.length - from);
      if (Xxh3.hash64(found, from, length) != blockSums[(int) ((low + from) / blockBytes)]) {
        long at = part + low + from;
        String bytes = "bytes [" + at + ", " + (at + length) + ")";
        throw Errors.corrupt(files.place(name) + ": " + bytes + " do not match their checksum");
      }
    }
  }
}
