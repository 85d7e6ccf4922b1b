package io.streamhouse.spark;

import java.io.IOException;
import java.util.BitSet;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.v2.FilePartitionReaderFactory;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads files by Spark's Parquet reader and leaves out rows that were deleted, by their positions in the file. These
 * are counted where a file is read from its start and no filter leaves out rows, or leaves none out, and read as a
 * column elsewhere.
 */
final class LiveRows implements PartitionReader<ColumnarBatch> {
  private final LakeFiles partition;
  private final ParquetReaders readers;
  private int next;
  private BitSet deleted;

  /** Rows of the file so far; negative where the reader numbers them. */
  private int counted;

  private PartitionReader<ColumnarBatch> inner;
  private ColumnarBatch batch;

  LiveRows(LakeFiles partition, ParquetReaders readers) {
    this.partition = partition;
    this.readers = readers;
    LakeFileSystem.expect(partition.files);
    for (FilePartition deletes : partition.deletes) LakeFileSystem.expect(deletes);
  }

  @Override
  public boolean next() throws IOException {
    while (true) {
      if (inner == null && !open()) return false;
      if (!inner.next()) {
        inner.close();
        inner = null;
        continue;
      }
      batch = deleted == null ? inner.get() : live(inner.get());
      if (batch.numRows() > 0) return true;
    }
  }

  /** Opens the next file. Its deleted positions are read first. */
  private boolean open() throws IOException {
    if (next == partition.files.files().length) return false;
    PartitionedFile file = partition.files.files()[next];
    FilePartition alone = new FilePartition(partition.files.index(), new PartitionedFile[] {file});
    deleted = partition.isWhole(next) ? null : positions(next);
    long rows = partition.rows(next);
    next++;
    boolean isCounted = readers.isCounted(file.start()) || (deleted != null && rows > 0 && givesAll(file, rows));
    counted = isCounted ? 0 : -1;
    PartitionReaderFactory factory = deleted == null || isCounted ? readers.rows : readers.numberedRows;
    inner = factory.createColumnarReader(alone);
    return true;
  }

  /** Tells whether all rows of a file come although a filter may leave out some. Opens it, and reads none of them. */
  private boolean givesAll(PartitionedFile file, long rows) {
    FilePartitionReaderFactory factory = (FilePartitionReaderFactory) readers.rows;
    try (PartitionReader<ColumnarBatch> reader = factory.buildColumnarReader(file)) {
      return ExpectedRows.of(reader) == rows;
    } catch (IOException | RuntimeException unread) {
      return false; // the reader of its rows says why
    }
  }

  private BitSet positions(int place) throws IOException {
    BitSet found = partition.gone(place);
    FilePartition deletes = partition.deletes[place];
    if (deletes.files().length == 0) return found;
    try (PartitionReader<ColumnarBatch> reader = readers.positions.createColumnarReader(deletes)) {
      while (reader.next()) {
        ColumnVector column = reader.get().column(0);
        for (int row = 0; row < reader.get().numRows(); row++) found.set(Math.toIntExact(column.getLong(row)));
      }
    }
    return found;
  }

  /** Takes off the deleted rows, and the column of positions, which is the last one. */
  private ColumnarBatch live(ColumnarBatch whole) {
    int rows = whole.numRows();
    if (rows == 0) return whole;
    ColumnVector numbers = counted < 0 ? whole.column(whole.numCols() - 1) : null;
    int first = numbers == null ? counted : Math.toIntExact(numbers.getLong(0));
    int last = numbers == null ? first + rows - 1 : Math.toIntExact(numbers.getLong(rows - 1));
    if (numbers == null) counted = Math.addExact(counted, rows);
    int found = deleted.nextSetBit(first);
    boolean isWhole = found < 0 || found > last;
    KeptRows kept = isWhole ? null : last - first == rows - 1 ? between(first, last) : each(numbers, rows);
    ColumnVector[] columns = new ColumnVector[whole.numCols() - (numbers == null ? 0 : 1)];
    for (int i = 0; i < columns.length; i++) columns[i] = isWhole ? whole.column(i) : kept.of(whole.column(i));
    return new ColumnarBatch(columns, isWhole ? rows : kept.count);
  }

  /** Returns the places of rows that count, of all rows from one position to another. */
  private KeptRows between(int first, int last) {
    KeptRows kept = new KeptRows();
    int from = first;
    for (int next = deleted.nextSetBit(first); next >= 0 && next <= last; next = deleted.nextSetBit(next + 1)) {
      kept.add(from - first, next - first);
      from = next + 1;
    }
    kept.add(from - first, last + 1 - first);
    return kept;
  }

  /** Does the same for rows between which pages were skipped. */
  private KeptRows each(ColumnVector numbers, int rows) {
    KeptRows kept = new KeptRows();
    int from = 0;
    for (int row = 0; row < rows; row++) {
      if (!deleted.get(Math.toIntExact(numbers.getLong(row)))) continue;
      kept.add(from, row);
      from = row + 1;
    }
    kept.add(from, rows);
    return kept;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() throws IOException {
    if (inner != null) inner.close();
  }
}
