package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A table as Python describes it, at one pinned state. */
abstract class LoadedTable implements SupportsMetadataColumns {
  final PythonCatalog catalog;
  final PythonCalls python;
  final Identifier identifier;
  final JsonNode loaded;
  /** The declared schema, with CHAR(n) and VARCHAR(n). */
  private final StructType declared;

  /** The schema of rows: texts of a length are texts, and their metadata tells Spark the length. */
  final StructType schema;

  LoadedTable(PythonCatalog catalog, Identifier identifier, JsonNode loaded) {
    this.catalog = catalog;
    this.python = catalog.python();
    this.identifier = identifier;
    this.loaded = loaded;
    this.declared = (StructType) DataType.fromJson(loaded.get("schema").asText());
    this.schema = CharVarcharUtils.replaceCharVarcharWithStringInSchema(declared);
  }

  /** The name in the data source's form. */
  String tableName() {
    return loaded.get("name").asText();
  }

  @Override
  public String name() {
    return catalog.name() + "." + tableName();
  }

  @Override
  public String id() {
    return loaded.get("uuid").asText();
  }

  @Override
  public String version() {
    return loaded.get("version").asText();
  }

  @Override
  public StructType schema() {
    return isAskedBy(".v2.Describe") ? declared : schema; // a stream's plan must not have types with a length
  }

  /** Whether a class whose name has this in it is among the callers. */
  private static boolean isAskedBy(String name) {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(frame -> frame.getClassName().contains(name)));
  }

  @Override
  public Transform[] partitioning() {
    List<Transform> found = new ArrayList<>();
    for (JsonNode transform : loaded.get("partitioning")) found.add(TransformJson.of(transform));
    Transform[] all = found.toArray(new Transform[0]);
    return Pipelines.prepares() ? Pipelines.declared(all) : all;
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> found = JsonTree.texts(loaded.get("properties"));
    if (isAskedBy("ShowCreateTableExec")) {
      found.keySet().removeIf(LoadedTable::isShownAlone);
    }
    return found;
  }

  private static boolean isShownAlone(String key) {
    return key.startsWith("status.") || key.startsWith("openlineage.") || key.equals(TableCatalog.PROP_LOCATION);
  }

  boolean hasKind(String kind) {
    return loaded.get("kind").asText().equals(kind);
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    List<MetadataColumn> found = new ArrayList<>();
    for (JsonNode column : loaded.get("metadata_columns")) found.add(new HiddenColumn(column));
    return found.toArray(new MetadataColumn[0]);
  }

  /** The same name at the same state has the same rows: so Spark finds what it has cached. */
  @Override
  public boolean equals(Object other) {
    if (other == null || getClass() != other.getClass()) return false;
    LoadedTable table = (LoadedTable) other;
    return name().equals(table.name()) && loaded.get("pin").equals(table.loaded.get("pin"));
  }

  @Override
  public int hashCode() {
    return Objects.hash(name(), loaded.get("pin"));
  }

  /** Refuses impossible options of the query. */
  void checkOptions(String mode, Map<String, String> options) {
    if (options.isEmpty()) return;
    ObjectNode arguments = JsonTree.object().put("name", tableName()).put("mode", mode);
    ObjectNode given = arguments.putObject("options");
    options.forEach(given::put);
    python.ask("check_options", arguments);
  }

  /** The bucket key's column if exactly one decides about buckets, else null. */
  String bucketColumn() {
    JsonNode buckets = loaded.get("buckets");
    return buckets.isNull() || buckets.get("key").size() != 1 ? null : buckets.get("key").get(0).asText();
  }

  int bucketCount() {
    return loaded.get("buckets").get("count").asInt();
  }

  /** The number of buckets of the log, whether a column decides them or not. */
  int bucketsOfLog() {
    return Integer.parseInt(JsonTree.texts(loaded.get("properties")).get("status.buckets"));
  }
}
