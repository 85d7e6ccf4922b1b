package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.rpc.InternalOptions;
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
public final class StagedWritableTable extends WritableTable implements StagedTable {
  private final boolean isNew;

  /** The table whose name this one gets; null for a table that has its name. */
  private final String replaces;

  private boolean isPublishRequested;

  public StagedWritableTable(PythonCatalog catalog, Identifier identifier, JsonNode metadata, boolean isNew) {
    super(catalog, identifier, metadata);
    this.isNew = isNew;
    this.replaces = isNew ? null : metadata.get("replaces").textValue();
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    TableWriteBuilder builder = (TableWriteBuilder) super.newWriteBuilder(info);
    return isNew || replaces != null ? builder : builder.truncate();
  }

  @Override
  WriteBuilder newPythonWriteBuilder(LogicalWriteInfo info, StructType written, Map<String, String> extraOptions) {
    Map<String, String> options = new HashMap<>(extraOptions);
    if (replaces != null) options.put(InternalOptions.STAGED, "true");
    return super.newPythonWriteBuilder(info, written, options);
  }

  /** Publishes a table that has no name. Else the rows committed themselves. */
  @Override
  public void commitStagedChanges() {
    if (replaces == null) return;
    isPublishRequested = true;
    python.call("publish_table", publishArguments());
  }

  private ObjectNode publishArguments() {
    return PythonCatalog.nameArguments(identifier).put("uuid", id()).put("replaces", replaces);
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return new CustomTaskMetric[0];
  }

  /** Drops what nobody will see. What was told to be published may be so, whatever the answer was. */
  @Override
  public void abortStagedChanges() {
    if (isNew) catalog.dropTable(identifier);
    else if (replaces != null && !isPublishRequested) python.call("abandon_table", publishArguments());
  }
}
