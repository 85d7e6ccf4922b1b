package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;

/** Adjacent rows of one bucket: an Arrow file, a part of one, or inline in a commit record. */
final class LogSegment {
  private static final int FILE_HEAD_BYTES = 8;
  private static final int PREFIX_BYTES = 8;

  final int bucket;
  final long base;
  final int rows;
  final String schema;
  private final JsonNode described;
  private final Path folder;
  private final CommitRecord record;
  private final int blockBytes;
  private final long[] batchStarts;
  private final long[] batchRows;
  private final long[] blockSums;
  private final long[] timeStarts;
  private final long[] timesMs;

  /**
   * Takes a segment as a record describes it, and its index: the record's own or one that Python sent along. Of inline
   * rows the record is there that holds them.
   */
  LogSegment(JsonNode described, byte[] index, Path folder, CommitRecord record) {
    this.described = described;
    this.folder = folder;
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
  }

  /** A segment of an action of the record. */
  static LogSegment of(JsonNode described, Path folder, CommitRecord record) {
    JsonNode span = described.get("index");
    int payload = record.body.payload;
    byte[] index =
        span == null
            ? new byte[0]
            : Arrays.copyOfRange(record.body.bytes, payload + span.get(0).asInt(), payload + span.get(1).asInt());
    return new LogSegment(described, index, folder, record);
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

  /** A batch of the rows, once its bytes match their checksums. */
  ArrowRecordBatch read(int batch, BufferAllocator allocator) throws IOException {
    JsonNode inline = described.get("inline");
    if (inline != null) {
      int payload = record.body.payload;
      int from = payload + inline.get(0).asInt();
      return message(record.body.bytes, from, payload + inline.get(1).asInt() - from, allocator);
    }
    long start = batchStarts[batch];
    long end = batch + 1 < batchStarts.length ? batchStarts[batch + 1] : described.get("bytes").asLong();
    long low = start / blockBytes * blockBytes;
    byte[] found = blocks(low, end);
    int at = (int) (start - low);
    if (start == 0) { // the first one lies behind the schema
      at = FILE_HEAD_BYTES;
      at += PREFIX_BYTES + ByteBuffer.wrap(found).order(ByteOrder.LITTLE_ENDIAN).getInt(at + 4);
    }
    return message(found, at, found.length - at, allocator);
  }

  private static ArrowRecordBatch message(byte[] bytes, int from, int length, BufferAllocator allocator)
      throws IOException {
    ByteArrayInputStream source = new ByteArrayInputStream(bytes, from, length);
    return MessageSerializer.deserializeRecordBatch(new ReadChannel(Channels.newChannel(source)), allocator);
  }

  /** The verified blocks around a range of bytes that begins with a block. */
  private byte[] blocks(long low, long end) throws IOException {
    long size = described.get("bytes").asLong();
    long part = described.path("part").asLong(0);
    Path path = folder.resolve("segments").resolve(described.get("segment").asText() + ".arrow");
    long high = Math.min((end + blockBytes - 1) / blockBytes * blockBytes, size);
    byte[] found = new byte[Math.toIntExact(high - low)];
    try (FileChannel file = FileChannel.open(path)) {
      long least = part + size;
      if (file.size() < least || (!described.has("part") && file.size() != least)) {
        throw corrupt(path + " has " + file.size() + " bytes, the commit record says " + least);
      }
      ByteBuffer target = ByteBuffer.wrap(found);
      while (target.hasRemaining() && file.read(target, part + low + target.position()) >= 0) {}
    } catch (NoSuchFileException missing) {
      throw corrupt(path + " is missing although the table names it");
    }
    for (int from = 0; from < found.length; from += blockBytes) {
      int length = Math.min(blockBytes, found.length - from);
      if (Xxh3.hash64(found, from, length) != blockSums[(int) ((low + from) / blockBytes)]) {
        long at = part + low + from;
        throw corrupt(path + ": bytes [" + at + ", " + (at + length) + ") do not match their checksum");
      }
    }
    return found;
  }

  static RuntimeException corrupt(String what) {
    return Errors.analysis("CORRUPT_DATA: " + what + "; restore this file");
  }
}
