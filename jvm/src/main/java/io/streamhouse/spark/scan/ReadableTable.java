package io.streamhouse.spark.scan;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.LoadedTable;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.util.Json;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table that can be read: a table of rows, its lake, its changelog, a system table or a metadata table. */
public class ReadableTable extends LoadedTable implements SupportsRead {
  public ReadableTable(PythonCatalog catalog, Identifier identifier, JsonNode metadata) {
    super(catalog, identifier, metadata);
  }

  /** Loads the table that the data source's options name, for reads only. Errors are those of Python. */
  public static ReadableTable loadSource(PythonCatalog catalog, Map<String, String> options) {
    ObjectNode arguments = Json.object();
    arguments.set("options", Json.object(options));
    JsonNode metadata = catalog.python().call("load_source", arguments);
    String[] name = metadata.get("name").asText().split("\\.", 2);
    return new ReadableTable(catalog, Identifier.of(new String[] {name[0]}, name[1]), metadata);
  }

  @Override
  public Set<TableCapability> capabilities() {
    return hasKind("changelog")
        ? EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ)
        : EnumSet.of(TableCapability.BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new TableScanBuilder(this, options.asCaseSensitiveMap(), null);
  }
}
