package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.streaming.ReportsSinkMetrics;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/** A table of rows: reads, writes and operations on single rows. */
class WritableTable extends ReadableTable
    implements SupportsWrite, SupportsDeleteV2, SupportsRowLevelOperations, ReportsSinkMetrics {
  private volatile Map<String, String> written = Map.of();

  WritableTable(PythonCatalog catalog, Identifier identifier, JsonNode loaded) {
    super(catalog, identifier, loaded);
  }

  @Override
  public Set<TableCapability> capabilities() {
    EnumSet<TableCapability> found =
        EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.STREAMING_WRITE,
            TableCapability.TRUNCATE,
            TableCapability.OVERWRITE_BY_FILTER,
            TableCapability.OVERWRITE_DYNAMIC,
            // WITH SCHEMA EVOLUTION: Spark asks for ALTER TABLE first, and then plans by the present columns.
            TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
    return loaded.get("streams_rows").asBoolean() ? found : new WithoutStreams(this, found);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    LoadedTable source = RealTimeMode.source(name());
    if (source != null) return new RealTimeWrite(this, info, source);
    WriteBuilder inner = writer(info, info.schema(), Map.of());
    TableWriteBuilder builder =
        loaded.get("takes_updates").asBoolean()
            ? new UpdatingWriteBuilder(this, info, inner)
            : new TableWriteBuilder(this, info, inner);
    return Pipelines.refreshes() ? builder.truncate() : builder;
  }

  /** What the batch of a stream wrote that was committed last: Spark asks the table of the query, and only then. */
  @Override
  public Map<String, String> metrics() {
    return written;
  }

  void wrote(Map<String, String> counts) {
    written = counts;
  }

  /** Whether rows of this schema can be clustered by bucket. Python refuses a stream whose rows cannot. */
  boolean clusters(StructType written) {
    String key = bucketColumn();
    return key != null && bucketCount() > 1 && Arrays.stream(written.fieldNames()).anyMatch(key::equalsIgnoreCase);
  }

  /** The data source's own writer, for rows of this schema. */
  WriteBuilder writer(LogicalWriteInfo info, StructType written, Map<String, String> more) {
    Map<String, String> options = python.options(info.options().asCaseSensitiveMap());
    options.put("path", tableName());
    options.put(InternalOptions.UUID, id());
    if (clusters(written)) options.put(InternalOptions.CLUSTERED, "true");
    options.putAll(more);
    SupportsWrite source = (SupportsWrite) python.source().getTable(written, new Transform[0], options);
    return source.newWriteBuilder(new WriteInfo(info, written, options));
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new KeyedRowLevelOperation(this, info);
  }

  boolean hasKey() {
    return !loaded.get("streams_rows").asBoolean();
  }

  /** Rows with a key go by what Spark reads of them; others by a condition that Python understands whole. */
  @Override
  public boolean canDeleteWhere(Predicate[] predicates) {
    return isAll(predicates)
        || (!hasKey() && python.ask("can_delete", conditions(predicates)).get("can").asBoolean());
  }

  @Override
  public void deleteWhere(Predicate[] predicates) {
    if (isAll(predicates)) truncateTable();
    else python.ask("delete_where", conditions(predicates));
  }

  private static boolean isAll(Predicate[] predicates) {
    return Arrays.stream(predicates).allMatch(AlwaysTrue.class::isInstance);
  }

  private ObjectNode conditions(Predicate[] predicates) {
    ObjectNode arguments = PythonCatalog.named(identifier).put("uuid", id());
    ArrayNode trees = arguments.putArray("filters");
    for (Predicate predicate : predicates) trees.add(ExpressionJson.of(predicate));
    return arguments;
  }

  /** Leaves the rows of a pipeline's view to be replaced by its new ones, in one commit. */
  @Override
  public boolean truncateTable() {
    if (Pipelines.replacesLater(catalog.name(), identifier)) return true;
    python.ask("truncate_table", PythonCatalog.named(identifier).put("uuid", id()));
    return true;
  }
}
