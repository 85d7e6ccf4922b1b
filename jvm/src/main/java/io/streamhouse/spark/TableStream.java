package io.streamhouse.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
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
 * The stream of a table's rows or changes. Python's stream decides about offsets and batches; this one also plans a
 * batch of fewer columns and rows, for {@link PrunedStream}.
 */
class TableStream implements WholeStream, ReportsSourceMetrics {
  final MicroBatchStream python;

  private final StructType schema;
  private final String name;
  private final PythonCalls calls;

  /** The newest offset that Python told; null before the first. */
  StreamLag lag;

  TableStream(String name, PythonCalls calls, StructType schema, MicroBatchStream python) {
    this.name = name;
    this.calls = calls;
    this.schema = schema;
    this.python = python;
  }

  /** The stream around Python's, with limits where Python's has them: before 4.2 it has none. */
  static TableStream of(String name, PythonCalls calls, StructType schema, MicroBatchStream python) {
    if (python instanceof SupportsTriggerAvailableNow) {
      return new LimitedTableStream(name, calls, schema, (SupportsTriggerAvailableNow) python);
    }
    if (python instanceof SupportsAdmissionControl) {
      return new AdmittedTableStream(name, calls, schema, (SupportsAdmissionControl) python);
    }
    return new TableStream(name, calls, schema, python);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public ColumnarSupportMode columns() {
    return ColumnarSupportMode.SUPPORTED;
  }

  @Override
  public InputPartition[] planned(Offset start, Offset end, ObjectNode need) {
    ObjectNode asked = (ObjectNode) JsonTree.parse(start.json());
    asked.set(InternalOptions.NEED, need);
    InputPartition[] parts = python.planInputPartitions(new PythonStreamingSourceOffset(asked.toString()), end);
    for (int i = 0; i < parts.length; i++) parts[i] = readable((PythonStreamingInputPartition) parts[i]);
    return parts;
  }

  /** The same part in the form that Python's readers of batches take. */
  private static InputPartition readable(PythonStreamingInputPartition part) {
    return new PythonInputPartition(part.index(), part.pickedPartition());
  }

  /** Each part says itself which columns it has. */
  @Override
  public PartitionReaderFactory readers(StructType required) {
    return new MixedReaderFactory(calls.work("read_stream", "{}").reader, null, required.length());
  }

  @Override
  public Offset initialOffset() {
    return python.initialOffset();
  }

  @Override
  public Offset latestOffset() {
    Offset found = python.latestOffset();
    lag = new StreamLag(found.json());
    return found;
  }

  /** How far the stream is behind, by what Python told when the batch began: Python and the store are asked nothing. */
  @Override
  public Map<String, String> metrics(Optional<Offset> read) {
    return lag == null || read.isEmpty() ? Map.of() : lag.metrics(read.get());
  }

  @Override
  public Offset deserializeOffset(String json) {
    return python.deserializeOffset(json);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return python.planInputPartitions(start, end);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return python.createReaderFactory();
  }

  @Override
  public void commit(Offset end) {
    python.commit(end);
  }

  @Override
  public void stop() {
    python.stop();
  }

  /** Spark finds the rows of a batch's scan by the source that it knows, and so takes the one for the other. */
  @Override
  public boolean equals(Object other) {
    return this == other || other instanceof PrunedStream && ((PrunedStream) other).whole == this;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }

  @Override
  public String toString() {
    return python.toString();
  }
}
