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
 * The columns that a query reads of rows written with one schema, and where their bytes are in an Arrow IPC batch. A
 * batch consists of a length prefix, the message header and the buffers of the columns, one after the other.
 */
final class ColumnSelection {
  private static final int PREFIX_BYTES = 8;
  private static final int ENTRY_BYTES = 16;
  private static final int ALIGNMENT_BYTES = 8;

  /** Upper bound of the size of a header without the entries of its columns. */
  private static final int OTHER_HEAD_BYTES = 256;

  /** The schema of the selected columns, in file order. */
  final Schema schema;

  final boolean isComplete;

  /** Upper bound of the size of a batch header, including its prefix. */
  final int headBytesMax;

  private final BitSet nodes = new BitSet();

  /** For each column, the indexes of its first buffer and of the one after its last. */
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

  /** Counts the entries of a field in a batch header: nodes, then buffers. */
  private static void countEntries(Field field, int[] counts) {
    counts[0]++;
    counts[1] += TypeLayout.getTypeBufferCount(field.getType());
    for (Field child : field.getChildren()) countEntries(child, counts);
  }

  /** Returns where a message header ends and its body begins. {@code piece} must contain the prefix at {@code at}. */
  static long headEnd(SegmentBytes piece, long at) {
    ByteBuffer bytes = ByteBuffer.wrap(piece.bytes).order(ByteOrder.LITTLE_ENDIAN);
    return at + PREFIX_BYTES + bytes.getInt(piece.indexOf(at) + 4);
  }

  /** Reads the batch header at {@code at}, which {@code piece} contains. */
  static RecordBatch readHead(SegmentBytes piece, long at) {
    int from = piece.indexOf(at) + PREFIX_BYTES;
    int length = (int) (headEnd(piece, at) - at) - PREFIX_BYTES;
    ByteBuffer head = ByteBuffer.wrap(piece.bytes, from, length).slice().order(ByteOrder.LITTLE_ENDIAN);
    return (RecordBatch) Message.getRootAsMessage(head).header(new RecordBatch());
  }

  /** Returns the byte range of each selected column within the segment. */
  long[][] columnRanges(RecordBatch head, long body) {
    long[][] ranges = new long[buffers.size()][];
    for (int i = 0; i < ranges.length; i++) {
      Buffer first = head.buffers(buffers.get(i)[0]);
      Buffer last = head.buffers(buffers.get(i)[1] - 1);
      ranges[i] = new long[] {body + first.offset(), body + last.offset() + last.length()};
    }
    return ranges;
  }

  /** Loads the selected columns. Each piece contains the bytes of one of them. */
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
    // Arrow decompresses slices of one buffer, which must live until all are decompressed.
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
