package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.junit.jupiter.api.Test;

/** Files of a partition are read in order, each once, and the next one is opened while one is read. */
class FilesAheadTest {
  private final List<String> events = Collections.synchronizedList(new ArrayList<>());

  /** Files of so many batches each; a negative number is a file that cannot be opened. */
  private final class Files implements PartitionReaderFactory {
    final int[] batches;
    final CountDownLatch[] opened;

    Files(int... batches) {
      this.batches = batches;
      opened = new CountDownLatch[batches.length];
      for (int i = 0; i < batches.length; i++) opened[i] = new CountDownLatch(1);
    }

    FilePartition partition(String scheme) {
      PartitionedFile[] files = new PartitionedFile[batches.length];
      for (int i = 0; i < files.length; i++) {
        SparkPath path = SparkPath.fromUrlString(scheme + "://bucket/" + i);
        files[i] =
            new PartitionedFile(
                InternalRow.empty(), path, 0, 1, new String[0], 0, 1, scala.collection.immutable.Map$.MODULE$.empty());
      }
      return new FilePartition(0, files);
    }

    FilesAhead reader() {
      return new FilesAhead(partition("s3a"), this);
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException();
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      PartitionedFile[] files = ((FilePartition) partition).files();
      assertEquals(1, files.length);
      int file = Integer.parseInt(files[0].urlEncodedPath().replaceAll(".*/", ""));
      return new PartitionReader<>() {
        private int batch = -1;

        @Override
        public boolean next() throws IOException {
          if (batch == -1) events.add("open " + file);
          opened[file].countDown();
          if (batches[file] < 0) throw new IOException("no file " + file);
          return ++batch < batches[file];
        }

        @Override
        public ColumnarBatch get() {
          return new ColumnarBatch(new ColumnVector[0], 100 * file + batch);
        }

        @Override
        public void close() {
          events.add("close " + file);
        }
      };
    }
  }

  private List<Integer> rest(FilesAhead reader) throws IOException {
    List<Integer> found = new ArrayList<>();
    while (reader.next()) found.add(reader.get().numRows());
    return found;
  }

  @Test
  void eachBatchOfEachFileInOrder() throws IOException {
    try (FilesAhead reader = new Files(2, 0, 3, 1, 0).reader()) {
      assertEquals(List.of(0, 1, 200, 201, 202, 300), rest(reader));
      assertFalse(reader.next());
    }
    for (int file = 0; file < 5; file++) {
      assertEquals(1, Collections.frequency(events, "open " + file));
      assertTrue(events.contains("close " + file));
    }
  }

  @Test
  void theNextFileIsOpenedWhileOneIsRead() throws Exception {
    Files files = new Files(3, 1, 1);
    try (FilesAhead reader = files.reader()) {
      assertTrue(reader.next());
      assertEquals(List.of("open 0"), events);
      assertTrue(reader.next());
      assertTrue(files.opened[1].await(30, TimeUnit.SECONDS));
      assertEquals(1, reader.get().numRows());
      assertEquals(List.of(2, 100, 200), rest(reader));
    }
  }

  @Test
  void whoWantsFewRowsOpensOneFile() throws IOException {
    try (FilesAhead reader = new Files(3, 1).reader()) {
      assertTrue(reader.next());
    }
    assertEquals(List.of("open 0", "close 0"), events);
  }

  @Test
  void aFileThatWasOpenedAheadIsClosed() throws IOException {
    FilesAhead reader = new Files(3, 1).reader();
    assertTrue(reader.next());
    assertTrue(reader.next());
    reader.close();
    assertTrue(events.containsAll(List.of("open 1", "close 0", "close 1")), events.toString());
  }

  @Test
  void anErrorOfAFileIsTheReaders() throws IOException {
    try (FilesAhead reader = new Files(2, -1).reader()) {
      assertTrue(reader.next());
      assertTrue(reader.next());
      assertEquals("no file 1", assertThrows(IOException.class, reader::next).getMessage());
    }
    try (FilesAhead reader = new Files(2, -1, 5).reader()) {
      assertTrue(reader.next());
      assertTrue(reader.next());
    }
  }

  @Test
  void filesOfADiskAreLeftToSpark() {
    Files files = new Files(1, 1);
    assertFalse(FilesAhead.isUseful(files.partition("file")));
    assertTrue(FilesAhead.isUseful(files.partition("s3a")));
    assertFalse(FilesAhead.isUseful(new Files(1).partition("s3a")));
  }
}
