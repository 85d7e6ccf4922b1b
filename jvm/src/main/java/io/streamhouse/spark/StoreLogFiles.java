package io.streamhouse.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.file.AccessDeniedException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.util.functional.FutureIO;

/**
 * A log that a file system of Spark reaches. On S3 each read is one request: the length of a file is given and never
 * asked for. What fails is asked again for a minute, because reading a file twice does no harm.
 */
final class StoreLogFiles implements LogFiles {
  /** Reads that run beside each other in this process. */
  private static final ExecutorService READS =
      Executors.newFixedThreadPool(
          16,
          work -> {
            Thread thread = new Thread(work, "streamhouse-read-log");
            thread.setDaemon(true);
            return thread;
          });

  private static final long PATIENCE_NS = 60_000_000_000L;
  private static final long PAUSE_MIN_NS = 50_000_000;
  private static final long PAUSE_MAX_NS = 5_000_000_000L;

  private static final String ADVICE =
      "start the query again once it can be: from its checkpoint the query goes on where it was";

  /** What stands behind the name of a file system that has the settings of one warehouse. */
  private static final String OWN_SCHEME = "^(s3a|abfss?)-[0-9a-f]{8}(?:-log)?:";

  private final FileSystem store;
  private final Path folder;
  private final long patienceNs;

  StoreLogFiles(FileSystem store, Path folder, long patienceNs) {
    this.store = store;
    this.folder = folder;
    this.patienceNs = patienceNs;
  }

  /** The log at a URI, by the settings that the driver gave along. */
  static StoreLogFiles of(String uri, Configuration settings) throws IOException {
    return of(uri, settings, PATIENCE_NS);
  }

  static StoreLogFiles of(String uri, Configuration settings, long patienceNs) throws IOException {
    Path folder = new Path(URI.create(uri));
    return new StoreLogFiles(folder.getFileSystem(settings), folder, patienceNs);
  }

  @Override
  public <T> Read<T> begin(Read<T> read) {
    Future<T> begun = READS.submit(read::get);
    return () -> {
      try {
        return begun.get();
      } catch (ExecutionException error) {
        throw Errors.<RuntimeException>unchecked(error.getCause());
      } catch (InterruptedException stopped) {
        throw stopped();
      }
    };
  }

  @Override
  public byte[] read(String name) throws IOException {
    byte[][] found =
        patiently(
            name,
            () -> {
              // No file is so long: the store gives what there is.
              try (FSDataInputStream file = open(name, Integer.MAX_VALUE, "whole-file")) {
                return new byte[][] {file.readAllBytes()};
              }
            });
    return found == null ? null : found[0];
  }

  @Override
  public byte[][] read(String name, long bytes, boolean isExact, long[]... ranges) throws IOException {
    return patiently(
        name,
        () -> {
          List<FileRange> wanted = new ArrayList<>();
          for (long[] each : ranges) {
            wanted.add(FileRange.createFileRange(each[0], Math.toIntExact(each[1] - each[0])));
          }
          byte[][] found = new byte[ranges.length][];
          try (FSDataInputStream file = open(name, bytes, "random")) {
            file.readVectored(wanted, ByteBuffer::allocate);
            for (int i = 0; i < found.length; i++) {
              ByteBuffer data = FutureIO.awaitFuture(wanted.get(i).getData());
              found[i] = new byte[data.remaining()];
              data.get(found[i]);
            }
          }
          return found;
        });
  }

  private FSDataInputStream open(String name, long bytes, String policy) throws IOException {
    return FutureIO.awaitFuture(
        store
            .openFile(new Path(folder, name))
            .opt("fs.option.openfile.length", Long.toString(bytes))
            .opt("fs.option.openfile.read.policy", policy)
            .build());
  }

  /** The answer of a request; null where the file is not there. Fails once patience is over. */
  private byte[][] patiently(String name, Read<byte[][]> request) throws IOException {
    long beginNs = System.nanoTime();
    long pauseNs = PAUSE_MIN_NS;
    while (true) {
      try {
        return request.get();
      } catch (FileNotFoundException absent) {
        return null;
      } catch (IOException failure) {
        if (isStop(failure)) throw failure;
        if (isDenied(failure) || System.nanoTime() - beginNs >= patienceNs) {
          throw Errors.analysis("STORAGE: " + place(name) + " cannot be read: " + failure + "; " + ADVICE, failure);
        }
      }
      LockSupport.parkNanos(pauseNs);
      if (Thread.currentThread().isInterrupted()) throw stopped();
      pauseNs = Math.min(2 * pauseNs, PAUSE_MAX_NS);
    }
  }

  private static InterruptedIOException stopped() {
    Thread.currentThread().interrupt();
    return new InterruptedIOException("the query was stopped");
  }

  private static boolean isStop(IOException failure) {
    return failure instanceof InterruptedIOException && !(failure instanceof SocketTimeoutException);
  }

  private static boolean isDenied(IOException failure) {
    return failure instanceof AccessDeniedException || failure instanceof AccessControlException;
  }

  @Override
  public String place(String name) {
    return new Path(folder, name).toString().replaceFirst(OWN_SCHEME, "$1:");
  }
}
