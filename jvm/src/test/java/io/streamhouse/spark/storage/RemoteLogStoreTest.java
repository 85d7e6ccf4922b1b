package io.streamhouse.spark.storage;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.ConnectException;
import java.net.SocketTimeoutException;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.FutureDataInputStreamBuilder;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.spark.sql.AnalysisException;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Files of a log in a store that is unavailable, denies access, breaks connections, or does not have the file. */
class RemoteLogStoreTest {
  private static final byte[] BYTES = new byte[1000];
  private static final long SOME_NS = 20_000_000_000L;

  @TempDir java.nio.file.Path folder;

  /** Counts opened files and fails on demand. */
  private static final class Store extends FilterFileSystem {
    final Deque<IOException> failures = new ArrayDeque<>();
    final List<String> asked = new ArrayList<>();

    Store() throws IOException {
      super(new RawLocalFileSystem());
      initialize(java.net.URI.create("file:///"), new Configuration(false));
    }

    @Override
    public FutureDataInputStreamBuilder openFile(Path path) throws IOException {
      asked.add(path.getName());
      IOException failure = failures.poll();
      if (failure != null) throw failure;
      return super.openFile(path);
    }
  }

  private Store store;

  @BeforeEach
  void aFile() throws IOException {
    for (int i = 0; i < BYTES.length; i++) BYTES[i] = (byte) i;
    Files.write(folder.resolve("f"), BYTES);
    store = new Store();
  }

  private RemoteLogStore files(long patienceNs) {
    return new RemoteLogStore(store, new Path(folder.toUri()), patienceNs);
  }

  @Test
  void aMissingFileIsNull() throws IOException {
    assertArrayEquals(BYTES, files(0).read("f"));
    assertNull(files(0).read("g"));
    byte[][] contents = files(0).read("f", 1000, true, new long[] {900, 1000}, new long[] {3, 5}, new long[] {5, 6});
    assertArrayEquals(Arrays.copyOfRange(BYTES, 900, 1000), contents[0]);
    assertArrayEquals(new byte[] {3, 4}, contents[1]);
    assertArrayEquals(new byte[] {5}, contents[2]);
    assertNull(files(0).read("g", 10, true, new long[] {0, 10}));
    assertEquals(List.of("f", "g", "f", "g"), store.asked);
  }

  @Test
  void failedReadsAreRetried() throws IOException {
    for (int round = 0; round < 2; round++) {
      store.failures.add(new ConnectException("refused"));
      store.failures.add(new SocketTimeoutException("slow"));
      store.failures.add(new IOException("503 Slow Down"));
      if (round == 0) assertArrayEquals(BYTES, files(SOME_NS).read("f"));
      else assertArrayEquals(new byte[] {7}, files(SOME_NS).read("f", 1000, true, new long[] {7, 8})[0]);
    }
    assertEquals(8, store.asked.size());
  }

  @Test
  void theErrorAfterTheTimeoutNamesTheFile() {
    store.failures.add(new ConnectException("refused"));
    Exception error = assertThrows(AnalysisException.class, () -> files(0).read("f"));
    String place = "STORAGE: file:" + folder.resolve("f") + " cannot be read: java.net.ConnectException: refused";
    assertTrue(error.getMessage().startsWith(place), error.getMessage());
    assertTrue(error.getMessage().contains("it continues from its checkpoint"), error.getMessage());
  }

  @Test
  void deniedReadsAreNotRetried() {
    store.failures.add(new AccessDeniedException("f"));
    Exception error = assertThrows(AnalysisException.class, () -> files(SOME_NS).read("f"));
    assertTrue(error.getMessage().contains("AccessDenied"), error.getMessage());
    assertEquals(1, store.asked.size());
  }

  @Test
  void aTruncatedFileIsAnError() {
    Exception error =
        assertThrows(AnalysisException.class, () -> files(0).read("f", 2000, true, new long[] {900, 1100}));
    assertTrue(error.getMessage().contains("cannot be read"), error.getMessage());
  }

  @Test
  void aStoppedQueryDoesNotRetry() {
    store.failures.add(new InterruptedIOException("stopped"));
    assertThrows(InterruptedIOException.class, () -> files(SOME_NS).read("f"));
    for (int i = 0; i < 100; i++) store.failures.add(new ConnectException("refused"));
    Thread.currentThread().interrupt();
    assertThrows(InterruptedIOException.class, () -> files(SOME_NS).read("f"));
    assertTrue(Thread.interrupted());
  }

  @Test
  void prefetchesRunConcurrently() throws IOException {
    CountDownLatch both = new CountDownLatch(2);
    LogStore.Read<Boolean> read =
        () -> {
          both.countDown();
          try {
            return both.await(20, TimeUnit.SECONDS);
          } catch (InterruptedException error) {
            throw new IllegalStateException(error);
          }
        };
    LogStore.Read<Boolean> first = files(0).prefetch(read);
    assertTrue(files(0).prefetch(read).get());
    assertTrue(first.get());
    assertNull(new LocalLogStore(folder).prefetch(read));
    LogStore.Read<Boolean> failing = files(0).prefetch(() -> Files.exists(folder.resolve("\0")));
    assertThrows(InvalidPathException.class, failing::get);
    assertThrows(InvalidPathException.class, failing::get);
  }

  @Test
  void errorsShowTheSchemeOfTheWarehouse() throws IOException {
    for (String scheme : List.of("s3a", "s3a-0123abcd", "s3a-0123abcd-log")) {
      Path at = new Path(scheme + "://bucket/wh/tables/u");
      assertEquals("s3a://bucket/wh/tables/u/f", new RemoteLogStore(store, at, 0).displayPath("f"));
    }
    Path at = new Path("abfss-0123abcd://box@acct.dfs.core.windows.net/wh");
    assertEquals("abfss://box@acct.dfs.core.windows.net/wh/f", new RemoteLogStore(store, at, 0).displayPath("f"));
    assertThrows(FileNotFoundException.class, () -> store.open(new Path(folder.resolve("g").toUri())));
  }
}
