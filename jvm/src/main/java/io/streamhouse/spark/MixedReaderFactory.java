package io.streamhouse.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads each partition by Spark's Parquet reader or by Python. */
final class MixedReaderFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;
  private final PartitionReaderFactory hot;
  private final ParquetReaders parquet;
  private final int columns;

  MixedReaderFactory(PartitionReaderFactory hot, ParquetReaders parquet, int columns) {
    this.hot = hot;
    this.parquet = parquet;
    this.columns = columns;
  }

  private static boolean isHot(InputPartition partition) {
    return partition instanceof PythonInputPartition;
  }

  /** Whether a partition is of a bucket without rows. */
  private static boolean isEmpty(InputPartition partition) {
    return partition instanceof FilePartition && ((FilePartition) partition).files().length == 0;
  }

  /**
   * Gives one answer for all partitions of a scan, as Spark demands: columns, unless Spark's reader would give rows and
   * no file has deleted rows, which are left out of columns alone.
   */
  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    InputPartition inner = BucketPartition.unwrapped(partition);
    return parquet == null || parquet.hasDeletes || parquet.rows.supportColumnarReads(inner);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    InputPartition inner = BucketPartition.unwrapped(partition);
    if (isEmpty(inner)) return new NoRows<>();
    return isHot(inner) ? new PythonRows(batches(inner)) : parquet.rows.createReader(expected(inner));
  }

  private static InputPartition expected(InputPartition files) {
    LakeFileSystem.expect((FilePartition) files);
    return files;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    InputPartition inner = BucketPartition.unwrapped(partition);
    if (isEmpty(inner)) return new NoRows<>();
    if (inner instanceof LakeFiles) return new LiveRows((LakeFiles) inner, parquet);
    return isHot(inner) ? batches(inner) : parquet.rows.createColumnarReader(expected(inner));
  }

  private PythonBatches batches(InputPartition partition) {
    PartitionReader<InternalRow> rows = Errors.plainly(() -> hot.createReader(partition));
    return new PythonBatches(rows, columns);
  }
}
