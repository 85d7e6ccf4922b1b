package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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

/** A stream of a table in real-time mode: Python says at the beginning of each batch what its tasks follow. */
final class RealTimeStream implements WholeStream, SupportsAdmissionControl, SupportsRealTimeMode {
  private final LoadedTable table;
  private final Map<String, String> options;
  private final StructType schema;
  private final int slots;
  private final Configuration hadoop;
  private final String id = UUID.randomUUID().toString();
  private int batches;
  private Configuration settings;
  private JsonNode begun = JsonTree.parse("null");
  private ObjectNode position;

  /** Takes the number of tasks that run at once, and the session's settings of Hadoop. */
  RealTimeStream(
      LoadedTable table, Map<String, String> options, StructType schema, int slots, Configuration hadoop) {
    this.slots = slots;
    this.hadoop = hadoop;
    this.table = table;
    this.options = options;
    this.schema = schema;
  }

  private ObjectNode request() {
    ObjectNode request = JsonTree.object().put("pin", table.loaded.get("pin").asText());
    request.set("options", JsonTree.object(options));
    FileSystems.describe(request, hadoop);
    return request;
  }

  @Override
  public Offset initialOffset() {
    JsonNode found = table.python.ask("begin_real_time", request());
    begun = found.get("begun");
    return new StreamPosition(found.get("offset").toString());
  }

  /** In real-time mode Spark asks for an end and does not use it. */
  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    return start;
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks for the offset behind one that it has");
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return ReadLimit.allAvailable();
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new StreamPosition(json);
  }

  @Override
  public String name() {
    return table.tableName();
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public ColumnarSupportMode columns() {
    return ColumnarSupportMode.UNSUPPORTED;
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    ObjectNode need = JsonTree.object();
    ArrayNode columns = need.putArray("columns");
    for (String column : schema.fieldNames()) columns.add(column);
    return planned(start, null, need);
  }

  /** Of what a query needs the columns count here. Filters choose no segments: Spark looks at each row as it comes. */
  @Override
  public InputPartition[] planned(Offset start, Offset end, ObjectNode need) {
    int needed = RealTimeMode.tasks();
    ObjectNode request = request().put("parallelism", slots).put("tasks", needed);
    request.put("taken", RealTimeMode.taken(Math.max(1, needed)));
    request.set("start", JsonTree.parse(start.json()));
    request.set("begun", begun);
    request.set("columns", need.get("columns"));
    JsonNode found = table.python.ask("follow_log", request);
    begun = found.get("begun");
    position = (ObjectNode) found.get("offset");
    settings = settings(found);
    batches++;
    List<InputPartition> tasks = new ArrayList<>();
    for (JsonNode task : found.get("tasks")) tasks.add(new FollowedBuckets(task.toString()));
    return tasks.toArray(new InputPartition[0]);
  }

  /** The settings by which tasks reach the log; null for one on a disk. */
  private Configuration settings(JsonNode planned) {
    if (planned.get("tasks").get(0).path("folder").asText("/").startsWith("/")) return null;
    Configuration found = new Configuration(hadoop);
    FileSystems.configure(planned.get("file_systems"), table.python, hadoop, found::set);
    return found;
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    throw new UnsupportedOperationException("a batch in real-time mode has no end when it begins");
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return readers(schema);
  }

  @Override
  public PartitionReaderFactory readers(StructType required) {
    return new FollowingReaderFactory(required, id + " " + batches, settings);
  }

  /**
   * The position behind what the tasks of a batch have read. It names the oldest of the records that they know: a
   * deletion behind that one is news to some of them.
   */
  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    ObjectNode merged = position.deepCopy();
    ObjectNode ends = (ObjectNode) merged.get("offsets");
    FollowedOffsets oldest = null;
    for (PartitionOffset each : offsets) {
      FollowedOffsets found = (FollowedOffsets) each;
      found.offsets.forEach((bucket, offset) -> ends.put(Integer.toString(bucket), offset));
      if (oldest == null || found.record == null || (oldest.record != null && found.record < oldest.record)) {
        oldest = found;
      }
    }
    if (oldest != null && oldest.record != null) {
      merged.putArray("history").add(oldest.record).add(oldest.attempt);
    }
    return new StreamPosition(merged.toString());
  }

  @Override
  public void commit(Offset end) {
    if (options.keySet().stream().noneMatch("consumerId"::equalsIgnoreCase)) return;
    ObjectNode request = request();
    request.set("end", JsonTree.parse(end.json()));
    table.python.ask("finish_real_time", request);
  }

  @Override
  public void stop() {}

  /** Spark finds the scan of a batch by the source that it knows, and so takes the one for the other. */
  @Override
  public boolean equals(Object other) {
    return this == other || other instanceof PrunedStream && ((PrunedStream) other).whole == this;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }
}
