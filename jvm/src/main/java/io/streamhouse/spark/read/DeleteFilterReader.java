package io.streamhouse.spark.read;

import io.streamhouse.spark.storage.LakeFileSystem;
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
 * Reads lake files with Spark's Parquet reader and removes deleted rows by their position in the file.
 *
 *
 * <p>Positions are counted if all rows of the file are returned from its start. Otherwise they are read as a column,
 * since a filter or a split may skip rows.
 */
final class DeleteFilterReader implements PartitionReader<ColumnarBatch> {
  private final LakeFilePartition partition;
  private final ParquetReaderFactories readers;
  private int nextFile;
  private BitSet deleted;

  /** Position of the next row of the file, or negative if the reader returns positions as a column. */
  private int nextPosition;

  private PartitionReader<ColumnarBatch> fileReader;
  private ColumnarBatch batch;

  DeleteFilterReader(LakeFilePartition partition, ParquetReaderFactories readers) {
    this.partition = partition;
    this.readers = readers;
    LakeFileSystem.registerSizes(partition.files);
    for (FilePartition deletes : partition.deleteFiles) LakeFileSystem.registerSizes(deletes);
  }

  @Override
  public boolean next() throws IOException {
    while (true) {
      if (fileReader == null && !openNextFile()) return false;
      if (!fileReader.next()) {
        fileReader.close();
        fileReader = null;
        continue;
      }
      batch = deleted == null ? fileReader.get() : applyDeletes(fileReader.get());
      if (batch.numRows() > 0) return true;
    }
  }

  /** Opens the next file after reading its deleted positions. */
  private boolean openNextFile() throws IOException {
    if (nextFile == partition.files.files().length) return false;
    PartitionedFile file = partition.files.files()[nextFile];
    FilePartition singleFile = new FilePartition(partition.files.index(), new PartitionedFile[] {file});
    deleted = partition.hasNoDeletes(nextFile) ? null : readDeletedPositions(nextFile);
    long rows = partition.rowCount(nextFile);
    nextFile++;
    boolean isCounted =
        readers.canCountPositions(file.start()) || (deleted != null && rows > 0 && readsAllRows(file, rows));
    nextPosition = isCounted ? 0 : -1;
    PartitionReaderFactory factory = deleted == null || isCounted ? readers.dataFactory : readers.rowIndexFactory;
    fileReader = factory.createColumnarReader(singleFile);
    return true;
  }

  /** Returns whether the reader returns all rows of a file despite the filters. Opens the file but reads no rows. */
  private boolean readsAllRows(PartitionedFile file, long rows) {
    FilePartitionReaderFactory factory = (FilePartitionReaderFactory) readers.dataFactory;
    try (PartitionReader<ColumnarBatch> reader = factory.buildColumnarReader(file)) {
      return RowCountHint.of(reader) == rows;
    } catch (IOException | RuntimeException error) {
      return false; // the reader of the rows reports the error
    }
  }

  private BitSet readDeletedPositions(int fileIndex) throws IOException {
    BitSet positions = partition.inlineDeletedPositions(fileIndex);
    FilePartition deletes = partition.deleteFiles[fileIndex];
    if (deletes.files().length == 0) return positions;
    try (PartitionReader<ColumnarBatch> reader = readers.deleteFactory.createColumnarReader(deletes)) {
      while (reader.next()) {
        ColumnVector column = reader.get().column(0);
        for (int row = 0; row < reader.get().numRows(); row++) positions.set(Math.toIntExact(column.getLong(row)));
      }
    }
    return positions;
  }

  /** Removes the deleted rows and the column of positions, which is the last one. */
  private ColumnarBatch applyDeletes(ColumnarBatch input) {
    int rows = input.numRows();
    if (rows == 0) return input;
    ColumnVector positions = nextPosition < 0 ? input.column(input.numCols() - 1) : null;
    int first = positions == null ? nextPosition : Math.toIntExact(positions.getLong(0));
    int last = positions == null ? first + rows - 1 : Math.toIntExact(positions.getLong(rows - 1));
    if (positions == null) nextPosition = Math.addExact(nextPosition, rows);
    int nextDeleted = deleted.nextSetBit(first);
    boolean isUnfiltered = nextDeleted < 0 || nextDeleted > last;
    SelectionVector selection =
        isUnfiltered ? null : last - first == rows - 1 ? selectRange(first, last) : selectByPosition(positions, rows);
    ColumnVector[] columns = new ColumnVector[input.numCols() - (positions == null ? 0 : 1)];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = isUnfiltered ? input.column(i) : selection.select(input.column(i));
    }
    return new ColumnarBatch(columns, isUnfiltered ? rows : selection.count);
  }

  /** Selects the live rows of a batch whose positions are consecutive. */
  private SelectionVector selectRange(int first, int last) {
    SelectionVector selection = new SelectionVector();
    int from = first;
    for (int nextDeleted = deleted.nextSetBit(first); nextDeleted >= 0
        && nextDeleted <= last; nextDeleted = deleted.nextSetBit(nextDeleted + 1)) {
      selection.addRange(from - first, nextDeleted - first);
      from = nextDeleted + 1;
    }
    selection.addRange(from - first, last + 1 - first);
    return selection;
  }

  /** Selects the live rows of a batch in which pages were skipped. */
  private SelectionVector selectByPosition(ColumnVector positions, int rows) {
    SelectionVector selection = new SelectionVector();
    int from = 0;
    for (int row = 0; row < rows; row++) {
      if (!deleted.get(Math.toIntExact(positions.getLong(row)))) continue;
      selection.addRange(from, row);
      from = row + 1;
    }
    selection.addRange(from, rows);
    return selection;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() throws IOException {
    if (fileReader != null) fileReader.close();
  }
}
