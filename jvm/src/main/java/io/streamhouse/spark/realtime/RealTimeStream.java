package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.LoadedTable;
import io.streamhouse.spark.rpc.HadoopFileSystems;
import io.streamhouse.spark.stream.PushdownStream;
import io.streamhouse.spark.stream.TableStreamOffset;
import io.streamhouse.spark.stream.UnprunedStream;
import io.streamhouse.spark.util.Json;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan.ColumnarSupportMode;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.types.StructType;

/** The stream of a table in real-time mode. Python plans at the start of each batch what its tasks follow. */
public final class RealTimeStream implements UnprunedStream, SupportsAdmissionControl, SupportsRealTimeMode {
  private final LoadedTable table;
  private final Map<String, String> options;
  private final StructType schema;
  private final int parallelism;
  private final Configuration hadoopConfiguration;
  private final String id = UUID.randomUUID().toString();
  private int batchCount;
  private Configuration logConfiguration;
  private JsonNode initialSchema = Json.parse("null");
  private ObjectNode plannedOffset;

  /** Creates a stream. {@code parallelism} is the number of tasks that run concurrently. */
  public RealTimeStream(
      LoadedTable table, Map<String, String> options, StructType schema, int parallelism,
      Configuration hadoopConfiguration) {
    this.parallelism = parallelism;
    this.hadoopConfiguration = hadoopConfiguration;
    this.table = table;
    this.options = options;
    this.schema = schema;
  }

  private ObjectNode newRequest() {
    ObjectNode request = Json.object().put("snapshot", table.metadata.get("snapshot").asText());
    request.set("options", Json.object(options));
    HadoopFileSystems.addNativeSchemes(request, hadoopConfiguration);
    return request;
  }

  @Override
  public Offset initialOffset() {
    JsonNode answer = table.python.call("begin_real_time", newRequest());
    initialSchema = answer.get("initial_schema");
    return new TableStreamOffset(answer.get("offset").toString());
  }

  /** Returns {@code start}: in real-time mode Spark requests an end offset and ignores it. */
  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    return start;
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark must pass the start offset");
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return ReadLimit.allAvailable();
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new TableStreamOffset(json);
  }

  @Override
  public String tableName() {
    return table.tableName();
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public ColumnarSupportMode columnarSupport() {
    return ColumnarSupportMode.UNSUPPORTED;
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    ObjectNode requirement = Json.object();
    ArrayNode columns = requirement.putArray("columns");
    for (String column : schema.fieldNames()) columns.add(column);
    return planPartitions(start, null, requirement);
  }

  /**
   * Plans a batch with the required columns. Filters do not prune segments here, since Spark filters each row as it
   * arrives.
   */
  @Override
  public InputPartition[] planPartitions(Offset start, Offset end, ObjectNode requirement) {
    int needed = RealTimeMode.requiredTasks();
    ObjectNode request = newRequest().put("parallelism", parallelism).put("tasks", needed);
    request.put("taken", RealTimeMode.tasksOfEarlierQueries(Math.max(1, needed)));
    request.set("start", Json.parse(start.json()));
    request.set("initial_schema", initialSchema);
    request.set("columns", requirement.get("columns"));
    JsonNode answer = table.python.call("plan_real_time_batch", request);
    initialSchema = answer.get("initial_schema");
    plannedOffset = (ObjectNode) answer.get("offset");
    logConfiguration = logConfiguration(answer);
    batchCount++;
    List<InputPartition> tasks = new ArrayList<>();
    for (JsonNode task : answer.get("tasks")) tasks.add(new TailedBuckets(task.toString()));
    return tasks.toArray(new InputPartition[0]);
  }

  /** Returns the configuration with which tasks access the log, or null for a log on the local disk. */
  private Configuration logConfiguration(JsonNode answer) {
    if (answer.get("tasks").get(0).path("folder").asText("/").startsWith("/")) return null;
    Configuration configuration = new Configuration(hadoopConfiguration);
    HadoopFileSystems.configure(answer.get("file_systems"), table.python, hadoopConfiguration, configuration::set);
    return configuration;
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    throw new UnsupportedOperationException("a real-time batch has no end offset");
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return createReaderFactory(schema);
  }

  @Override
  public PartitionReaderFactory createReaderFactory(StructType required) {
    return new LogTailReaderFactory(required, id + " " + batchCount, logConfiguration);
  }

  /**
   * Returns the offset after the rows that the tasks have read. Its history names the oldest of their last records,
   * since a later deletion is new to some of the tasks.
   */
  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    ObjectNode merged = plannedOffset.deepCopy();
    ObjectNode ends = (ObjectNode) merged.get("offsets");
    TailOffsets oldest = null;
    for (PartitionOffset partitionOffset : offsets) {
      TailOffsets tailOffsets = (TailOffsets) partitionOffset;
      tailOffsets.offsets.forEach((bucket, offset) -> ends.put(Integer.toString(bucket), offset));
      if (oldest == null || tailOffsets.record == null
          || (oldest.record != null && tailOffsets.record < oldest.record)) {
        oldest = tailOffsets;
      }
    }
    if (oldest != null && oldest.record != null) {
      merged.putArray("history").add(oldest.record).add(oldest.attempt);
    }
    return new TableStreamOffset(merged.toString());
  }

  @Override
  public void commit(Offset end) {
    if (options.keySet().stream().noneMatch("consumerId"::equalsIgnoreCase)) return;
    ObjectNode request = newRequest();
    request.set("end", Json.parse(end.json()));
    table.python.call("finish_real_time", request);
  }

  @Override
  public void stop() {}

  /** Equals the pushdown stream of a batch, because Spark finds the scan of a batch by its source. */
  @Override
  public boolean equals(Object other) {
    return this == other || other instanceof PushdownStream && ((PushdownStream) other).unpruned == this;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }
}
