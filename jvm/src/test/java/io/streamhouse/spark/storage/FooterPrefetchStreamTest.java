package io.streamhouse.spark.storage;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The end of a file is read with one request, and all bytes are those of the file. */
class FooterPrefetchStreamTest {
  private int requests;
  private int files;

  /** A file of a store. A read that does not continue the last one is a request, and so is each vectored range. */
  private final class Stored extends FSInputStream implements StreamCapabilities {
    private final byte[] bytes;
    private long cursor;
    private long sequentialPosition = -1;

    Stored(byte[] bytes) {
      this.bytes = bytes;
    }

    @Override
    public int read() throws IOException {
      byte[] single = new byte[1];
      return read(single, 0, 1) < 0 ? -1 : single[0] & 0xff;
    }

    @Override
    public int read(byte[] target, int offset, int count) {
      if (cursor >= bytes.length) return -1;
      if (cursor != sequentialPosition) requests++;
      int bytesRead = (int) Math.min(Math.min(count, 5_000), bytes.length - cursor);
      System.arraycopy(bytes, (int) cursor, target, offset, bytesRead);
      sequentialPosition = cursor += bytesRead;
      return bytesRead;
    }

    @Override
    public void readVectored(List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate) {
      for (FileRange range : ranges) {
        requests++;
        ByteBuffer buffer = allocate.apply(range.getLength());
        buffer.put(bytes, (int) range.getOffset(), range.getLength()).flip();
        range.setData(CompletableFuture.completedFuture(buffer));
      }
    }

    @Override
    public boolean hasCapability(String name) {
      return true;
    }

    @Override
    public void seek(long position) {
      cursor = position;
    }

    @Override
    public long getPos() {
      return cursor;
    }

    @Override
    public boolean seekToNewSource(long position) {
      return false;
    }
  }

  @BeforeEach
  void nothingIsKnown() {
    FooterPrefetchStream.clearCaches();
  }

  private static byte[] content(int length, int seed) {
    byte[] bytes = new byte[length];
    new Random(seed).nextBytes(bytes);
    return bytes;
  }

  /** Opens a file that was never read. */
  private FSDataInputStream opened(byte[] bytes) {
    return opened("of test " + files++, bytes);
  }

  private FSDataInputStream opened(String name, byte[] bytes) {
    Path file = new Path("s3a-12345678://bucket/folder", name);
    return new FSDataInputStream(
        new FooterPrefetchStream(new FSDataInputStream(new Stored(bytes)), file, bytes.length));
  }

  private int requestsOfFooter(byte[] bytes, int footer, int indexes) throws IOException {
    return requestsOfFooter("of test " + files++, bytes, footer, indexes);
  }

  /** Reads like a Parquet reader: the footer's length, the footer, then the indexes before it. */
  private int requestsOfFooter(String name, byte[] bytes, int footer, int indexes) throws IOException {
    requests = 0;
    try (FSDataInputStream file = opened(name, bytes)) {
      byte[] last = new byte[8];
      file.seek(bytes.length - 8);
      file.readFully(last);
      assertArrayEquals(Arrays.copyOfRange(bytes, bytes.length - 8, bytes.length), last);
      byte[] read = new byte[footer];
      file.seek(bytes.length - 8 - footer);
      file.readFully(read);
      assertArrayEquals(Arrays.copyOfRange(bytes, bytes.length - 8 - footer, bytes.length - 8), read);
      file.seek(bytes.length - 8 - footer - indexes);
      for (int i = bytes.length - 8 - footer - indexes; i < bytes.length - 8 - footer; i++) {
        assertEquals(bytes[i] & 0xff, file.read());
      }
    }
    return requests;
  }

  @Test
  void theEndOfAFileIsReadWithOneRequest() throws IOException {
    assertEquals(1, requestsOfFooter(content(1_000_000, 1), 9_000, 3_000));
  }

  @Test
  void theNeededSizeIsLearned() throws IOException {
    assertEquals(3, requestsOfFooter(content(1_000_000, 1), 60_000, 3_000));
    assertEquals(1, requestsOfFooter(content(1_000_000, 2), 60_000, 3_000));
    assertEquals(1, requestsOfFooter(content(1_000_000, 3), 40_000, 1_000));
    FooterPrefetchStream.clearCaches();
    assertEquals(3, requestsOfFooter(content(1_000_000, 2), 60_000, 3_000));
  }

  @Test
  void endsAreCached() throws IOException {
    byte[] bytes = content(1_000_000, 1);
    assertEquals(1, requestsOfFooter("a", bytes, 9_000, 3_000));
    assertEquals(0, requestsOfFooter("a", bytes, 9_000, 3_000));
    assertEquals(1, requestsOfFooter("b", content(1_000_000, 2), 9_000, 3_000));
    assertEquals(1, requestsOfFooter("a", content(1_000_001, 3), 9_000, 3_000), "no file of another length");
    FooterPrefetchStream.clearCaches();
    assertEquals(1, requestsOfFooter("a", bytes, 9_000, 3_000));
  }

