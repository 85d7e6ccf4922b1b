package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * A stream of the changes of a table. A batch ends between two commits, and shows later times than all before it:
 * Spark takes the times for event times, and drops what is late without a word.
 */
final class ChangesStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final LoadedTable table;
  private final ObjectNode scan;
  private final int columns;
  private Long until;
  private PartitionReaderFactory hot;

  /** Takes the scan's request of a plan. */
  ChangesStream(LoadedTable table, ObjectNode scan) {
    this.table = table;
    this.scan = scan;
    this.columns = scan.get("columns").size();
  }

  private JsonNode ask(ChangesOffset start) {
    ObjectNode arguments = JsonTree.object().put("pin", table.loaded.get("pin").asText()).put("until", until);
    arguments.set("start", start == null ? null : start.node());
    return table.python.ask("end_of_changes", arguments);
  }

  /** The stream ends with what is there now, so that Spark knows when all of it was shown. */
  @Override
  public void prepareForTriggerAvailableNow() {
    until = ask(null).get("newest").asLong();
  }

  @Override
  public Offset initialOffset() {
    return ChangesOffset.before(table.id(), table.loaded.get("first").asLong());
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    JsonNode found = ask((ChangesOffset) start).get("offset");
    return found.isNull() ? start : new ChangesOffset(found.toString());
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
    return new ChangesOffset(json);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    ObjectNode arguments = scan.deepCopy();
    arguments.set("start", ((ChangesOffset) start).node());
    arguments.set("end", ((ChangesOffset) end).node());
    JsonNode plan = table.python.ask("plan_batch_of_changes", arguments);
    if (plan.get("hot").size() == 0) return new InputPartition[0];
    PythonWork work = table.python.work(plan.get("read").asText());
    hot = work.reader;
    return work.partitions;
  }

  /** The reader of one batch reads those of all: they have the same columns. */
  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new MixedReaderFactory(hot, null, columns);
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {}
}
