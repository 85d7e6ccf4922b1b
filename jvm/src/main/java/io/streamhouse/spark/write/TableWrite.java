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

/** A write of rows. It rejects invalid options before tasks run, when the error would come from a Python worker. */
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
      // rows that were derived from the table are right only while it is unchanged
      if (RunningStatement.leaves().stream().anyMatch(leaf -> RunningStatement.mayRead(leaf, table))) {
        overwriteFilter.put("snapshot", table.metadata.get("snapshot").asText());
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
   * Returns the target of an insert-only MERGE, else null. Spark rewrites such a MERGE to an append without a row-level
   * operation. The query of that append contains the very relation that is written. An INSERT that reads the table has
   * a second relation.
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
    // tasks of tables with a primary key prepare changes with state on their hosts, so they send no inline rows
    boolean isKeyed = table.metadata.get("takes_updates").asBoolean();
    return new PythonWrite(inner.toStreaming(), info, isKeyed ? null : table.id(), table::recordMetrics);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return TaskCounters.writeMetrics();
  }
}
