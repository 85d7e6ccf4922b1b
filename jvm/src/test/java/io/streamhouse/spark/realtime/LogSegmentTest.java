package io.streamhouse.spark.realtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.storage.LocalLogStore;
import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.Xxh3;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.AnalysisException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Selected columns of large batches are read by ranges, and each range is verified. */
class LogSegmentTest {
  private static final int BLOCK_BYTES = 64 << 10;
  private static final int ROWS = 1000;
  private static final int NOTE_BYTES = 3000;
  private static final Schema SCHEMA =
      new Schema(
          List.of(
              Field.nullable("id", new ArrowType.Int(64, true)),
              Field.nullable("note", ArrowType.Binary.INSTANCE),
              Field.nullable("last", new ArrowType.Int(64, true))));

  @TempDir Path folder;
  private final BufferAllocator allocator = new RootAllocator();
  private final List<Long> read = new ArrayList<>();
  private LogSegment segment;
  private Path file;
  private int partBytes;

  /** Files on the local disk. Records how many bytes each read requests. */
  private final class Counted implements LogStore {
    private final LogStore files = new LocalLogStore(folder);

    @Override
    public byte[] read(String name) throws IOException {
      return files.read(name);
    }

    @Override
    public byte[][] read(String name, long bytes, boolean isExact, long[]... ranges) throws IOException {
      read.add(Arrays.stream(ranges).mapToLong(range -> range[1] - range[0]).sum());
      return files.read(name, bytes, isExact, ranges);
    }

    @Override
    public String displayPath(String name) {
      return files.displayPath(name);
    }
  }

  @BeforeEach
  void aSegmentOfTwoBatches() throws IOException {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    long second;
    try (VectorSchemaRoot root = VectorSchemaRoot.create(SCHEMA, allocator);
        ArrowFileWriter writer = new ArrowFileWriter(root, null, Channels.newChannel(out))) {
      writer.start();
      for (int batch = 0; batch < 2; batch++) {
        fill(root, batch);
        writer.writeBatch();
      }
      writer.end();
      second = writer.getRecordBlocks().get(1).getOffset();
    }
    byte[] bytes = out.toByteArray();
    partBytes = 1234; // it follows another one in a packed object
    byte[] shared = new byte[partBytes + bytes.length + 77];
    System.arraycopy(bytes, 0, shared, partBytes, bytes.length);
    Files.createDirectories(folder.resolve("segments"));
    file = Files.write(folder.resolve("segments").resolve("s.arrow"), shared);
    ObjectNode described = Json.object().put("bucket", 1).put("base", 7).put("rows", 2 * ROWS).put("schema", "1");
    described.put("bytes", bytes.length).put("segment", "s").put("part", partBytes).putArray("time").add(5);
    segment = new LogSegment(described, index(bytes, second), new Counted(), null);
  }

  private static void fill(VectorSchemaRoot root, int batch) {
    for (int i = 0; i < ROWS; i++) {
      ((BigIntVector) root.getVector("id")).setSafe(i, batch * ROWS + i);
      ((VarBinaryVector) root.getVector("note")).setSafe(i, new byte[NOTE_BYTES]);
      if (i % 3 > 0) ((BigIntVector) root.getVector("last")).setSafe(i, -i);
      else ((BigIntVector) root.getVector("last")).setNull(i);
    }
    root.setRowCount(ROWS);
  }

  private static byte[] index(byte[] bytes, long second) {
    int blocks = (bytes.length + BLOCK_BYTES - 1) / BLOCK_BYTES;
    ByteBuffer words = ByteBuffer.allocate(8 * (8 + blocks)).order(ByteOrder.LITTLE_ENDIAN);
    words.putLong(BLOCK_BYTES).putLong(2).putLong(blocks).putLong(0).putLong(0).putLong(second).putLong(ROWS);
    words.putLong(ROWS);
    for (int from = 0; from < bytes.length; from += BLOCK_BYTES) {
      words.putLong(Xxh3.hash64(bytes, from, Math.min(BLOCK_BYTES, bytes.length - from)));
    }
    return words.array();
  }

  @AfterEach
  void close() {
    allocator.close(); // Arrow reports leaked buffers here
  }

  private static ColumnSelection chosen(int... columns) {
    BitSet ordinals = new BitSet();
    for (int column : columns) ordinals.set(column);
    return new ColumnSelection(SCHEMA, ordinals);
  }

  private void check(int batch, ColumnSelection columns) throws IOException {
    try (VectorSchemaRoot root = VectorSchemaRoot.create(columns.schema, allocator)) {
      segment.load(batch, columns, allocator, new VectorLoader(root));
      assertEquals(ROWS, root.getRowCount());
      for (int i = 0; i < ROWS; i++) {
        if (root.getVector("id") != null) assertEquals((long) batch * ROWS + i, root.getVector("id").getObject(i));
        if (root.getVector("last") == null) continue;
        assertEquals(i % 3 > 0 ? (Long) (long) -i : null, root.getVector("last").getObject(i));
      }
    }
  }

  @Test
  void selectedColumnsAreReadWithoutTheOthers() throws IOException {
    for (int batch = 0; batch < 2; batch++) {
      read.clear();
      check(batch, chosen(0, 2));
      assertEquals(2, read.size(), "the head, then the columns");
      long bytes = read.stream().mapToLong(Long::longValue).sum();
      assertTrue(bytes < ROWS * NOTE_BYTES / 4, bytes + " bytes");
      check(batch, chosen(2));
      check(batch, chosen());
    }
  }

  @Test
  void allColumnsAreReadWithOneRequest() throws IOException {
    for (int batch = 0; batch < 2; batch++) {
      read.clear();
      check(batch, chosen(0, 1, 2));
      assertEquals(1, read.size());
    }
  }

  @Test
  void eachRangeIsVerified() throws IOException {
    byte[] whole = Files.readAllBytes(file);
    int errors = 0;
    for (int at = partBytes + 100; at < whole.length - 100; at += BLOCK_BYTES) {
      byte[] flipped = whole.clone();
      flipped[at] ^= 1;
      Files.write(file, flipped);
      try {
        check(0, chosen(0, 2));
      } catch (Exception error) {
        assertTrue(error.getMessage().startsWith("CORRUPT_DATA: " + file), error.getMessage());
        errors++;
      }
    }
    assertTrue(errors >= 2, errors + " of the blocks are read");
    assertTrue(errors <= 8, errors + " of the blocks are read");
    Files.write(file, Arrays.copyOf(whole, partBytes + 1000));
    assertThrows(AnalysisException.class, () -> check(0, chosen(0)));
  }
}
