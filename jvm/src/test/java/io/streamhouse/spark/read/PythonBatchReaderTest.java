package io.streamhouse.spark.read;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.metrics.TaskMetricValue;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.junit.jupiter.api.Test;

/** Batches from Python with their columns and rows, and readers of partitions without Python. */
class PythonBatchReaderTest {
  private boolean closed;

  /** Returns an Arrow stream of one batch. A null id is null in both columns. */
  private static byte[] stream(Long... ids) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (BufferAllocator allocator = ArrowUtils.rootAllocator().newChildAllocator("test", 0, Long.MAX_VALUE);
        BigIntVector id = new BigIntVector("id", allocator);
        VarCharVector name = new VarCharVector("name", allocator)) {
      for (int i = 0; i < ids.length; i++) {
        if (ids[i] == null) id.setNull(i);
        else id.setSafe(i, ids[i]);
        if (ids[i] == null) name.setNull(i);
        else name.setSafe(i, ("name " + ids[i]).getBytes(StandardCharsets.UTF_8));
      }
      id.setValueCount(ids.length);
      name.setValueCount(ids.length);
      VectorSchemaRoot root = VectorSchemaRoot.of(id, name);
      root.setRowCount(ids.length);
      try (ArrowStreamWriter writer = new ArrowStreamWriter(root, null, bytes)) {
        writer.start();
        writer.writeBatch();
        writer.end();
      }
    }
    return bytes.toByteArray();
  }

  /** Returns Python's counters, which follow the rows. */
  private static byte[] counts(String json) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    Schema schema = new Schema(List.of(), Map.of(TaskCounters.COUNTS_KEY, json));
    try (VectorSchemaRoot root = new VectorSchemaRoot(schema, List.of(), 0);
        ArrowStreamWriter writer = new ArrowStreamWriter(root, null, bytes)) {
      writer.start();
      writer.writeBatch();
      writer.end();
    }
    return bytes.toByteArray();
  }

  private static Map<String, Long> values(PartitionReader<?> reader) {
    Map<String, Long> values = new TreeMap<>();
    for (CustomTaskMetric metric : reader.currentMetricsValues()) values.put(metric.name(), metric.value());
    return values;
  }

  @Test
  void countersAfterTheRowsAreMetrics() throws IOException {
    byte[] ids = stream(1L, 2L);
    byte[] counted = counts("{\"segmentsRead\": 3, \"storeRequests\": 4}");
    try (PythonBatchReader batches = new PythonBatchReader(rows(ids, counted), 2)) {
      batches.initMetricsValues(new CustomTaskMetric[] {new TaskMetricValue("segmentsRead", 10)});
      assertTrue(batches.next());
      assertEquals(2, batches.get().numRows());
      assertFalse(batches.next());
      Map<String, Long> expected = new TreeMap<>(Map.of("segmentsRead", 13L, "storeRequests", 4L));
      expected.put("bytesFromPython", (long) ids.length + counted.length);
      assertEquals(expected, values(batches));
    }
  }

  private PartitionReader<InternalRow> rows(byte[]... streams) {
    Iterator<byte[]> left = List.of(streams).iterator();
    return new PartitionReader<>() {
      @Override
      public boolean next() {
        return left.hasNext();
      }

      @Override
      public InternalRow get() {
        return new GenericInternalRow(new Object[] {left.next()});
      }

      @Override
      public void close() {
        closed = true;
      }
    };
  }

  @Test
  void columnsAreThoseOfTheStream() throws IOException {
    long before = ArrowUtils.rootAllocator().getAllocatedMemory();
    try (PythonBatchReader batches = new PythonBatchReader(rows(stream(1L, null), stream(3L)), 2)) {
      assertTrue(batches.next());
      ColumnarBatch first = batches.get();
      assertEquals(2, first.numRows());
      assertEquals(DataTypes.LongType, first.column(0).dataType());
      assertEquals(1L, first.column(0).getLong(0));
      assertEquals("name 1", first.column(1).getUTF8String(0).toString());
      assertTrue(first.column(0).isNullAt(1));
      assertTrue(first.column(1).hasNull());
      assertEquals(1, first.column(1).numNulls());
      assertTrue(batches.next());
      assertEquals(3L, batches.get().column(0).getLong(0));
      assertFalse(batches.next());
    }
    assertTrue(closed);
    assertEquals(before, ArrowUtils.rootAllocator().getAllocatedMemory());
  }

  @Test
  void emptyBatchesAreSkipped() throws IOException {
    List<Long> ids = new ArrayList<>();
    byte[][] streams = {stream(), stream(1L, 2L), stream(), stream(3L)};
    try (PythonRowReader rows = new PythonRowReader(new PythonBatchReader(rows(streams), 2))) {
      while (rows.next()) ids.add(rows.get().getLong(0));
    }
    assertEquals(List.of(1L, 2L, 3L), ids);
    assertTrue(closed);
  }

  @Test
  void aTruncatedStreamIsAnError() throws IOException {
    byte[] whole = stream(1L, 2L);
    byte[] cut = Arrays.copyOf(whole, whole.length / 2);
    long before = ArrowUtils.rootAllocator().getAllocatedMemory();
    try (PythonBatchReader batches = new PythonBatchReader(rows(cut), 2)) {
      assertThrows(IOException.class, batches::next);
    }
    assertEquals(before, ArrowUtils.rootAllocator().getAllocatedMemory());
  }

  @Test
  void errorsOfPythonAreShownByTheirMessage() throws IOException {
    PartitionReader<InternalRow> failing =
        new PartitionReader<>() {
          @Override
          public boolean next() {
            throw new RuntimeException("Traceback\nstreamhouse_spark.errors.DataLossError: DATA_LOSS: gone\n");
          }

          @Override
          public InternalRow get() {
            throw new IllegalStateException();
          }

          @Override
          public void close() {}
        };
    try (PythonBatchReader batches = new PythonBatchReader(failing, 1)) {
      assertEquals("DATA_LOSS", assertThrows(AnalysisException.class, batches::next).getCondition());
    }
  }

  private static final class Unread implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new AssertionError("nobody reads a partition without files");
    }
  }

  /** Spark's own reader fails on a partition without files. */
  @Test
  void anEmptyBucketIsNotRead() throws IOException {
    BucketPartition empty = new BucketPartition(new FilePartition(0, new PartitionedFile[0]), 3);
    assertEquals(3, empty.partitionKey().getInt(0));
    ParquetReaderFactories readers = new ParquetReaderFactories(new Unread(), null, false, null, false);
    HybridReaderFactory factory = new HybridReaderFactory(new Unread(), readers, 1);
    try (PartitionReader<InternalRow> rows = factory.createReader(empty);
        PartitionReader<ColumnarBatch> batches = factory.createColumnarReader(empty)) {
      assertFalse(rows.next());
      assertFalse(batches.next());
    }
    assertTrue(new HybridReaderFactory(new Unread(), null, 1).supportColumnarReads(empty));
    assertFalse(factory.supportColumnarReads(empty));
    ParquetReaderFactories withDeletedRows =
        new ParquetReaderFactories(new Unread(), new Unread(), false, new Unread(), true);
    assertTrue(new HybridReaderFactory(new Unread(), withDeletedRows, 1).supportColumnarReads(empty));
  }
}
