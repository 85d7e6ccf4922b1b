package io.streamhouse.spark;

import java.io.IOException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.rdd.InputFileBlockHolder;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads the files of a partition one after the other by Spark's Parquet reader. Where a request takes long, a file's
 * end and its first rows take three of them in sequence: those of the next file are asked for while one is read.
 */
final class FilesAhead implements PartitionReader<ColumnarBatch> {
  private final FilePartition partition;
  private final PartitionReaderFactory factory;
  private int next;
  private PartitionReader<ColumnarBatch> inner;

  /** The reader of the next file, and whether that has rows, the first of which it then holds. */
  private PartitionReader<ColumnarBatch> following;

  private FutureTask<Boolean> opening;

  FilesAhead(FilePartition partition, PartitionReaderFactory factory) {
    this.partition = partition;
    this.factory = factory;
  }

  /** Whether a partition is of several files, which are not on a disk. */
  static boolean isUseful(FilePartition partition) {
    PartitionedFile[] files = partition.files();
    return files.length > 1 && !files[0].urlEncodedPath().startsWith("file:");
  }

  /** A reader that wants only the first rows never asks for a second batch: until then no other file is opened. */
  @Override
  public boolean next() throws IOException {
    if (inner != null) {
      if (opening == null && next < partition.files().length) open();
      if (inner.next()) return true;
    }
    while (next < partition.files().length) {
      if (inner != null) inner.close();
      PartitionedFile file = partition.files()[next];
      boolean isOpened = opening != null;
      inner = isOpened ? following : reader(file);
      next++;
      boolean hasRows = isOpened ? opened() : inner.next();
      if (isOpened) InputFileBlockHolder.set(file.urlEncodedPath(), file.start(), file.length());
      if (hasRows) return true;
    }
    return false;
  }

  private PartitionReader<ColumnarBatch> reader(PartitionedFile file) {
    return factory.createColumnarReader(new FilePartition(partition.index(), new PartitionedFile[] {file}));
  }

  private void open() {
    PartitionReader<ColumnarBatch> reader = reader(partition.files()[next]);
    TaskContext task = TaskContext.get();
    following = reader;
    opening =
        new FutureTask<>(
            () -> {
              TaskContext$.MODULE$.setTaskContext(task);
              return reader.next();
            });
    Thread thread = new Thread(opening, "streamhouse-open-ahead");
    thread.setDaemon(true);
    thread.start();
  }

  private boolean opened() throws IOException {
    try {
      return opening.get();
    } catch (ExecutionException error) {
      throw Errors.<RuntimeException>unchecked(error.getCause());
    } catch (InterruptedException stopped) {
      throw StoreLogFiles.stopped();
    } finally {
      opening = null;
    }
  }

  @Override
  public ColumnarBatch get() {
    return inner.get();
  }

  /** Waits for a file that is being opened: a reader is closed by one thread, behind its last use. */
  @Override
  public void close() throws IOException {
    if (inner != null) inner.close();
    if (opening == null) return;
    try {
      opened();
    } catch (Exception ignored) {
      // Nobody reads the file.
    }
    following.close();
  }
}