  @Test
  void aCachedEndThatWasTooShortIsReadAgain() throws IOException {
    byte[] bytes = content(1_000_000, 1);
    assertEquals(3, requestsOfFooter("a", bytes, 60_000, 3_000));
    assertEquals(1, requestsOfFooter("a", bytes, 60_000, 3_000));
    assertEquals(0, requestsOfFooter("a", bytes, 60_000, 3_000));
  }

  @Test
  void theCacheOfEndsIsBounded() throws IOException {
    byte[] bytes = content(SMALL, 1);
    for (int i = 0; i <= (64 << 20) / SMALL; i++) assertEquals(1, requestsOfFooter("f" + i, bytes, 9_000, 3_000));
    assertEquals(1, requestsOfFooter("f0", bytes, 9_000, 3_000));
    assertEquals(0, requestsOfFooter("f0", bytes, 9_000, 3_000));
  }

  @Test
  void dataReadsDoNotEnlargeThePrefetch() throws IOException {
    byte[] bytes = content(300_000, 1);
    try (FSDataInputStream file = opened(bytes)) {
      byte[] data = new byte[SMALL + 1];
      file.readFully(100_000, data);
      assertArrayEquals(Arrays.copyOfRange(bytes, 100_000, 100_000 + data.length), data);
      file.readFully(bytes.length - 300, new byte[300]);
    }
    requests = 0;
    try (FSDataInputStream file = opened(bytes)) {
      file.readFully(bytes.length - 300, new byte[300]);
      file.readFully(bytes.length - 400, new byte[1]);
    }
    assertEquals(2, requests, "about 300 bytes of the end were needed before");
  }

  private static final int SMALL = FooterPrefetchStream.SMALL_FILE_BYTES;

  @Test
  void aSmallFileIsPrefetchedWhole() throws Exception {
    byte[] bytes = content(SMALL, 4);
    requests = 0;
    try (FSDataInputStream file = opened(bytes)) {
      file.readFully(bytes.length - 8, new byte[8]);
      FileRange range = FileRange.createFileRange(10, 50_000);
      file.readVectored(List.of(range), ByteBuffer::allocate);
      assertEquals(ByteBuffer.wrap(bytes, 10, 50_000), range.getData().get());
      file.readFully(0, new byte[100]);
    }
    assertEquals(1, requests);
  }

  @Test
  void anyReadReturnsTheBytesOfTheFile() throws Exception {
    Random random = new Random(17);
    for (int length : new int[] {1, 20, SMALL, SMALL + 1, 500_000}) {
      byte[] bytes = content(length, length);
      for (int round = 0; round < 20; round++) {
        try (FSDataInputStream file = opened("file " + round % 4, bytes)) {
          for (int step = 0; step < 30; step++) readSome(file, bytes, random);
        }
      }
    }
  }

  private static void readSome(FSDataInputStream file, byte[] bytes, Random random) throws Exception {
    int nearEnd = random.nextInt(Math.min(bytes.length, 40_000)) + 1;
    int from = random.nextBoolean() ? random.nextInt(bytes.length) : bytes.length - nearEnd;
    int count = 1 + random.nextInt(bytes.length - from);
    byte[] expected = Arrays.copyOfRange(bytes, from, from + count);
    byte[] actual = new byte[count];
    switch (random.nextInt(4)) {
      case 0 -> {
        file.seek(from);
        file.readFully(actual);
        assertEquals(from + count, file.getPos());
      }
      case 1 -> {
        file.seek(from);
        int done = file.read(actual);
        assertTrue(done > 0);
        assertEquals(from + done, file.getPos());
        actual = Arrays.copyOf(actual, done);
        expected = Arrays.copyOf(expected, done);
      }
      case 2 -> {
        long before = file.getPos();
        file.readFully(from, actual);
        assertEquals(before, file.getPos());
      }
      default -> {
        FileRange first = FileRange.createFileRange(from, count);
        FileRange last = FileRange.createFileRange(bytes.length - 1, 1);
        file.readVectored(List.of(first, last), ByteBuffer::allocate);
        assertEquals(ByteBuffer.wrap(bytes, bytes.length - 1, 1), last.getData().get());
        actual = first.getData().get().array();
      }
    }
    assertArrayEquals(expected, actual);
  }

  @Test
  void capabilitiesOfTheStoreAloneAreNotReported() throws IOException {
    try (FSDataInputStream file = opened(content(100, 6))) {
      assertTrue(file.hasCapability(StreamCapabilities.VECTOREDIO));
      assertFalse(file.hasCapability(StreamCapabilities.READBYTEBUFFER));
      assertFalse(file.hasCapability(StreamCapabilities.PREADBYTEBUFFER));
      assertFalse(file.hasCapability(StreamCapabilities.UNBUFFER));
    }
  }

  @Test
  void readsPastTheEndReturnNothing() throws IOException {
    byte[] bytes = content(100_000, 5);
    try (FSDataInputStream file = opened(bytes)) {
      file.seek(bytes.length);
      assertEquals(-1, file.read());
      assertEquals(-1, file.read(new byte[4]));
      assertThrows(EOFException.class, () -> file.readFully(bytes.length - 2, new byte[3]));
      assertThrows(EOFException.class, () -> file.seek(-1));
      file.seek(bytes.length - 1);
      assertEquals(bytes[bytes.length - 1] & 0xff, file.read());
      assertEquals(-1, file.read());
    }
  }
}
