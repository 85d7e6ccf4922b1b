package io.streamhouse.spark.scan;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.metrics.SegmentsSkipped;
import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.metrics.TaskMetricValue;
import io.streamhouse.spark.read.BucketPartition;
import io.streamhouse.spark.read.HybridReaderFactory;
import io.streamhouse.spark.read.LakeFilePartition;
import io.streamhouse.spark.read.ParquetReaderFactories;
import io.streamhouse.spark.realtime.RealTimeMode;
import io.streamhouse.spark.realtime.RealTimeStream;
import io.streamhouse.spark.rpc.ExpressionJson;
import io.streamhouse.spark.rpc.HadoopFileSystems;
import io.streamhouse.spark.rpc.InternalOptions;
import io.streamhouse.spark.rpc.PythonPartitions;
import io.streamhouse.spark.stream.ChangelogStream;
import io.streamhouse.spark.stream.TableStream;
import io.streamhouse.spark.util.Json;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.function.BooleanSupplier;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.LogicalExpressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A scan of a pinned table. Its plan consists of file groups for Spark's Parquet reader and of groups that Python reads
 * as Arrow batches.
 */
class TableScan implements Scan, Batch, SupportsReportStatistics, SupportsReportPartitioning {
  final ReadableTable table;
  final StructType required;
  final List<Predicate> predicates;
  private final Map<String, String> options;
  private final int limit;
  private final BooleanSupplier readsOnce;
  JsonNode plan;
  HybridReaderFactory readerFactory;
  boolean mustStayKeyGrouped;
  private boolean isStreaming;

  TableScan(
      ReadableTable table,
      Map<String, String> options,
      StructType required,
      Predicate[] predicates,
      int limit,
      BooleanSupplier readsOnce) {
    this.readsOnce = readsOnce;
    this.table = table;
    this.options = options;
    this.required = required;
    this.predicates = new ArrayList<>(Arrays.asList(predicates));
    this.limit = limit;
  }

  private ObjectNode newPlanRequest() {
    ObjectNode request = Json.object().put("snapshot", table.metadata.get("snapshot").asText());
    ArrayNode columns = request.putArray("columns");
    for (String column : required.fieldNames()) columns.add(column);
    ArrayNode filters = request.putArray("filters");
    for (Predicate predicate : predicates) filters.add(ExpressionJson.of(predicate));
    request.put("limit", limit < 0 ? null : (Integer) limit);
    if (mustStayKeyGrouped) request.put("stays_keyed", true);
    request.set("options", Json.object(options));
    request.put("parallelism", parallelism());
    request.put("drops_rows", ParquetReaderFactories.supportsBatches(required));
    HadoopFileSystems.addNativeSchemes(request, HadoopFileSystems.hadoopConfiguration());
    if (readsOnce != null) request.put("reads_once", readsOnce.getAsBoolean());
    return request;
  }

  /** Returns the number of tasks that run concurrently. */
  private static int parallelism() {
    return SparkSession.active().sparkContext().defaultParallelism();
  }

  private JsonNode plan() {
    if (plan == null) plan = table.python.call("plan", newPlanRequest());
    return plan;
  }

  @Override
  public StructType readSchema() {
    return required;
  }

  @Override
  public String description() {
    String lakeRead = plan == null ? "" : plan.path("lake_reader").asText();
    return "streamhouse " + table.tableName() + " " + Arrays.toString(required.fieldNames()) + ", filters "
        + predicates + (limit < 0 ? "" : ", limit " + limit) + lakeRead;
  }

  @Override
  public Statistics estimateStatistics() {
    JsonNode source = isStreaming ? table.metadata : plan();
    OptionalLong rows = optionalLong(source.path("rows"));
    OptionalLong bytes = optionalLong(source.path("bytes"));
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return bytes;
      }

