package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.LoadedTable;
import io.streamhouse.spark.catalog.PipelineRuns;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.realtime.RealTimeMode;
import io.streamhouse.spark.rpc.ExpressionJson;
import io.streamhouse.spark.rpc.InternalOptions;
import io.streamhouse.spark.scan.ReadableTable;
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
public class WritableTable extends ReadableTable
    implements SupportsWrite, SupportsDeleteV2, SupportsRowLevelOperations, ReportsSinkMetrics {
  private volatile Map<String, String> lastBatchMetrics = Map.of();

  public WritableTable(PythonCatalog catalog, Identifier identifier, JsonNode metadata) {
    super(catalog, identifier, metadata);
  }

  @Override
  public Set<TableCapability> capabilities() {
    EnumSet<TableCapability> capabilities =
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
    return metadata.get("streams_rows").asBoolean()
        ? capabilities
        : new PrimaryKeyTableCapabilities(this, capabilities);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    LoadedTable source = RealTimeMode.sourceTable(name());
    if (source != null) return new RealTimeWrite(this, info, source);
    WriteBuilder inner = newPythonWriteBuilder(info, info.schema(), Map.of());
    TableWriteBuilder builder =
        metadata.get("takes_updates").asBoolean()
            ? new UpsertWriteBuilder(this, info, inner)
            : new TableWriteBuilder(this, info, inner);
    return PipelineRuns.isRefreshingView() ? builder.truncate() : builder;
  }

  /** What the batch of a stream wrote that was committed last: Spark asks the table of the query, and only then. */
  @Override
  public Map<String, String> metrics() {
    return lastBatchMetrics;
  }

  void recordMetrics(Map<String, String> counts) {
    lastBatchMetrics = counts;
  }

  /** Whether rows of this schema can be clustered by bucket. Python refuses a stream whose rows cannot. */
  public boolean canClusterByBucket(StructType written) {
    String key = bucketColumn();
    return key != null && bucketCount() > 1 && Arrays.stream(written.fieldNames()).anyMatch(key::equalsIgnoreCase);
  }

  /** The data source's own writer, for rows of this schema. */
  WriteBuilder newPythonWriteBuilder(LogicalWriteInfo info, StructType written, Map<String, String> extraOptions) {
    Map<String, String> options = python.mergeOptions(info.options().asCaseSensitiveMap());
    options.put("path", tableName());
    options.put(InternalOptions.UUID, id());
    if (canClusterByBucket(written)) options.put(InternalOptions.CLUSTERED, "true");
    options.putAll(extraOptions);
    SupportsWrite source = (SupportsWrite) python.dataSource().getTable(written, new Transform[0], options);
    return source.newWriteBuilder(new PythonWriteInfo(info, written, options));
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new TableRowLevelOperation(this, info);
  }

  boolean hasPrimaryKey() {
    return !metadata.get("streams_rows").asBoolean();
  }

  /** Rows with a key go by what Spark reads of them; others by a condition that Python understands whole. */
  @Override
  public boolean canDeleteWhere(Predicate[] predicates) {
    return matchesAllRows(predicates)
        || (!hasPrimaryKey() && python.call("can_delete", deleteRequest(predicates)).get("can").asBoolean());
  }

  @Override
  public void deleteWhere(Predicate[] predicates) {
    if (matchesAllRows(predicates)) truncateTable();
    else python.call("delete_where", deleteRequest(predicates));
  }

  private static boolean matchesAllRows(Predicate[] predicates) {
    return Arrays.stream(predicates).allMatch(AlwaysTrue.class::isInstance);
  }

  private ObjectNode deleteRequest(Predicate[] predicates) {
    ObjectNode arguments = PythonCatalog.nameArguments(identifier).put("uuid", id());
    ArrayNode trees = arguments.putArray("filters");
    for (Predicate predicate : predicates) trees.add(ExpressionJson.of(predicate));
    return arguments;
  }

  /** Leaves the rows of a pipeline's view to be replaced by its new ones, in one commit. */
  @Override
  public boolean truncateTable() {
    if (PipelineRuns.defersTruncate(catalog.name(), identifier)) return true;
    python.call("truncate_table", PythonCatalog.nameArguments(identifier).put("uuid", id()));
    return true;
  }
}
