package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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

/** An operation on rows that are told by their primary key. Python decides whether the table takes it. */
final class KeyedRowLevelOperation implements SupportsDelta {
  private final WritableTable table;
  private final Command command;
  private final JsonNode described;
  private final List<TableScanBuilder> scans = new ArrayList<>();

  KeyedRowLevelOperation(WritableTable table, RowLevelOperationInfo info) {
    this.table = table;
    this.command = info.command();
    this.described = described(table, command, info.options().asCaseSensitiveMap());
  }

  static JsonNode described(WritableTable table, Command command, Map<String, String> options) {
    ObjectNode arguments = JsonTree.object();
    arguments.put("pin", table.loaded.get("pin").asText()).put("command", command.name());
    arguments.set("options", JsonTree.object(options));
    return table.python.ask("row_level_operation", arguments);
  }

  /** The state and rows that were read, in the writer's form. The filters are of the one scan; null: all rows. */
  static Map<String, String> read(JsonNode described, boolean readsOnce, Predicate[] filters) {
    ObjectNode scope = JsonTree.object().put("reads_once", readsOnce);
    scope.set("schema_id", described.get("schema_id"));
    ArrayNode trees = scope.putArray("filters");
    if (filters != null) for (Predicate filter : filters) trees.add(ExpressionJson.of(filter));
    return Map.of(InternalOptions.READ, described.get("read").asText(), InternalOptions.SCOPE, scope.toString());
  }

  Map<String, String> read() {
    return read(described, readsOnce(), scans.size() == 1 ? scans.get(0).pushedPredicates() : null);
  }

  /** Whether the running statement reads the table by this operation's scan and in no other way, such as a subquery. */
  boolean readsOnce() {
    int reads = 0;
    for (LogicalPlan leaf : Statements.leaves()) {
      boolean isOwn = leaf instanceof DataSourceV2Relation
          && ((DataSourceV2Relation) leaf).table() instanceof RowLevelOperationTable
          && ((RowLevelOperationTable) ((DataSourceV2Relation) leaf).table()).operation() == this;
      if (isOwn) reads++;
      else if (Statements.mayRead(leaf, table)) return false;
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

  /** All scans of the table that the operation writes are of one state, and nothing else prunes them. */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    ObjectNode pinned = ((ObjectNode) table.loaded.deepCopy()).put("pin", described.get("pin").asText());
    ReadableTable read = new ReadableTable(table.catalog, table.identifier, pinned);
    TableScanBuilder scan = new TableScanBuilder(read, options.asCaseSensitiveMap(), this::readsOnce);
    scans.add(scan);
    return scan;
  }

  @Override
  public NamedReference[] rowId() {
    List<NamedReference> found = new ArrayList<>();
    for (String column : JsonTree.list(described.get("row_id"))) found.add(FieldReference.column(column));
    return found.toArray(new NamedReference[0]);
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    StructType written = (StructType) DataType.fromJson(described.get("schema").asText());
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        Write shown = table.writer(info, written, Map.of()).build();
        Supplier<Write> inner = () -> table.writer(info, written, read()).build();
        return table.hasKey() && table.clusters(written)
            ? new BucketedDeltaWrite(table, shown, inner, written)
            : new KeyedDeltaWrite(table, shown, inner, written);
      }
    };
  }
}