      @Override
      public OptionalLong numRows() {
        return rows;
      }
    };
  }

  private static OptionalLong optionalLong(JsonNode node) {
    return node.isNumber() ? OptionalLong.of(node.asLong()) : OptionalLong.empty();
  }

  final boolean isKeyGrouped() {
    return plan().get("keyed").asBoolean();
  }

  @Override
  public Partitioning outputPartitioning() {
    int groups = plan().get("native").size() + plan().get("hot").size();
    if (!isKeyGrouped()) return new UnknownPartitioning(groups);
    Expression key =
        LogicalExpressions.bucket(
            table.bucketCount(), new NamedReference[] {FieldReference.column(table.bucketColumn())});
    return new KeyGroupedPartitioning(new Expression[] {key}, groups);
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    isStreaming = true;
    if (table.hasKind("changes")) return new ChangelogStream(table, newPlanRequest());
    table.checkOptions("readStream", options);
    if (Boolean.TRUE.equals(RealTimeMode.isRealTime(Thread.currentThread()))) {
      return new RealTimeStream(table, options, streamSchema(), parallelism(),
          HadoopFileSystems.hadoopConfiguration());
    }
    Map<String, String> allOptions = table.python.mergeOptions(options);
    allOptions.put("path", table.tableName());
    allOptions.put(InternalOptions.UUID, table.id());
    allOptions.put(InternalOptions.NEED, "true");
    StructType columns = streamSchema();
    MicroBatchStream rows = pythonScan(columns, allOptions).toMicroBatchStream(checkpoint);
    return TableStream.of(table.tableName(), table.python, columns, rows);
  }

  /**
   * Returns the columns of a stream, which always include the metadata columns. Spark appends these to the output if a
   * query selects one, and finds them by position. It drops unused columns.
   */
  private StructType streamSchema() {
    StructType columns = table.schema;
    for (MetadataColumn hidden : table.metadataColumns()) columns = columns.add(hidden.name(), hidden.dataType(), true);
    return columns;
  }

  private Scan pythonScan(StructType schema, Map<String, String> allOptions) {
    SupportsRead inner = (SupportsRead) table.python.dataSource().getTable(schema, new Transform[0], allOptions);
    return inner.newScanBuilder(new CaseInsensitiveStringMap(allOptions)).build();
  }

  private PythonPartitions pythonPartitions() {
    return table.python.partitions(plan().get("read").asText());
  }

  @Override
  public InputPartition[] planInputPartitions() {
    boolean isKeyGrouped = isKeyGrouped();
    List<InputPartition> partitions = new ArrayList<>();
    for (JsonNode group : plan().get("native")) {
      partitions.add(withBucket(LakeFilePartition.of(partitions.size(), group.get("files")), group, isKeyGrouped));
    }
    JsonNode pythonGroups = plan().get("hot");
    if (pythonGroups.size() > 0) {
      InputPartition[] pythonPartitions = pythonPartitions().partitions;
      if (pythonPartitions.length != pythonGroups.size()) {
        throw new IllegalStateException("planned " + pythonGroups.size() + " groups, found " + pythonPartitions.length);
      }
      for (int i = 0; i < pythonPartitions.length; i++) {
        partitions.add(withBucket(pythonPartitions[i], pythonGroups.get(i), isKeyGrouped));
      }
    }
    return partitions.toArray(new InputPartition[0]);
  }

  private static InputPartition withBucket(InputPartition partition, JsonNode group, boolean isKeyGrouped) {
    return isKeyGrouped ? new BucketPartition(partition, group.get("bucket").asInt()) : partition;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    if (readerFactory != null) return readerFactory;
    boolean hasPythonGroups = plan().get("hot").size() > 0;
    List<JsonNode> files = new ArrayList<>();
    for (JsonNode group : plan().get("native")) group.get("files").forEach(files::add);
    ParquetReaderFactories parquet = files.isEmpty() ? null : parquetReaders(files);
    readerFactory =
        new HybridReaderFactory(hasPythonGroups ? pythonPartitions().readerFactory : null, parquet, required.length());
    return readerFactory;
  }

  /** Returns whether Spark may push more predicates when the query runs. */
  boolean mayReplan() {
    return false;
  }

  private ParquetReaderFactories parquetReaders(List<JsonNode> files) {
    Map<String, String> readerOptions = new HashMap<>();
    readerOptions.put("mergeSchema", "false");
    readerOptions.put("ignoreMissingFiles", "false");
    readerOptions.put("ignoreCorruptFiles", "false");
    readerOptions.put("datetimeRebaseMode", "CORRECTED");
    readerOptions.put("int96RebaseMode", "CORRECTED");
    // a flipped bit is an error instead of another value
    readerOptions.put("parquet.page.verify-checksum.enabled", "true");
    HadoopFileSystems.configure(plan().get("file_systems"), table.python, HadoopFileSystems.hadoopConfiguration(),
        readerOptions::put);
    return ParquetReaderFactories.of(table.schema, required, predicates, readerOptions, files, mayReplan());
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return TaskCounters.scanMetrics();
  }

  /** Reports what the plan skipped, before tasks run. */
  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    long skipped = plan == null ? 0 : plan.path("skipped").asLong();
    return new CustomTaskMetric[] {new TaskMetricValue(SegmentsSkipped.NAME, skipped)};
  }

  /** Equal scans read the same rows, so that Spark reuses their exchanges. */
  @Override
  public boolean equals(Object other) {
    return other != null
        && getClass() == other.getClass()
        && table.id().equals(((TableScan) other).table.id())
        && newPlanRequest().equals(((TableScan) other).newPlanRequest());
  }

  @Override
  public int hashCode() {
    return Objects.hash(table.id(), Arrays.hashCode(required.fieldNames()));
  }
}
