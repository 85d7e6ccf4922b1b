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
 * A table that one statement creates or replaces and then fills. A replacement is either the same table, whose rows are
 * removed, or a new table that gets the name once it has its rows.
 */
public final class StagedWritableTable extends WritableTable implements StagedTable {
  private final boolean isNew;

  /** The UUID of the table that this one replaces, or null if this table already has its name. */
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

  /** Publishes a replacement under its name. In any other case the rows were committed by their write. */
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

  /**
   * Drops a table that will not be seen. A requested publication may have succeeded, whatever its outcome looked like.
   */
  @Override
  public void abortStagedChanges() {
    if (isNew) catalog.dropTable(identifier);
    else if (replaces != null && !isPublishRequested) python.call("abandon_table", publishArguments());
  }
}
