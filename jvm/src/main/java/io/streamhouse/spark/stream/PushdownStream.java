package io.streamhouse.spark.stream;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.rpc.ExpressionJson;
import io.streamhouse.spark.util.Json;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.types.StructType;

/** One batch of a stream with only the columns that its query needs, and without rows that no filter can match. */
public final class PushdownStream implements SupportsRealTimeMode, MicroBatchStream, Scan {
  public final UnprunedStream unpruned;
  private final StructType required;
  private final List<Predicate> predicates;
  private final ObjectNode requirement;

  public PushdownStream(UnprunedStream unpruned, StructType required, List<Predicate> predicates) {
    this.unpruned = unpruned;
    this.required = required;
    this.predicates = predicates;
    this.requirement = Json.object();
    ArrayNode columns = requirement.putArray("columns");
    for (String column : required.fieldNames()) columns.add(column);
    requirement.set("schema", Json.parse(required.json()));
    ArrayNode filters = requirement.putArray("filters");
    for (Predicate predicate : predicates) filters.add(ExpressionJson.of(predicate));
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return unpruned.planPartitions(start, end, requirement);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    return unpruned.planPartitions(start, null, requirement);
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    return ((SupportsRealTimeMode) unpruned).mergeOffsets(offsets);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return unpruned.createReaderFactory(required);
  }

  @Override
  public StructType readSchema() {
    return required;
  }

  @Override
  public String description() {
    return "streamhouse " + unpruned.tableName() + " " + Arrays.toString(required.fieldNames()) + ", filters "
        + predicates;
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return unpruned.columnarSupport();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return TaskCounters.scanMetrics();
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return this;
  }

  @Override
  public Offset initialOffset() {
    return unpruned.initialOffset();
  }

  @Override
  public Offset latestOffset() {
    return unpruned.latestOffset();
  }

  @Override
  public Offset deserializeOffset(String json) {
    return unpruned.deserializeOffset(json);
  }

  @Override
  public void commit(Offset end) {
    unpruned.commit(end);
  }

  @Override
  public void stop() {
    unpruned.stop();
  }

  /**
   * Equal streams read the same rows, so that Spark reuses their exchanges. See {@code equals} of each {@link
   * UnprunedStream}.
   */
  @Override
  public boolean equals(Object other) {
    if (other instanceof UnprunedStream) return other == unpruned;
    return other instanceof PushdownStream
        && ((PushdownStream) other).unpruned == unpruned
        && ((PushdownStream) other).requirement.equals(requirement);
  }

  @Override
  public int hashCode() {
    return unpruned.hashCode();
  }

  @Override
  public String toString() {
    return unpruned.toString();
  }
}
