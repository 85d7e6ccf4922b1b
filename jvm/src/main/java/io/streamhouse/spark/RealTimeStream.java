package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.types.StructType;

/** A stream of a table in real-time mode: Python says at the beginning of each batch what its tasks follow. */
final class RealTimeStream implements MicroBatchStream, SupportsAdmissionControl, SupportsRealTimeMode {
  private final ReadableTable table;
  private final Map<String, String> options;
  private final StructType schema;
  private final int slots;
  private JsonNode begun = JsonTree.parse("null");
  private ObjectNode position;

  /** Takes the number of tasks that run at once. */
  RealTimeStream(ReadableTable table, Map<String, String> options, StructType schema, int slots) {
    this.slots = slots;
    this.table = table;
    this.options = options;
    this.schema = schema;
  }

  private ObjectNode request() {
    ObjectNode request = JsonTree.object().put("pin", table.loaded.get("pin").asText());
    request.set("options", JsonTree.object(options));
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
  public InputPartition[] planInputPartitions(Offset start) {
    int needed = RealTimeMode.tasks();
    ObjectNode request = request().put("parallelism", slots).put("tasks", needed);
    request.put("taken", RealTimeMode.taken(Math.max(1, needed)));
    request.set("start", JsonTree.parse(start.json()));
    request.set("begun", begun);
    ArrayNode columns = request.putArray("columns");
    for (String column : schema.fieldNames()) columns.add(column);
    JsonNode found = table.python.ask("follow_log", request);
    begun = found.get("begun");
    position = (ObjectNode) found.get("offset");
    List<InputPartition> tasks = new ArrayList<>();
    for (JsonNode task : found.get("tasks")) tasks.add(new FollowedBuckets(task.toString()));
    return tasks.toArray(new InputPartition[0]);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    throw new UnsupportedOperationException("a batch in real-time mode has no end when it begins");
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new FollowingReaderFactory(schema);
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
}
