package io.streamhouse.spark.storage;

import io.streamhouse.spark.util.SparkErrors;
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
 * A log that is read through a Hadoop file system. On S3 each read is one request, because the size of a file is passed
 * and not requested. Failed reads are retried for a minute.
 */
public final class RemoteLogStore implements LogStore {
  /** Runs concurrent reads of this process. */
  private static final ExecutorService READ_POOL =
      Executors.newFixedThreadPool(
          16,
          work -> {
            Thread thread = new Thread(work, "streamhouse-read-log");
            thread.setDaemon(true);
            return thread;
          });

  private static final long RETRY_TIMEOUT_NS = 60_000_000_000L;
  private static final long BACKOFF_MIN_NS = 50_000_000;
  private static final long BACKOFF_MAX_NS = 5_000_000_000L;

  private static final String ADVICE =
      "restart the query when it is readable; it continues from its checkpoint";

  /** The suffix of a scheme that has the settings of one warehouse. */
  private static final String WAREHOUSE_SCHEME = "^(s3a|abfss?)-[0-9a-f]{8}(?:-log)?:";

  private final FileSystem fileSystem;
  private final Path folder;
  private final long retryTimeoutNs;

  RemoteLogStore(FileSystem fileSystem, Path folder, long retryTimeoutNs) {
    this.fileSystem = fileSystem;
    this.folder = folder;
    this.retryTimeoutNs = retryTimeoutNs;
  }

  /** Opens the log at a URI with the settings from the driver. */
  public static RemoteLogStore of(String uri, Configuration settings) throws IOException {
    return of(uri, settings, RETRY_TIMEOUT_NS);
  }

  public static RemoteLogStore of(String uri, Configuration settings, long retryTimeoutNs) throws IOException {
    Path folder = new Path(URI.create(uri));
    return new RemoteLogStore(folder.getFileSystem(settings), folder, retryTimeoutNs);
  }

  @Override
  public <T> Read<T> prefetch(Read<T> read) {
    Future<T> future = READ_POOL.submit(read::get);
    return () -> {
      try {
        return future.get();
      } catch (ExecutionException error) {
        throw SparkErrors.<RuntimeException>sneakyThrow(error.getCause());
      } catch (InterruptedException error) {
        throw interrupted();
      }
    };
  }

  @Override
  public byte[] read(String name) throws IOException {
    byte[][] contents =
        retry(
            name,
            () -> {
              // larger than any file, so the store returns the whole file
              try (FSDataInputStream file = open(name, Integer.MAX_VALUE, "whole-file")) {
                return new byte[][] {file.readAllBytes()};
              }
            });
    return contents == null ? null : contents[0];
  }

  @Override
  public byte[][] read(String name, long bytes, boolean isExact, long[]... ranges) throws IOException {
    return retry(
        name,
        () -> {
          List<FileRange> fileRanges = new ArrayList<>();
          for (long[] range : ranges) {
            fileRanges.add(FileRange.createFileRange(range[0], Math.toIntExact(range[1] - range[0])));
          }
          byte[][] contents = new byte[ranges.length][];
          try (FSDataInputStream file = open(name, bytes, "random")) {
            file.readVectored(fileRanges, ByteBuffer::allocate);
            for (int i = 0; i < contents.length; i++) {
              ByteBuffer data = FutureIO.awaitFuture(fileRanges.get(i).getData());
              contents[i] = new byte[data.remaining()];
              data.get(contents[i]);
            }
          }
          return contents;
        });
  }

  private FSDataInputStream open(String name, long bytes, String policy) throws IOException {
    return FutureIO.awaitFuture(
        fileSystem
            .openFile(new Path(folder, name))
            .opt("fs.option.openfile.length", Long.toString(bytes))
            .opt("fs.option.openfile.read.policy", policy)
            .build());
  }

  /** Sends a request, and retries it until the timeout. Returns null if the file does not exist. */
  private byte[][] retry(String name, Read<byte[][]> request) throws IOException {
    long beginNs = System.nanoTime();
    long backoffNs = BACKOFF_MIN_NS;
    while (true) {
      try {
        return request.get();
      } catch (FileNotFoundException error) {
        return null;
      } catch (IOException failure) {
        if (isInterrupt(failure)) throw failure;
        if (isAccessDenied(failure) || System.nanoTime() - beginNs >= retryTimeoutNs) {
          throw SparkErrors.analysisException("STORAGE: " + displayPath(name) + " cannot be read: " + failure + "; "
              + ADVICE, failure);
        }
      }
      LockSupport.parkNanos(backoffNs);
      if (Thread.currentThread().isInterrupted()) throw interrupted();
      backoffNs = Math.min(2 * backoffNs, BACKOFF_MAX_NS);
    }
  }

  private static InterruptedIOException interrupted() {
    Thread.currentThread().interrupt();
    return new InterruptedIOException("the query was stopped");
  }

  private static boolean isInterrupt(IOException failure) {
    return failure instanceof InterruptedIOException && !(failure instanceof SocketTimeoutException);
  }

  private static boolean isAccessDenied(IOException failure) {
    return failure instanceof AccessDeniedException || failure instanceof AccessControlException;
  }

  @Override
  public String displayPath(String name) {
    return new Path(folder, name).toString().replaceFirst(WAREHOUSE_SCHEME, "$1:");
  }
}
