package io.streamhouse.spark.realtime;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.TypeLayout;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.compression.NoCompressionCodec;
import org.apache.arrow.vector.ipc.message.ArrowBodyCompression;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Some columns of rows that were written with one schema, and where a batch in Arrow's file format has their bytes: a
 * prefix with the length of the head, the head, and the buffers of all columns, one column behind the other.
 */
final class ColumnSelection {
  private static final int PREFIX_BYTES = 8;
  private static final int ENTRY_BYTES = 16;
  private static final int ALIGNMENT_BYTES = 8;

  /** Everything in a head but the entries of its columns is smaller than this. */
  private static final int OTHER_HEAD_BYTES = 256;

  /** The schema of the columns alone, in the order of the file. */
  final Schema schema;

  final boolean isComplete;

  /** The head of a batch, with its prefix, is no longer than this. */
  final int headBytesMax;

  private final BitSet nodes = new BitSet();

  /** For each column the number of its first buffer, and the one behind its last. */
  private final List<int[]> buffers = new ArrayList<>();

  ColumnSelection(Schema written, BitSet selected) {
    List<Field> fields = new ArrayList<>();
    int[] next = {0, 0};
    for (int i = 0; i < written.getFields().size(); i++) {
      Field field = written.getFields().get(i);
      int node = next[0];
      int buffer = next[1];
      countEntries(field, next);
      if (!selected.get(i)) continue;
      fields.add(field);
      nodes.set(node, next[0]);
      buffers.add(new int[] {buffer, next[1]});
    }
    schema = new Schema(fields);
    isComplete = fields.size() == written.getFields().size();
    headBytesMax = PREFIX_BYTES + OTHER_HEAD_BYTES + ENTRY_BYTES * (next[0] + next[1]);
  }

  /** Counts the entries that a field has in the head of a batch: nodes, then buffers. */
  private static void countEntries(Field field, int[] counts) {
    counts[0]++;
    counts[1] += TypeLayout.getTypeBufferCount(field.getType());
    for (Field child : field.getChildren()) countEntries(child, counts);
  }

  /** Where a message ends its head: its body begins there. The piece has the message's prefix at that position. */
  static long headEnd(SegmentBytes piece, long at) {
    ByteBuffer bytes = ByteBuffer.wrap(piece.bytes).order(ByteOrder.LITTLE_ENDIAN);
    return at + PREFIX_BYTES + bytes.getInt(piece.indexOf(at) + 4);
  }

  /** The batch whose prefix and head a piece has at that position. */
  static RecordBatch readHead(SegmentBytes piece, long at) {
    int from = piece.indexOf(at) + PREFIX_BYTES;
    int length = (int) (headEnd(piece, at) - at) - PREFIX_BYTES;
    ByteBuffer head = ByteBuffer.wrap(piece.bytes, from, length).slice().order(ByteOrder.LITTLE_ENDIAN);
    return (RecordBatch) Message.getRootAsMessage(head).header(new RecordBatch());
  }

  /** The ranges of a segment that have the columns' bytes, one for each. */
  long[][] columnRanges(RecordBatch head, long body) {
    long[][] ranges = new long[buffers.size()][];
    for (int i = 0; i < ranges.length; i++) {
      Buffer first = head.buffers(buffers.get(i)[0]);
      Buffer last = head.buffers(buffers.get(i)[1] - 1);
      ranges[i] = new long[] {body + first.offset(), body + last.offset() + last.length()};
    }
    return ranges;
  }

  /** Loads the columns alone, from the pieces that have the bytes of each. */
  void load(RecordBatch head, long body, SegmentBytes[] pieces, BufferAllocator allocator, VectorLoader loader) {
    List<ArrowFieldNode> entries = new ArrayList<>();
    for (int i = nodes.nextSetBit(0); i >= 0; i = nodes.nextSetBit(i + 1)) {
      FieldNode node = head.nodes(i);
      entries.add(new ArrowFieldNode(node.length(), node.nullCount()));
    }
    ArrowBodyCompression compression =
        head.compression() == null
            ? NoCompressionCodec.DEFAULT_BODY_COMPRESSION
            : new ArrowBodyCompression(head.compression().codec(), head.compression().method());
    // Arrow decompresses parts of one buffer, which has to be there until all of them are.
    try (ArrowBuf bufferSpace = allocator.buffer(bufferBytes(head))) {
      List<ArrowBuf> parts = new ArrayList<>();
      long at = 0;
      for (int i = 0; i < pieces.length; i++) {
        for (int j = buffers.get(i)[0]; j < buffers.get(i)[1]; j++) {
          Buffer buffer = head.buffers(j);
          bufferSpace.setBytes(at, pieces[i].bytes, pieces[i].indexOf(body + buffer.offset()), buffer.length());
          parts.add(bufferSpace.slice(at, buffer.length()));
          at += pad(buffer.length());
        }
      }
      try (ArrowRecordBatch batch = new ArrowRecordBatch((int) head.length(), entries, parts, compression, false)) {
        loader.load(batch);
      }
    }
  }

  private long bufferBytes(RecordBatch head) {
    long total = 0;
    for (int[] range : buffers) {
      for (int i = range[0]; i < range[1]; i++) total += pad(head.buffers(i).length());
    }
    return total;
  }

  private static long pad(long bytes) {
    return (bytes + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
  }
}
