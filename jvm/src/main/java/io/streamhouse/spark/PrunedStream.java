package io.streamhouse.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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

/** One batch of a stream with the columns that its query needs, without rows that surely no filter of it wants. */
final class PrunedStream implements SupportsRealTimeMode, MicroBatchStream, Scan {
  final WholeStream whole;
  private final StructType required;
  private final List<Predicate> predicates;
  private final ObjectNode need;

  PrunedStream(WholeStream whole, StructType required, List<Predicate> predicates) {
    this.whole = whole;
    this.required = required;
    this.predicates = predicates;
    this.need = JsonTree.object();
    ArrayNode columns = need.putArray("columns");
    for (String column : required.fieldNames()) columns.add(column);
    need.set("schema", JsonTree.parse(required.json()));
    ArrayNode filters = need.putArray("filters");
    for (Predicate predicate : predicates) filters.add(ExpressionJson.of(predicate));
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return whole.planned(start, end, need);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    return whole.planned(start, null, need);
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    return ((SupportsRealTimeMode) whole).mergeOffsets(offsets);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return whole.readers(required);
  }

  @Override
  public StructType readSchema() {
    return required;
  }

  @Override
  public String description() {
    return "streamhouse " + whole.name() + " " + Arrays.toString(required.fieldNames()) + ", filters " + predicates;
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return whole.columns();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return ScanCounts.metrics();
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return this;
  }

  @Override
  public Offset initialOffset() {
    return whole.initialOffset();
  }

  @Override
  public Offset latestOffset() {
    return whole.latestOffset();
  }

  @Override
  public Offset deserializeOffset(String json) {
    return whole.deserializeOffset(json);
  }

  @Override
  public void commit(Offset end) {
    whole.commit(end);
  }

  @Override
  public void stop() {
    whole.stop();
  }

  /**
   * Scans of equal streams read the same rows: Spark reuses their exchanges. See {@code equals} of each
   * {@link WholeStream}.
   */
  @Override
  public boolean equals(Object other) {
    if (other instanceof WholeStream) return other == whole;
    return other instanceof PrunedStream
        && ((PrunedStream) other).whole == whole
        && ((PrunedStream) other).need.equals(need);
  }

  @Override
  public int hashCode() {
    return whole.hashCode();
  }

  @Override
  public String toString() {
    return whole.toString();
  }
}
