package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.catalog.TableChangeJson;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.TableChange;

/**
 * Tables that tell which changes of columns WITH SCHEMA EVOLUTION may ask for. Spark 4.1 lacks the type, asks for every
 * change, and cannot load these classes.
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

  /** Spark casts values where a type cannot change. A column that cannot be added is an error, not left out. */
  private static boolean supportsTypeChange(WritableTable table, TableChange.ColumnChange change) {
    if (!(change instanceof TableChange.UpdateColumnType)) return true;
    ObjectNode arguments = PythonCatalog.nameArguments(table.identifier).put("uuid", table.id());
    arguments.putArray("changes").add(TableChangeJson.of(change));
    return table.python.call("can_alter", arguments).get("can").asBoolean();
  }
}
