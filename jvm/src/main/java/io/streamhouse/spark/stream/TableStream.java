package io.streamhouse.spark.stream;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.read.HybridReaderFactory;
import io.streamhouse.spark.rpc.InternalOptions;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.util.Json;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan.ColumnarSupportMode;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingSourceOffset;
import org.apache.spark.sql.types.StructType;

/**
 * The stream of a table's rows or changes. It delegates offsets and batches to the stream of Python's data source, and
 * plans batches with fewer columns and rows for {@link PushdownStream}.
 */
public class TableStream implements UnprunedStream, ReportsSourceMetrics {
  final MicroBatchStream pythonStream;

  private final StructType schema;
  private final String name;
  private final PythonRpc python;

  /** The latest offset that Python reported, or null before the first. */
  StreamLag lag;

  TableStream(String name, PythonRpc python, StructType schema, MicroBatchStream pythonStream) {
    this.name = name;
    this.python = python;
    this.schema = schema;
    this.pythonStream = pythonStream;
  }

  /** Wraps Python's stream, with read limits if it supports them, which it does from Spark 4.2 on. */
  public static TableStream of(String name, PythonRpc python, StructType schema, MicroBatchStream pythonStream) {
    if (pythonStream instanceof SupportsTriggerAvailableNow) {
      return new AvailableNowTableStream(name, python, schema, (SupportsTriggerAvailableNow) pythonStream);
    }
    if (pythonStream instanceof SupportsAdmissionControl) {
      return new AdmissionControlledTableStream(name, python, schema, (SupportsAdmissionControl) pythonStream);
    }
    return new TableStream(name, python, schema, pythonStream);
  }

  @Override
  public String tableName() {
    return name;
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public ColumnarSupportMode columnarSupport() {
    return ColumnarSupportMode.SUPPORTED;
  }

  @Override
  public InputPartition[] planPartitions(Offset start, Offset end, ObjectNode requirement) {
    ObjectNode request = (ObjectNode) Json.parse(start.json());
    request.set(InternalOptions.NEED, requirement);
    InputPartition[] parts = pythonStream.planInputPartitions(new PythonStreamingSourceOffset(request.toString()), end);
    for (int i = 0; i < parts.length; i++) parts[i] = toBatchPartition((PythonStreamingInputPartition) parts[i]);
    return parts;
  }

  /** Converts a partition to the form that Python's batch readers take. */
  private static InputPartition toBatchPartition(PythonStreamingInputPartition part) {
    return new PythonInputPartition(part.index(), part.pickedPartition());
  }

  /** Returns a factory for any batch, because each partition describes its own columns. */
  @Override
  public PartitionReaderFactory createReaderFactory(StructType required) {
    return new HybridReaderFactory(python.partitions("read_stream", "{}").readerFactory, null, required.length());
  }

  @Override
  public Offset initialOffset() {
    return pythonStream.initialOffset();
  }

  @Override
  public Offset latestOffset() {
    Offset latest = pythonStream.latestOffset();
    lag = new StreamLag(latest.json());
    return latest;
  }

  /** Returns the lag, computed from what Python reported at the start of the batch. No call or request is made. */
  @Override
  public Map<String, String> metrics(Optional<Offset> read) {
    return lag == null || read.isEmpty() ? Map.of() : lag.metrics(read.get());
  }

  @Override
  public Offset deserializeOffset(String json) {
    return pythonStream.deserializeOffset(json);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return pythonStream.planInputPartitions(start, end);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return pythonStream.createReaderFactory();
  }

  @Override
  public void commit(Offset end) {
    pythonStream.commit(end);
  }

  @Override
  public void stop() {
    pythonStream.stop();
  }

  /** Equals the pushdown stream of a batch, because Spark finds the rows of a batch's scan by its source. */
  @Override
  public boolean equals(Object other) {
    return this == other || other instanceof PushdownStream && ((PushdownStream) other).unpruned == this;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }

  @Override
  public String toString() {
    return pythonStream.toString();
  }
}
