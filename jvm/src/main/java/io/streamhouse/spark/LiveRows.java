package io.streamhouse.spark;

import java.io.IOException;
import java.util.BitSet;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads files by Spark's Parquet reader and leaves out rows that were deleted, by their positions in the file. */
final class LiveRows implements PartitionReader<ColumnarBatch> {
  private final LakeFiles partition;
  private final ParquetReaders readers;
  private int next;
  private BitSet deleted;
  private PartitionReader<ColumnarBatch> inner;
  private ColumnarBatch batch;

  LiveRows(LakeFiles partition, ParquetReaders readers) {
    this.partition = partition;
    this.readers = readers;
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
    FilePartition deletes = partition.deletes[next];
    PartitionedFile file = partition.files.files()[next++];
    FilePartition alone = new FilePartition(partition.files.index(), new PartitionedFile[] {file});
    deleted = deletes.files().length == 0 ? null : positions(deletes);
    PartitionReaderFactory factory = deleted == null ? readers.rows : readers.numberedRows;
    inner = factory.createColumnarReader(alone);
    return true;
  }

  private BitSet positions(FilePartition deletes) throws IOException {
    BitSet found = new BitSet();
    try (PartitionReader<ColumnarBatch> reader = readers.positions.createColumnarReader(deletes)) {
      while (reader.next()) {
        ColumnVector column = reader.get().column(0);
        for (int row = 0; row < reader.get().numRows(); row++) found.set(Math.toIntExact(column.getLong(row)));
      }
    }
    return found;
  }

  /** Takes off the column of positions, which is the last one, and the deleted rows. */
  private ColumnarBatch live(ColumnarBatch numbered) {
    int rows = numbered.numRows();
    if (rows == 0) return numbered;
    ColumnVector numbers = numbered.column(numbered.numCols() - 1);
    int first = Math.toIntExact(numbers.getLong(0));
    int last = Math.toIntExact(numbers.getLong(rows - 1));
    int found = deleted.nextSetBit(first);
    int[] places = found < 0 || found > last ? null : new int[rows];
    int count = places == null ? rows : last - first == rows - 1 ? between(first, last, places) : each(numbers, places);
    ColumnVector[] columns = new ColumnVector[numbered.numCols() - 1];
    for (int i = 0; i < columns.length; i++) {
      ColumnVector whole = numbered.column(i);
      columns[i] = count == rows ? whole : new ChosenRows(whole, places, count);
    }
    return new ColumnarBatch(columns, count);
  }

  /** Fills in the places of rows that count, of all rows from one position to another; returns how many these are. */
  private int between(int first, int last, int[] places) {
    int count = 0;
    int place = 0;
    for (int next = deleted.nextSetBit(first); next >= 0 && next <= last; next = deleted.nextSetBit(next + 1)) {
      while (place < next - first) places[count++] = place++;
      place++;
    }
    while (place < places.length) places[count++] = place++;
    return count;
  }

  /** Does the same for rows between which pages were skipped. */
  private int each(ColumnVector numbers, int[] places) {
    int count = 0;
    for (int row = 0; row < places.length; row++) {
      if (!deleted.get(Math.toIntExact(numbers.getLong(row)))) places[count++] = row;
    }
    return count;
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
