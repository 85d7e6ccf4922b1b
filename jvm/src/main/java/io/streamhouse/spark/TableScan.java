package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.function.BooleanSupplier;
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

/** One read of a pinned table: files for Spark's own Parquet reader, and groups that Python reads as Arrow batches. */
class TableScan implements Scan, Batch, SupportsReportStatistics, SupportsReportPartitioning {
  final ReadableTable table;
  final StructType required;
  final List<Predicate> predicates;
  private final Map<String, String> options;
  private final int limit;
  private final BooleanSupplier readsOnce;
  JsonNode plan;
  MixedReaderFactory readers;
  boolean staysKeyed;
  private boolean streaming;

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

  private ObjectNode request() {
    ObjectNode request = JsonTree.object().put("pin", table.loaded.get("pin").asText());
    ArrayNode columns = request.putArray("columns");
    for (String column : required.fieldNames()) columns.add(column);
    ArrayNode filters = request.putArray("filters");
    for (Predicate predicate : predicates) filters.add(ExpressionJson.of(predicate));
    request.put("limit", limit < 0 ? null : (Integer) limit);
    if (staysKeyed) request.put("stays_keyed", true);
    request.set("options", JsonTree.object(options));
    request.put("parallelism", Parallelism.ofSession());
    request.put("drops_rows", ParquetReaders.readBatches(required));
    FileSystems.describe(request, FileSystems.session());
    if (readsOnce != null) request.put("reads_once", readsOnce.getAsBoolean());
    return request;
  }

  private JsonNode plan() {
    if (plan == null) plan = table.python.ask("plan", request());
    return plan;
  }

  @Override
  public StructType readSchema() {
    return required;
  }

  @Override
  public String description() {
    String way = plan == null ? "" : plan.path("lake_way").asText();
    return "streamhouse " + table.tableName() + " " + Arrays.toString(required.fieldNames()) + ", filters "
        + predicates + (limit < 0 ? "" : ", limit " + limit) + way;
  }

  @Override
  public Statistics estimateStatistics() {
    JsonNode known = streaming ? table.loaded : plan();
    OptionalLong rows = number(known.path("rows"));
    OptionalLong bytes = number(known.path("bytes"));
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

  private static OptionalLong number(JsonNode node) {
    return node.isNumber() ? OptionalLong.of(node.asLong()) : OptionalLong.empty();
  }

  final boolean keyed() {
    return plan().get("keyed").asBoolean();
  }

  @Override
  public Partitioning outputPartitioning() {
    int groups = plan().get("native").size() + plan().get("hot").size();
    if (!keyed()) return new UnknownPartitioning(groups);
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
    streaming = true;
    if (table.hasKind("changes")) return new ChangesStream(table, request());
    table.checkOptions("readStream", options);
    if (Boolean.TRUE.equals(RealTimeMode.isRealTime(Thread.currentThread()))) {
      return new RealTimeStream(table, options, streamed(), Parallelism.ofSession(), FileSystems.session());
    }
    Map<String, String> all = table.python.options(options);
    all.put("path", table.tableName());
    all.put(InternalOptions.UUID, table.id());
    all.put(InternalOptions.NEED, "true");
    StructType columns = streamed();
    MicroBatchStream rows = read(columns, all).toMicroBatchStream(checkpoint);
    return TableStream.of(table.tableName(), table.python, columns, rows);
  }

  /**
   * The columns of a stream. Spark asks it for none by name: it adds the hidden columns to the output behind the others
   * if a query selects one, and finds them by their positions. So they are always there; Spark drops unused ones.
   */
  private StructType streamed() {
    StructType found = table.schema;
    for (MetadataColumn hidden : table.metadataColumns()) found = found.add(hidden.name(), hidden.dataType(), true);
    return found;
  }

  private Scan read(StructType schema, Map<String, String> all) {
    SupportsRead inner = (SupportsRead) table.python.source().getTable(schema, new Transform[0], all);
    return inner.newScanBuilder(new CaseInsensitiveStringMap(all)).build();
  }

  private PythonWork hot() {
    return table.python.work(plan().get("read").asText());
  }

  @Override
  public InputPartition[] planInputPartitions() {
    boolean keyed = keyed();
    List<InputPartition> found = new ArrayList<>();
    for (JsonNode group : plan().get("native")) {
      found.add(withKey(LakeFiles.of(found.size(), group.get("files")), group, keyed));
    }
    JsonNode hotGroups = plan().get("hot");
    if (hotGroups.size() > 0) {
      InputPartition[] hot = hot().partitions;
      if (hot.length != hotGroups.size()) {
        throw new IllegalStateException("planned " + hotGroups.size() + " groups, found " + hot.length);
      }
      for (int i = 0; i < hot.length; i++) found.add(withKey(hot[i], hotGroups.get(i), keyed));
    }
    return found.toArray(new InputPartition[0]);
  }

  private static InputPartition withKey(InputPartition partition, JsonNode group, boolean keyed) {
    return keyed ? new BucketPartition(partition, group.get("bucket").asInt()) : partition;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    if (readers != null) return readers;
    boolean hasHot = plan().get("hot").size() > 0;
    List<JsonNode> files = new ArrayList<>();
    for (JsonNode group : plan().get("native")) group.get("files").forEach(files::add);
    ParquetReaders parquet = files.isEmpty() ? null : parquetReaders(files);
    readers = new MixedReaderFactory(hasHot ? hot().reader : null, parquet, required.length());
    return readers;
  }

  /** Whether the rows that are wanted may be told once more, when the query runs. */
  boolean mayChange() {
    return false;
  }

  private ParquetReaders parquetReaders(List<JsonNode> files) {
    Map<String, String> strict = new HashMap<>();
    strict.put("paths", "[]");
    strict.put("__globPaths__", "false");
    strict.put("recursiveFileLookup", "true");
    strict.put("mergeSchema", "false");
    strict.put("ignoreMissingFiles", "false");
    strict.put("ignoreCorruptFiles", "false");
    strict.put("datetimeRebaseMode", "CORRECTED");
    strict.put("int96RebaseMode", "CORRECTED");
    strict.put("parquet.page.verify-checksum.enabled", "true"); // a flipped bit is an error, not another value
    FileSystems.configure(plan().get("file_systems"), table.python, FileSystems.session(), strict::put);
    return ParquetReaders.of(table.schema, required, predicates, strict, files, mayChange());
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return ScanCounts.metrics();
  }

  /** What is known of a batch read before its tasks run. */
  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    long skipped = plan == null ? 0 : plan.path("skipped").asLong();
    return new CustomTaskMetric[] {new TaskCount(SegmentsSkipped.NAME, skipped)};
  }

  /** Equal scans read the same rows: Spark reuses their exchanges. */
  @Override
  public boolean equals(Object other) {
    return other != null
        && getClass() == other.getClass()
        && table.id().equals(((TableScan) other).table.id())
        && request().equals(((TableScan) other).request());
  }

  @Override
  public int hashCode() {
    return Objects.hash(table.id(), Arrays.hashCode(required.fieldNames()));
  }
}
