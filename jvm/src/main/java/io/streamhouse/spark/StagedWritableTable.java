package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/**
 * A table that one statement creates or replaces, and fills. A replacement either is the table itself, whose rows go,
 * or another one that gets the name when it has its rows.
 */
final class StagedWritableTable extends WritableTable implements StagedTable {
  private final boolean isNew;

  /** The table whose name this one gets; null for a table that has its name. */
  private final String replaces;

  private boolean isTold;

  StagedWritableTable(PythonCatalog catalog, Identifier identifier, JsonNode loaded, boolean isNew) {
    super(catalog, identifier, loaded);
    this.isNew = isNew;
    this.replaces = isNew ? null : loaded.get("replaces").textValue();
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    TableWriteBuilder builder = (TableWriteBuilder) super.newWriteBuilder(info);
    return isNew || replaces != null ? builder : builder.truncate();
  }

  @Override
  WriteBuilder writer(LogicalWriteInfo info, StructType written, Map<String, String> more) {
    Map<String, String> options = new HashMap<>(more);
    if (replaces != null) options.put(InternalOptions.STAGED, "true");
    return super.writer(info, written, options);
  }

  /** Publishes a table that has no name. Else the rows committed themselves. */
  @Override
  public void commitStagedChanges() {
    if (replaces == null) return;
    isTold = true;
    python.ask("publish_table", described());
  }

  private ObjectNode described() {
    return PythonCatalog.named(identifier).put("uuid", id()).put("replaces", replaces);
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return new CustomTaskMetric[0];
  }

  /** Drops what nobody will see. What was told to be published may be so, whatever the answer was. */
  @Override
  public void abortStagedChanges() {
    if (isNew) catalog.dropTable(identifier);
    else if (replaces != null && !isTold) python.ask("abandon_table", described());
  }
}
