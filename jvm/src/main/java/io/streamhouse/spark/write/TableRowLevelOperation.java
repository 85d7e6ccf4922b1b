package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.rpc.ExpressionJson;
import io.streamhouse.spark.rpc.InternalOptions;
import io.streamhouse.spark.scan.ReadableTable;
import io.streamhouse.spark.scan.TableScanBuilder;
import io.streamhouse.spark.util.Json;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The row-level operation of an UPDATE, DELETE or MERGE. Python decides whether the table supports it. */
final class TableRowLevelOperation implements SupportsDelta {
  private final WritableTable table;
  private final Command command;
  private final JsonNode metadata;
  private final List<TableScanBuilder> scans = new ArrayList<>();

  TableRowLevelOperation(WritableTable table, RowLevelOperationInfo info) {
    this.table = table;
    this.command = info.command();
    this.metadata = describe(table, command, info.options().asCaseSensitiveMap());
  }

  static JsonNode describe(WritableTable table, Command command, Map<String, String> options) {
    ObjectNode arguments = Json.object();
    arguments.put("snapshot", table.metadata.get("snapshot").asText()).put("command", command.name());
    arguments.set("options", Json.object(options));
    return table.python.call("row_level_operation", arguments);
  }

  /**
   * Returns the write options that tell Python which version and rows the statement read. {@code filters} is null for
   * all rows.
   */
  static Map<String, String> readOptions(JsonNode metadata, boolean readsOnce, Predicate[] filters) {
    ObjectNode scope = Json.object().put("reads_once", readsOnce);
    scope.set("schema_id", metadata.get("schema_id"));
    ArrayNode trees = scope.putArray("filters");
    if (filters != null) for (Predicate filter : filters) trees.add(ExpressionJson.of(filter));
    return Map.of(InternalOptions.READ, metadata.get("read").asText(), InternalOptions.SCOPE, scope.toString());
  }

  Map<String, String> readOptions() {
    return readOptions(metadata, readsTableOnce(), scans.size() == 1 ? scans.get(0).pushedPredicates() : null);
  }

  /**
   * Returns whether the running statement reads the table only by this operation's scan, and not also in a subquery.
   */
  boolean readsTableOnce() {
    int reads = 0;
    for (LogicalPlan leaf : RunningStatement.leaves()) {
      boolean isOwn = leaf instanceof DataSourceV2Relation
          && ((DataSourceV2Relation) leaf).table() instanceof RowLevelOperationTable
          && ((RowLevelOperationTable) ((DataSourceV2Relation) leaf).table()).operation() == this;
      if (isOwn) reads++;
      else if (RunningStatement.mayRead(leaf, table)) return false;
    }
    return reads == 1;
  }

  @Override
  public Command command() {
    return command;
  }

  @Override
  public String description() {
    return "streamhouse " + command + " of " + table.tableName();
  }

  /** Creates a scan of the pinned version. All scans of the target read that version. */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    ObjectNode pinnedMetadata = ((ObjectNode) table.metadata.deepCopy())
        .put("snapshot", metadata.get("snapshot").asText());
    ReadableTable readTable = new ReadableTable(table.catalog, table.identifier, pinnedMetadata);
    TableScanBuilder scan = new TableScanBuilder(readTable, options.asCaseSensitiveMap(), this::readsTableOnce);
    scans.add(scan);
    return scan;
  }

  @Override
  public NamedReference[] rowId() {
    List<NamedReference> references = new ArrayList<>();
    for (String column : Json.toList(metadata.get("row_id"))) references.add(FieldReference.column(column));
    return references.toArray(new NamedReference[0]);
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    StructType written = (StructType) DataType.fromJson(metadata.get("schema").asText());
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        Write displayWrite = table.newPythonWriteBuilder(info, written, Map.of()).build();
        Supplier<Write> inner = () -> table.newPythonWriteBuilder(info, written, readOptions()).build();
        return new RowDeltaWrite(table, displayWrite, inner, written);
      }
    };
  }
}
