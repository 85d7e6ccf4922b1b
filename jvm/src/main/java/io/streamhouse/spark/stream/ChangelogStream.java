package io.streamhouse.spark.stream;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.LoadedTable;
import io.streamhouse.spark.read.HybridReaderFactory;
import io.streamhouse.spark.rpc.PythonPartitions;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * A stream of the changes of a table. A batch ends between two commits and has later commit times than all batches
 * before it. Spark uses these as event times and silently drops late rows.
 */
public final class ChangelogStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final LoadedTable table;
  private final ObjectNode scan;
  private final int columns;
  private Long endBound;
  private PartitionReaderFactory pythonFactory;

  /** Creates a stream from the plan request of a scan. */
  public ChangelogStream(LoadedTable table, ObjectNode scan) {
    this.table = table;
    this.scan = scan;
    this.columns = scan.get("columns").size();
  }

  private JsonNode requestEnd(Offset start) {
    ObjectNode arguments = Json.object().put("snapshot", table.metadata.get("snapshot").asText())
        .put("until", endBound);
    arguments.set("start", start == null ? null : Json.parse(start.json()));
    return table.python.call("end_of_changes", arguments);
  }

  /** Fixes the end of the stream at the latest commit, so that Spark knows when it has read everything. */
  @Override
  public void prepareForTriggerAvailableNow() {
    endBound = requestEnd(null).get("newest").asLong();
  }

  @Override
  public Offset initialOffset() {
    ObjectNode offset = Json.object().put("uuid", table.id());
    offset.put("commit", Math.max(0, table.metadata.get("first").asLong() - 1)).putNull("attempt").putNull("time_us");
    return new TableStreamOffset(offset.toString());
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    JsonNode offset = requestEnd(start).get("offset");
    return offset.isNull() ? start : new TableStreamOffset(offset.toString());
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
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    ObjectNode arguments = scan.deepCopy();
    arguments.set("start", Json.parse(start.json()));
    arguments.set("end", Json.parse(end.json()));
    JsonNode plan = table.python.call("plan_batch_of_changes", arguments);
    if (plan.get("hot").size() == 0) return new InputPartition[0];
    PythonPartitions pythonPartitions = table.python.partitions(plan.get("read").asText());
    pythonFactory = pythonPartitions.readerFactory;
    return pythonPartitions.partitions;
  }

  /** Returns the factory of the last planned batch, which reads all batches, since they have the same columns. */
  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new HybridReaderFactory(pythonFactory, null, columns);
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {}
}
