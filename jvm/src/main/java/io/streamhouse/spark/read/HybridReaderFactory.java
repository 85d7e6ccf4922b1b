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

/** Reads each partition by Spark's Parquet reader or by Python. */
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
