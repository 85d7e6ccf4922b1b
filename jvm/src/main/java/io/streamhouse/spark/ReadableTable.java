package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A name that can be read: the table, its lake, its changelog, a system or metadata table; at one pinned state. */
class ReadableTable extends LoadedTable implements SupportsRead {
  ReadableTable(PythonCatalog catalog, Identifier identifier, JsonNode loaded) {
    super(catalog, identifier, loaded);
  }

  /** The table that the data source's options name, to be read alone. An error is one of Python's. */
  static ReadableTable ofSource(PythonCatalog catalog, Map<String, String> options) {
    ObjectNode arguments = JsonTree.object();
    arguments.set("options", JsonTree.object(options));
    JsonNode found = catalog.python().ask("load_source", arguments);
    String[] name = found.get("name").asText().split("\\.", 2);
    return new ReadableTable(catalog, Identifier.of(new String[] {name[0]}, name[1]), found);
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
