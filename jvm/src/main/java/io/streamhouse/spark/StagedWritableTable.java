package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;

/** A table that one statement creates or replaces, and fills. */
final class StagedWritableTable extends WritableTable implements StagedTable {
  private final boolean isNew;
  private boolean hasRows;

  StagedWritableTable(StreamhouseCatalog catalog, Identifier identifier, JsonNode loaded, boolean isNew) {
    super(catalog, identifier, loaded);
    this.isNew = isNew;
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    hasRows = true;
    TableWriteBuilder builder = (TableWriteBuilder) super.newWriteBuilder(info);
    return isNew ? builder : builder.truncate();
  }

  /** Does nothing: the rows committed themselves. */
  @Override
  public void commitStagedChanges() {
    if (isNew || hasRows) return;
    throw Errors.analysis(
        "table " + tableName() + ": REPLACE TABLE without AS SELECT is not supported; use TRUNCATE TABLE to remove its "
            + "rows, ALTER TABLE to change it, or DROP TABLE and CREATE TABLE");
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return new CustomTaskMetric[0];
  }

  @Override
  public void abortStagedChanges() {
    if (isNew) catalog.dropTable(identifier);
  }
}
