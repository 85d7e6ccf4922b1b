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

/** A table of rows, with writes, deletes and row-level operations. */
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
            // for WITH SCHEMA EVOLUTION: Spark first alters the table and then plans with its current columns
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

  /**
   * Returns the metrics of the last committed batch of a stream. Spark reads them from the table of the query after
   * each commit.
   */
  @Override
  public Map<String, String> metrics() {
    return lastBatchMetrics;
  }

  void recordMetrics(Map<String, String> counts) {
    lastBatchMetrics = counts;
  }

  /** Returns whether rows of this schema can be clustered by bucket. Python rejects a stream whose rows cannot. */
  public boolean canClusterByBucket(StructType written) {
    String key = bucketColumn();
    return key != null && bucketCount() > 1 && Arrays.stream(written.fieldNames()).anyMatch(key::equalsIgnoreCase);
  }

  /** Creates the write builder of Python's data source for rows of this schema. */
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

  /**
   * Returns whether the rows can be deleted by a condition. Tables with a primary key only support deleting all rows
   * this way.
   */
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

  /** Truncates the table, unless a pipeline will replace the rows of its view in one commit. */
  @Override
  public boolean truncateTable() {
    if (PipelineRuns.defersTruncate(catalog.name(), identifier)) return true;
    python.call("truncate_table", PythonCatalog.nameArguments(identifier).put("uuid", id()));
    return true;
  }
}
