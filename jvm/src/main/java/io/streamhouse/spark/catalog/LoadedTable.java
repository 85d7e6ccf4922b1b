package io.streamhouse.spark.catalog;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.util.Json;
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

/**
 * Base class of the catalog's tables: the description that Python returned when the table was loaded, pinned to one
 * version.
 */
public abstract class LoadedTable implements SupportsMetadataColumns {
  public final PythonCatalog catalog;
  public final PythonRpc python;
  public final Identifier identifier;
  public final JsonNode metadata;
  /** The declared schema, which has CHAR(n) and VARCHAR(n). */
  private final StructType declaredSchema;

  /** The schema of rows, in which CHAR(n) and VARCHAR(n) are strings whose metadata has the length. */
  public final StructType schema;

  public LoadedTable(PythonCatalog catalog, Identifier identifier, JsonNode metadata) {
    this.catalog = catalog;
    this.python = catalog.python();
    this.identifier = identifier;
    this.metadata = metadata;
    this.declaredSchema = (StructType) DataType.fromJson(metadata.get("schema").asText());
    this.schema = CharVarcharUtils.replaceCharVarcharWithStringInSchema(declaredSchema);
  }

  /** Returns the name in the form that the data source uses. */
  public String tableName() {
    return metadata.get("name").asText();
  }

  @Override
  public String name() {
    return catalog.name() + "." + tableName();
  }

  @Override
  public String id() {
    return metadata.get("uuid").asText();
  }

  @Override
  public String version() {
    return metadata.get("version").asText();
  }

  @Override
  public StructType schema() {
    // only DESCRIBE: a stream's plan must not have CHAR or VARCHAR
    return hasCaller(".v2.Describe") ? declaredSchema : schema;
  }

  /** Returns whether a class whose name contains {@code name} is among the callers. */
  private static boolean hasCaller(String name) {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(frame -> frame.getClassName().contains(name)));
  }

  @Override
  public Transform[] partitioning() {
    List<Transform> transforms = new ArrayList<>();
    for (JsonNode transform : metadata.get("partitioning")) transforms.add(TransformJson.of(transform));
    Transform[] partitioning = transforms.toArray(new Transform[0]);
    return PipelineRuns.isPreparingTables() ? PipelineRuns.columnPartitioning(partitioning) : partitioning;
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> properties = Json.toMap(metadata.get("properties"));
    if (hasCaller("ShowCreateTableExec")) {
      properties.keySet().removeIf(LoadedTable::isDerivedProperty);
    }
    return properties;
  }

  private static boolean isDerivedProperty(String key) {
    return key.startsWith("status.") || key.startsWith("openlineage.") || key.equals(TableCatalog.PROP_LOCATION);
  }

  public boolean hasKind(String kind) {
    return metadata.get("kind").asText().equals(kind);
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    List<MetadataColumn> columns = new ArrayList<>();
    for (JsonNode column : metadata.get("metadata_columns")) columns.add(new TableMetadataColumn(column));
    return columns.toArray(new MetadataColumn[0]);
  }

  /** Tables are equal if they have the same name and pinned version, so that Spark finds cached data. */
  @Override
  public boolean equals(Object other) {
    if (other == null || getClass() != other.getClass()) return false;
    LoadedTable table = (LoadedTable) other;
    return name().equals(table.name()) && metadata.get("snapshot").equals(table.metadata.get("snapshot"));
  }

  @Override
  public int hashCode() {
    return Objects.hash(name(), metadata.get("snapshot"));
  }

  /** Rejects invalid options of the query. */
  public void checkOptions(String mode, Map<String, String> options) {
    if (options.isEmpty()) return;
    ObjectNode arguments = Json.object().put("name", tableName()).put("mode", mode);
    ObjectNode optionsJson = arguments.putObject("options");
    options.forEach(optionsJson::put);
    python.call("check_options", arguments);
  }

  /** Returns the bucket key if it is a single column, else null. */
  public String bucketColumn() {
    JsonNode buckets = metadata.get("buckets");
    return buckets.isNull() || buckets.get("key").size() != 1 ? null : buckets.get("key").get(0).asText();
  }

  public int bucketCount() {
    return metadata.get("buckets").get("count").asInt();
  }

  /** Returns the number of buckets of the log, whether or not the table has a bucket key. */
  public int logBucketCount() {
    return Integer.parseInt(Json.toMap(metadata.get("properties")).get("status.buckets"));
  }
}
