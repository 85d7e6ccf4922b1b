package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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
class TableWrite implements Write {
  final WritableTable table;
  private final LogicalWriteInfo info;
  private final Map<String, String> options;
  private final Write inner;
  private final ObjectNode replaced;

  TableWrite(WritableTable table, LogicalWriteInfo info, Write inner, ObjectNode replaced) {
    this.replaced = replaced;
    this.table = table;
    this.info = info;
    this.options = info.options().asCaseSensitiveMap();
    this.inner = inner;
  }

  @Override
  public String description() {
    return inner.description();
  }

  @Override
  public BatchWrite toBatch() {
    table.checkOptions("write", options);
    if (replaced != null) {
      // New rows that were made of the table's own are right only while these are as they were.
      if (Statements.leaves().stream().anyMatch(leaf -> Statements.mayRead(leaf, table))) {
        replaced.put("pin", table.loaded.get("pin").asText());
      }
      Map<String, String> more = Map.of(InternalOptions.REPLACED, replaced.toString());
      return new PlainWrite(table.writer(info, info.schema(), more).build().toBatch());
    }
    LogicalPlan merged = merged();
    if (merged == null) return new PlainWrite(inner.toBatch());
    boolean readsOnce =
        Statements.leaves().stream().filter(leaf -> !leaf.equals(merged)).noneMatch(
            leaf -> Statements.mayRead(leaf, table));
    JsonNode described = KeyedRowLevelOperation.described(table, RowLevelOperation.Command.MERGE, options);
    Write write = table.writer(info, info.schema(), KeyedRowLevelOperation.read(described, readsOnce, null)).build();
    return new PlainWrite(write.toBatch());
  }

  /**
   * The relation that is written, if this is a MERGE that only inserts; else null. Spark makes an append of it and
   * asks for no operation. The append's query reads the very relation that it appends to. An INSERT that reads the
   * table has a relation of its own for that.
   */
  private static LogicalPlan merged() {
    LogicalPlan running = Statements.running();
    if (!(running instanceof V2WriteCommand)) return null;
    V2WriteCommand command = (V2WriteCommand) running;
    LogicalPlan written = (LogicalPlan) command.table();
    return command.query().collectLeaves().exists(leaf -> leaf.equals(written)) ? written : null;
  }

  @Override
  public StreamingWrite toStreaming() {
    table.checkOptions("writeStream", options);
    RealTimeMode.refuseSink(table.name());
    // By key, tasks prepare changes by rows that their hosts keep.
    boolean isKeyed = table.loaded.get("takes_updates").asBoolean();
    return new PlainWrite(inner.toStreaming(), info, isKeyed ? null : table.id(), table::wrote);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return ScanCounts.ofWrites();
  }
}
