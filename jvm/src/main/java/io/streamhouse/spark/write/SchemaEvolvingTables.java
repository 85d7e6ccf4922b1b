package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.catalog.TableChangeJson;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.TableChange;

/**
 * Tables that tell Spark which column changes WITH SCHEMA EVOLUTION may make. Spark 4.1 lacks the interface, requests
 * every change, and cannot load these classes.
 */
public final class SchemaEvolvingTables {
  private SchemaEvolvingTables() {}

  public static final class Unpartitioned extends WritableTable implements SupportsSchemaEvolution {
    public Unpartitioned(PythonCatalog catalog, Identifier identifier, JsonNode metadata) {
      super(catalog, identifier, metadata);
    }

    @Override
    public boolean supportsColumnChange(TableChange.ColumnChange change) {
      return supportsTypeChange(this, change);
    }
  }

  public static final class Partitioned extends PartitionedTable implements SupportsSchemaEvolution {
    public Partitioned(PythonCatalog catalog, Identifier identifier, JsonNode metadata) {
      super(catalog, identifier, metadata);
    }

    @Override
    public boolean supportsColumnChange(TableChange.ColumnChange change) {
      return supportsTypeChange(this, change);
    }
  }

  /**
   * Returns whether Python can change the type. If not, Spark casts values. Columns that cannot be added are errors.
   */
  private static boolean supportsTypeChange(WritableTable table, TableChange.ColumnChange change) {
    if (!(change instanceof TableChange.UpdateColumnType)) return true;
    ObjectNode arguments = PythonCatalog.nameArguments(table.identifier).put("uuid", table.id());
    arguments.putArray("changes").add(TableChangeJson.of(change));
    return table.python.call("can_alter", arguments).get("can").asBoolean();
  }
}
