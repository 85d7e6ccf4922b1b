package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.TableChange;

/**
 * Tables that tell which changes of columns WITH SCHEMA EVOLUTION may ask for. Spark 4.1 lacks the type, asks for every
 * change, and cannot load these classes.
 */
final class EvolvingTables {
  private EvolvingTables() {}

  static final class Plain extends WritableTable implements SupportsSchemaEvolution {
    Plain(PythonCatalog catalog, Identifier identifier, JsonNode loaded) {
      super(catalog, identifier, loaded);
    }

    @Override
    public boolean supportsColumnChange(TableChange.ColumnChange change) {
      return supports(this, change);
    }
  }

  static final class Partitioned extends PartitionedTable implements SupportsSchemaEvolution {
    Partitioned(PythonCatalog catalog, Identifier identifier, JsonNode loaded) {
      super(catalog, identifier, loaded);
    }

    @Override
    public boolean supportsColumnChange(TableChange.ColumnChange change) {
      return supports(this, change);
    }
  }

  /** Spark casts values where a type cannot change. A column that cannot be added is an error, not left out. */
  private static boolean supports(WritableTable table, TableChange.ColumnChange change) {
    if (!(change instanceof TableChange.UpdateColumnType)) return true;
    ObjectNode arguments = PythonCatalog.named(table.identifier).put("uuid", table.id());
    arguments.putArray("changes").add(ChangeJson.of(change));
    return table.python.ask("can_alter", arguments).get("can").asBoolean();
  }
}
