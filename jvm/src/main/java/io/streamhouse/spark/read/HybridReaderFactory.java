package io.streamhouse.spark.read;

import io.streamhouse.spark.storage.LakeFileSystem;
import io.streamhouse.spark.util.SparkErrors;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Creates the reader of each partition: Spark's Parquet reader for lake files, or Python's reader for all other rows.
 */
public final class HybridReaderFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;
  private final PartitionReaderFactory pythonFactory;
  private final ParquetReaderFactories parquetFactories;
  private final int columns;

  public HybridReaderFactory(
      PartitionReaderFactory pythonFactory, ParquetReaderFactories parquetFactories, int columns) {
    this.pythonFactory = pythonFactory;
    this.parquetFactories = parquetFactories;
    this.columns = columns;
  }

  private static boolean isPythonPartition(InputPartition partition) {
    return partition instanceof PythonInputPartition;
  }

  /** Returns whether the partition is a bucket without rows. */
  private static boolean isEmpty(InputPartition partition) {
    return partition instanceof FilePartition && ((FilePartition) partition).files().length == 0;
  }

  /**
   * Returns the same answer for all partitions of a scan, as Spark requires. Reads are columnar, unless Spark's Parquet
   * reader would return rows and no file has deleted rows. Deleted rows can only be removed from columnar batches.
   */
  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    InputPartition inner = BucketPartition.unwrap(partition);
    return parquetFactories == null || parquetFactories.hasDeletes
        || parquetFactories.dataFactory.supportColumnarReads(inner);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    InputPartition inner = BucketPartition.unwrap(partition);
    if (isEmpty(inner)) return new EmptyReader<>();
    return isPythonPartition(inner)
        ? new PythonRowReader(pythonReader(inner))
        : parquetFactories.dataFactory.createReader(withRegisteredSizes(inner));
  }

  private static InputPartition withRegisteredSizes(InputPartition files) {
    LakeFileSystem.registerSizes((FilePartition) files);
    return files;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    InputPartition inner = BucketPartition.unwrap(partition);
    if (isEmpty(inner)) return new EmptyReader<>();
    if (inner instanceof LakeFilePartition) return new DeleteFilterReader((LakeFilePartition) inner, parquetFactories);
    return isPythonPartition(inner)
        ? pythonReader(inner)
        : parquetFactories.dataFactory.createColumnarReader(withRegisteredSizes(inner));
  }

  private PythonBatchReader pythonReader(InputPartition partition) {
    PartitionReader<InternalRow> rows = SparkErrors.unwrapPythonErrors(() -> pythonFactory.createReader(partition));
    return new PythonBatchReader(rows, columns);
  }
}
