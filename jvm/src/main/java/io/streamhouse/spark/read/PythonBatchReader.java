package io.streamhouse.spark.read;

import io.streamhouse.spark.metrics.BytesFromPython;
import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.util.SparkErrors;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads Arrow batches from Python. Each incoming row is an Arrow IPC stream with one batch. */
final class PythonBatchReader implements PartitionReader<ColumnarBatch> {
  private final PartitionReader<InternalRow> rows;
  private final int columns;
  private final BufferAllocator allocator =
      ArrowUtils.rootAllocator().newChildAllocator("streamhouse", 0, Long.MAX_VALUE);
  private final TaskCounters counters = new TaskCounters();
  private ArrowStreamReader reader;
  private ColumnarBatch batch;

  PythonBatchReader(PartitionReader<InternalRow> rows, int columns) {
    this.rows = rows;
    this.columns = columns;
  }

  @Override
  public boolean next() throws IOException {
    VectorSchemaRoot root;
    do {
      closeReader();
      if (!SparkErrors.<Boolean>unwrapPythonErrors(rows::next)) return false;
      byte[] stream = rows.get().getBinary(0);
      reader = new ArrowStreamReader(new ByteArrayInputStream(stream), allocator);
      if (!reader.loadNextBatch()) throw new IOException("Python sent an Arrow stream without a batch");
      root = reader.getVectorSchemaRoot();
      counters.add(BytesFromPython.NAME, stream.length);
    } while (counters.addFrom(root.getSchema()));
    ColumnVector[] vectors = new ColumnVector[columns];
    for (int i = 0; i < columns; i++) vectors[i] = new ArrowColumn(root.getVector(i));
    batch = new ColumnarBatch(vectors, root.getRowCount());
    return true;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return counters.toCustomMetrics();
  }

  /** Continues with the counters of the partition that the task read before. */
  @Override
  public void initMetricsValues(CustomTaskMetric[] before) {
    for (CustomTaskMetric count : before) counters.add(count.name(), count.value());
  }

  private void closeReader() throws IOException {
    if (reader != null) reader.close();
    reader = null;
  }

  @Override
  public void close() throws IOException {
    try {
      closeReader();
    } finally {
      rows.close();
      allocator.close();
    }
  }
}
