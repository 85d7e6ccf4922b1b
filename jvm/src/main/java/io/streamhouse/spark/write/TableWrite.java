package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.realtime.RealTimeMode;
import io.streamhouse.spark.rpc.InternalOptions;
import java.util.Map;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/** A write that refuses impossible options in the query itself; later the error would be a Python worker's. */
final class TableWrite implements RequiresBucketDistribution {
  private final WritableTable table;
  private final LogicalWriteInfo info;
  private final Map<String, String> options;
  private final Write inner;
  private final ObjectNode overwriteFilter;

  TableWrite(WritableTable table, LogicalWriteInfo info, Write inner, ObjectNode overwriteFilter) {
    this.overwriteFilter = overwriteFilter;
    this.table = table;
    this.info = info;
    this.options = info.options().asCaseSensitiveMap();
    this.inner = inner;
  }

  @Override
  public WritableTable table() {
    return table;
  }

  @Override
  public boolean isClusteredByBucket() {
    return table.canClusterByBucket(info.schema());
  }

  @Override
  public String description() {
    return inner.description();
  }

  @Override
  public BatchWrite toBatch() {
    table.checkOptions("write", options);
    if (overwriteFilter != null) {
      // New rows that were made of the table's own are right only while these are as they were.
      if (RunningStatement.leaves().stream().anyMatch(leaf -> RunningStatement.mayRead(leaf, table))) {
        overwriteFilter.put("pin", table.metadata.get("pin").asText());
      }
      Map<String, String> extraOptions = Map.of(InternalOptions.REPLACED, overwriteFilter.toString());
      return new PythonWrite(table.newPythonWriteBuilder(info, info.schema(), extraOptions).build().toBatch());
    }
    LogicalPlan mergeTarget = insertOnlyMergeTarget();
    if (mergeTarget == null) return new PythonWrite(inner.toBatch());
    boolean readsOnce =
        RunningStatement.leaves().stream().filter(leaf -> !leaf.equals(mergeTarget)).noneMatch(
            leaf -> RunningStatement.mayRead(leaf, table));
    JsonNode operation = TableRowLevelOperation.describe(table, RowLevelOperation.Command.MERGE, options);
    Write write = table.newPythonWriteBuilder(info, info.schema(),
        TableRowLevelOperation.readOptions(operation, readsOnce, null)).build();
    return new PythonWrite(write.toBatch());
  }

  /**
   * The relation that is written, if this is a MERGE that only inserts; else null. Spark makes an append of it and
   * asks for no operation. The append's query reads the very relation that it appends to. An INSERT that reads the
   * table has a relation of its own for that.
   */
  private static LogicalPlan insertOnlyMergeTarget() {
    LogicalPlan running = RunningStatement.analyzedPlan();
    if (!(running instanceof V2WriteCommand)) return null;
    V2WriteCommand command = (V2WriteCommand) running;
    LogicalPlan written = (LogicalPlan) command.table();
    return command.query().collectLeaves().exists(leaf -> leaf.equals(written)) ? written : null;
  }

  @Override
  public StreamingWrite toStreaming() {
    table.checkOptions("writeStream", options);
    RealTimeMode.rejectSink(table.name());
    // By key, tasks prepare changes by rows that their hosts keep.
    boolean isKeyed = table.metadata.get("takes_updates").asBoolean();
    return new PythonWrite(inner.toStreaming(), info, isKeyed ? null : table.id(), table::recordMetrics);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return TaskCounters.writeMetrics();
  }
}
