package io.streamhouse.spark.storage;

import io.streamhouse.spark.util.WeightedLruCache;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;

/**
 * Reads the end of a lake file on an object store with one request. A Parquet reader requests the length of the footer,
 * the footer, and the indexes before it one after the other.
 *
 *
 * <p>The stream prefetches as much of the end as files in the same folder needed before, or all of a small file. Other
 * reads go to the store. Ends are cached in the process, since a lake file is immutable. The cache is limited to a 64th
 * of the heap and 64 MiB.
 */
final class FooterPrefetchStream extends FSInputStream implements StreamCapabilities {
  static final int FIRST_TAIL_BYTES = 16 << 10;
  static final int SMALL_FILE_BYTES = 64 << 10;
  static final int TAIL_BYTES_MAX = 256 << 10;
  private static final WeightedLruCache<Integer> FOOTER_SIZES = new WeightedLruCache<>(1 << 20);
  private static final WeightedLruCache<byte[]> TAILS =
      new WeightedLruCache<>(Math.min(64 << 20, Runtime.getRuntime().maxMemory() / 64));

  /** Capabilities that the store's stream may have and this one does not. */
  private static final Set<String> UNSUPPORTED = Set.of(UNBUFFER, READBYTEBUFFER, PREADBYTEBUFFER);

  private final FSDataInputStream store;
  private final String folder;
  private final String name;
  private final long length;
  private final long tailStart;
  private byte[] tail;
  private long cursor;
  private long sequentialPosition = -1;
  private long neededBytes;

  FooterPrefetchStream(FSDataInputStream store, Path file, long length) {
    this.store = store;
    this.folder = file.getParent().toString();
    this.name = length + " " + file;
    this.length = length;
    tail = TAILS.get(name);
    Integer footerBytes = FOOTER_SIZES.get(folder);
    int bytes =
        tail != null ? tail.length
            : length <= SMALL_FILE_BYTES ? SMALL_FILE_BYTES
            : footerBytes == null ? FIRST_TAIL_BYTES
            : footerBytes + footerBytes / 16;
    tailStart = Math.max(0, length - bytes);
  }

  /** Clears the caches of file ends and of their sizes. For tests. */
  static void clearCaches() {
    FOOTER_SIZES.clear();
    TAILS.clear();
  }

  @Override
  public int read() throws IOException {
    if (tail != null && cursor >= tailStart && cursor < length) {
      neededBytes = Math.max(neededBytes, length - cursor);
      return tail[(int) (cursor++ - tailStart)] & 0xff;
    }
    byte[] single = new byte[1];
    return read(single, 0, 1) < 0 ? -1 : single[0] & 0xff;
  }

  @Override
  public int read(byte[] target, int offset, int count) throws IOException {
    int bytesRead = read(cursor, target, offset, count);
    if (bytesRead > 0) cursor += bytesRead;
    return bytesRead;
  }

  @Override
  public synchronized int read(long position, byte[] target, int offset, int count) throws IOException {
    if (position < 0) throw new EOFException("negative position " + position);
    if (count == 0) return 0;
    if (position >= length) return -1;
    boolean isOfEnd = length - position <= TAIL_BYTES_MAX && count <= SMALL_FILE_BYTES;
    // otherwise it continues a read
    if (isOfEnd && position != sequentialPosition) neededBytes = Math.max(neededBytes, length - position);
    if (position < tailStart) {
      // not a positioned read: the bytes that follow are usually read next and are already on the way
      store.seek(position);
      int bytesRead = store.read(target, offset, count);
      sequentialPosition = position + Math.max(0, bytesRead);
      return bytesRead;
    }
    int bytesRead = (int) Math.min(count, length - position);
    sequentialPosition = position + bytesRead;
    System.arraycopy(loadTail(), (int) (position - tailStart), target, offset, bytesRead);
    return bytesRead;
  }

  @Override
  public void readFully(long position, byte[] target, int offset, int count) throws IOException {
    for (int bytesRead = 0; bytesRead < count; ) {
      int chunk = read(position + bytesRead, target, offset + bytesRead, count - bytesRead);
      if (chunk < 0) throw new EOFException("the file ends at " + length + ", asked for " + (position + count));
      bytesRead += chunk;
    }
  }

  private byte[] loadTail() throws IOException {
    if (tail == null) {
      byte[] bytes = new byte[(int) (length - tailStart)];
      store.readFully(tailStart, bytes);
      TAILS.put(name, bytes, bytes.length);
      tail = bytes;
    }
    return tail;
  }

  @Override
  public void readVectored(List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate) throws IOException {
    readVectored(ranges, allocate, buffer -> {});
  }

  @Override
  public void readVectored(
      List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate, Consumer<ByteBuffer> release)
      throws IOException {
    List<FileRange> storeRanges = new ArrayList<>();
    for (FileRange range : ranges) {
      long from = range.getOffset() - tailStart;
      if (from < 0 || tail == null && tailStart > 0 || range.getOffset() + range.getLength() > length) {
        storeRanges.add(range);
        continue;
      }
      ByteBuffer buffer = allocate.apply(range.getLength());
      buffer.put(loadTail(), (int) from, range.getLength()).flip();
      range.setData(CompletableFuture.completedFuture(buffer));
    }
    if (!storeRanges.isEmpty()) store.readVectored(storeRanges, allocate, release);
  }

  @Override
  public int minSeekForVectorReads() {
    return store.minSeekForVectorReads();
  }

  @Override
  public int maxReadSizeForVectorReads() {
    return store.maxReadSizeForVectorReads();
  }

  @Override
  public void seek(long position) throws IOException {
    if (position < 0) throw new EOFException("negative position " + position);
    cursor = position;
  }

  @Override
  public long getPos() {
    return cursor;
  }

  @Override
  public boolean seekToNewSource(long position) throws IOException {
    return store.seekToNewSource(position);
  }

  @Override
  public int available() throws IOException {
    return cursor < tailStart ? store.available() : (int) (length - Math.min(cursor, length));
  }

  @Override
  public boolean hasCapability(String name) {
    return !UNSUPPORTED.contains(name) && store.hasCapability(name);
  }

  @Override
  public void close() throws IOException {
    Integer footerBytes = FOOTER_SIZES.get(folder);
    if (neededBytes > (footerBytes == null ? 0 : footerBytes)) FOOTER_SIZES.put(folder, (int) neededBytes, 0);
    // the next reader then fetches all that is needed
    if (tail != null && neededBytes > tail.length) TAILS.remove(name);
    store.close();
  }
}
