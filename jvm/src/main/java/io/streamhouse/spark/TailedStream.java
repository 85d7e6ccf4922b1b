package io.streamhouse.spark;

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
 * A file of a lake on a store, whose end comes by one request: a Parquet reader asks for the footer's length, the
 * footer and the indexes before it one after the other. So much of the end is taken as files beside it turned out to
 * need; a small file is taken whole. All else goes to the store as it is asked for. Ends are kept in this process for
 * whoever reads the file again, as it is never written again: at most a 64th of the heap, and 64 MiB.
 */
final class TailedStream extends FSInputStream implements StreamCapabilities {
  static final int FIRST_BYTES = 16 << 10;
  static final int SMALL_FILE_BYTES = 64 << 10;
  static final int TAIL_BYTES_MAX = 256 << 10;
  private static final Kept<Integer> NEEDED = new Kept<>(1 << 20);
  private static final Kept<byte[]> TAILS = new Kept<>(Math.min(64 << 20, Runtime.getRuntime().maxMemory() / 64));

  /** What a store's stream may be capable of, and this one is not. */
  private static final Set<String> LACKED = Set.of(UNBUFFER, READBYTEBUFFER, PREADBYTEBUFFER);

  private final FSDataInputStream store;
  private final String folder;
  private final String name;
  private final long length;
  private final long tailAt;
  private byte[] tail;
  private long at;
  private long followsAt = -1;
  private long needed;

  TailedStream(FSDataInputStream store, Path file, long length) {
    this.store = store;
    this.folder = file.getParent().toString();
    this.name = length + " " + file;
    this.length = length;
    tail = TAILS.find(name);
    Integer known = NEEDED.find(folder);
    int bytes =
        tail != null ? tail.length
            : length <= SMALL_FILE_BYTES ? SMALL_FILE_BYTES
            : known == null ? FIRST_BYTES
            : known + known / 16;
    tailAt = Math.max(0, length - bytes);
  }

  /** Forgets the ends of files, and how much of them was needed. */
  static void forgetAll() {
    NEEDED.clear();
    TAILS.clear();
  }

  @Override
  public int read() throws IOException {
    if (tail != null && at >= tailAt && at < length) {
      needed = Math.max(needed, length - at);
      return tail[(int) (at++ - tailAt)] & 0xff;
    }
    byte[] one = new byte[1];
    return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
  }

  @Override
  public int read(byte[] into, int offset, int count) throws IOException {
    int done = read(at, into, offset, count);
    if (done > 0) at += done;
    return done;
  }

  @Override
  public synchronized int read(long position, byte[] into, int offset, int count) throws IOException {
    if (position < 0) throw new EOFException("negative position " + position);
    if (count == 0) return 0;
    if (position >= length) return -1;
    boolean isOfEnd = length - position <= TAIL_BYTES_MAX && count <= SMALL_FILE_BYTES;
    if (isOfEnd && position != followsAt) needed = Math.max(needed, length - position); // else the rest of a read
    if (position < tailAt) {
      store.seek(position); // not by position: what follows is mostly asked for next, and is under way
      int some = store.read(into, offset, count);
      followsAt = position + Math.max(0, some);
      return some;
    }
    int some = (int) Math.min(count, length - position);
    followsAt = position + some;
    System.arraycopy(tail(), (int) (position - tailAt), into, offset, some);
    return some;
  }

  @Override
  public void readFully(long position, byte[] into, int offset, int count) throws IOException {
    for (int done = 0; done < count; ) {
      int some = read(position + done, into, offset + done, count - done);
      if (some < 0) throw new EOFException("the file ends at " + length + ", asked for " + (position + count));
      done += some;
    }
  }

  private byte[] tail() throws IOException {
    if (tail == null) {
      byte[] bytes = new byte[(int) (length - tailAt)];
      store.readFully(tailAt, bytes);
      TAILS.keep(name, bytes, bytes.length);
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
    List<FileRange> others = new ArrayList<>();
    for (FileRange range : ranges) {
      long from = range.getOffset() - tailAt;
      if (from < 0 || tail == null && tailAt > 0 || range.getOffset() + range.getLength() > length) {
        others.add(range);
        continue;
      }
      ByteBuffer buffer = allocate.apply(range.getLength());
      buffer.put(tail(), (int) from, range.getLength()).flip();
      range.setData(CompletableFuture.completedFuture(buffer));
    }
    if (!others.isEmpty()) store.readVectored(others, allocate, release);
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
    at = position;
  }

  @Override
  public long getPos() {
    return at;
  }

  @Override
  public boolean seekToNewSource(long position) throws IOException {
    return store.seekToNewSource(position);
  }

  @Override
  public int available() throws IOException {
    return at < tailAt ? store.available() : (int) (length - Math.min(at, length));
  }

  @Override
  public boolean hasCapability(String name) {
    return !LACKED.contains(name) && store.hasCapability(name);
  }

  @Override
  public void close() throws IOException {
    Integer known = NEEDED.find(folder);
    if (needed > (known == null ? 0 : known)) NEEDED.keep(folder, (int) needed, 0);
    if (tail != null && needed > tail.length) TAILS.forget(name); // so the whole of what is needed comes next time
    store.close();
  }
}
