package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.Test;

class RealTimeStreamTest {
  static final Set<String> OPERATIONS = Set.of("begin_real_time", "follow_log", "finish_real_time");
  private static final StructType SCHEMA = new StructType().add("id", DataTypes.LongType);
  private static final String START = "{\"offsets\":{\"0\":0,\"1\":0,\"2\":0}}";
  private static final String PLANNED =
      "{\"offsets\":{\"0\":1,\"1\":2,\"2\":3},\"history\":[7,\"a\"],\"truncation\":5}";

  private static final String FOLLOWED =
      "{\"offset\":" + PLANNED + ",\"begun\":\"columns\",\"tasks\":[{\"next\":1},{\"next\":1}],\"file_systems\":[]}";

  private final RecordedCalls calls =
      new RecordedCalls()
          .answer("begin_real_time", "{\"offset\":" + START + ",\"begun\":\"columns\"}")
          .answer("follow_log", FOLLOWED);

  private RealTimeStream stream(Map<String, String> options) {
    StreamhouseCatalog catalog =
        new StreamhouseCatalog() {
          @Override
          public PythonCalls python() {
            return calls;
          }
        };
    ObjectNode loaded = JsonTree.object().put("name", "sales.orders").put("pin", "p").put("schema", SCHEMA.json());
    Identifier name = Identifier.of(new String[] {"sales"}, "orders");
    return new RealTimeStream(new ReadableTable(catalog, name, loaded), options, SCHEMA, 4, new Configuration(false));
  }

  private static FollowedOffsets reached(int bucket, long offset, Long record) {
    return new FollowedOffsets(new TreeMap<>(Map.of(bucket, offset)), record, record == null ? null : "at" + record);
  }

  @Test
  void aBatchBeginsWherePythonSaysAndItsTasksAreThose() {
    RealTimeStream stream = stream(Map.of());
    Offset start = stream.initialOffset();
    assertEquals(START, start.json());
    assertEquals(Protocol.arguments("begin_real_time"), calls.given.get("begin_real_time"));
    assertEquals(start, stream.latestOffset(start, stream.getDefaultReadLimit()));
    InputPartition[] tasks = stream.planInputPartitions(stream.deserializeOffset(start.json()));
    assertEquals(2, tasks.length);
    assertEquals("{\"next\":1}", ((FollowedBuckets) tasks[0]).described);
    assertEquals(Protocol.arguments("follow_log"), calls.given.get("follow_log"));
    assertEquals("columns", calls.last.get("begun").asText());
  }

  @Test
  void thePositionBehindABatchIsWhereItsTasksAreAndKnowsTheOldestOfTheirRecords() {
    RealTimeStream stream = stream(Map.of());
    stream.planInputPartitions(stream.deserializeOffset(START));
    PartitionOffset[] found = {reached(0, 10, 9L), reached(2, 4, 8L)};
    assertEquals(
        "{\"offsets\":{\"0\":10,\"1\":2,\"2\":4},\"history\":[8,\"at8\"],\"truncation\":5}",
        stream.mergeOffsets(found).json());
    assertEquals(PLANNED, stream.mergeOffsets(new PartitionOffset[0]).json());
    assertEquals(PLANNED, stream.mergeOffsets(new PartitionOffset[] {reached(0, 1, null), reached(1, 2, 9L)}).json());
  }

  @Test
  void aBatchOfFewerColumnsIsOneOfTheStream() {
    RealTimeStream stream = stream(Map.of());
    PrunedStream pruned = new PrunedStream(stream, new StructType(), List.of());
    assertEquals(2, pruned.planInputPartitions(stream.deserializeOffset(START)).length);
    assertEquals(0, calls.last.get("columns").size());
    assertEquals(Protocol.arguments("follow_log"), calls.given.get("follow_log"));
    PartitionOffset[] found = {reached(0, 10, 9L)};
    assertEquals(10, JsonTree.parse(pruned.mergeOffsets(found).json()).get("offsets").get("0").asInt());
    assertEquals(stream, pruned);
    assertEquals(pruned, stream);
    assertEquals(stream.hashCode(), pruned.hashCode());
    assertNotEquals(stream, stream(Map.of()));
    assertEquals(Scan.ColumnarSupportMode.UNSUPPORTED, pruned.columnarSupportMode());
    stream.planInputPartitions(stream.deserializeOffset(START));
    assertEquals("[\"id\"]", calls.last.get("columns").toString());
  }

  @Test
  void onlyAConsumersPositionIsTold() {
    stream(Map.of()).commit(new StreamPosition(START));
    assertFalse(calls.given.containsKey("finish_real_time"));
    stream(Map.of("consumerID", "c")).commit(new StreamPosition(START));
    assertEquals(Protocol.arguments("finish_real_time"), calls.given.get("finish_real_time"));
    assertEquals(JsonTree.parse(START), calls.last.get("end"));
  }
}
