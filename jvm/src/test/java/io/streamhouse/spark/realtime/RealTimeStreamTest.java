package io.streamhouse.spark.realtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.StreamhouseCatalog;
import io.streamhouse.spark.rpc.Protocol;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.rpc.RecordingRpc;
import io.streamhouse.spark.scan.ReadableTable;
import io.streamhouse.spark.stream.PushdownStream;
import io.streamhouse.spark.stream.TableStreamOffset;
import io.streamhouse.spark.util.Json;
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

public class RealTimeStreamTest {
  public static final Set<String> OPERATIONS = Set.of("begin_real_time", "plan_real_time_batch", "finish_real_time");
  private static final StructType SCHEMA = new StructType().add("id", DataTypes.LongType);
  private static final String START = "{\"offsets\":{\"0\":0,\"1\":0,\"2\":0}}";
  private static final String PLANNED =
      "{\"offsets\":{\"0\":1,\"1\":2,\"2\":3},\"history\":[7,\"a\"],\"truncation\":5}";

  private static final String FOLLOWED =
      "{\"offset\":"
          + PLANNED
          + ",\"initial_schema\":\"columns\",\"tasks\":[{\"next\":1},{\"next\":1}],\"file_systems\":[]}";

  private final RecordingRpc calls =
      new RecordingRpc()
          .answer("begin_real_time", "{\"offset\":" + START + ",\"initial_schema\":\"columns\"}")
          .answer("plan_real_time_batch", FOLLOWED);

  private RealTimeStream stream(Map<String, String> options) {
    StreamhouseCatalog catalog =
        new StreamhouseCatalog() {
          @Override
          public PythonRpc python() {
            return calls;
          }
        };
    ObjectNode loaded = Json.object().put("name", "sales.orders").put("snapshot", "p").put("schema", SCHEMA.json());
    Identifier name = Identifier.of(new String[] {"sales"}, "orders");
    return new RealTimeStream(new ReadableTable(catalog, name, loaded), options, SCHEMA, 4, new Configuration(false));
  }

  private static TailOffsets reached(int bucket, long offset, Long record) {
    return new TailOffsets(new TreeMap<>(Map.of(bucket, offset)), record, record == null ? null : "at" + record);
  }

  @Test
  void aBatchHasTheOffsetsAndTasksThatPythonPlans() {
    RealTimeStream stream = stream(Map.of());
    Offset start = stream.initialOffset();
    assertEquals(START, start.json());
    assertEquals(Protocol.arguments("begin_real_time"), calls.argumentNames.get("begin_real_time"));
    assertEquals(start, stream.latestOffset(start, stream.getDefaultReadLimit()));
    InputPartition[] tasks = stream.planInputPartitions(stream.deserializeOffset(start.json()));
    assertEquals(2, tasks.length);
    assertEquals("{\"next\":1}", ((TailedBuckets) tasks[0]).task);
    assertEquals(Protocol.arguments("plan_real_time_batch"), calls.argumentNames.get("plan_real_time_batch"));
    assertEquals("columns", calls.last.get("initial_schema").asText());
  }

  @Test
  void theMergedOffsetHasTheOldestRecordOfTheTasks() {
    RealTimeStream stream = stream(Map.of());
    stream.planInputPartitions(stream.deserializeOffset(START));
    PartitionOffset[] reachedOffsets = {reached(0, 10, 9L), reached(2, 4, 8L)};
    assertEquals(
        "{\"offsets\":{\"0\":10,\"1\":2,\"2\":4},\"history\":[8,\"at8\"],\"truncation\":5}",
        stream.mergeOffsets(reachedOffsets).json());
    assertEquals(PLANNED, stream.mergeOffsets(new PartitionOffset[0]).json());
    assertEquals(PLANNED, stream.mergeOffsets(new PartitionOffset[] {reached(0, 1, null), reached(1, 2, 9L)}).json());
  }

  @Test
  void aPushdownStreamEqualsItsStream() {
    RealTimeStream stream = stream(Map.of());
    PushdownStream pruned = new PushdownStream(stream, new StructType(), List.of());
    assertEquals(2, pruned.planInputPartitions(stream.deserializeOffset(START)).length);
    assertEquals(0, calls.last.get("columns").size());
    assertEquals(Protocol.arguments("plan_real_time_batch"), calls.argumentNames.get("plan_real_time_batch"));
    PartitionOffset[] reachedOffsets = {reached(0, 10, 9L)};
    assertEquals(10, Json.parse(pruned.mergeOffsets(reachedOffsets).json()).get("offsets").get("0").asInt());
    assertEquals(stream, pruned);
    assertEquals(pruned, stream);
    assertEquals(stream.hashCode(), pruned.hashCode());
    assertNotEquals(stream, stream(Map.of()));
    assertEquals(Scan.ColumnarSupportMode.UNSUPPORTED, pruned.columnarSupportMode());
    stream.planInputPartitions(stream.deserializeOffset(START));
    assertEquals("[\"id\"]", calls.last.get("columns").toString());
  }

  @Test
  void onlyAConsumersOffsetIsCommitted() {
    stream(Map.of()).commit(new TableStreamOffset(START));
    assertFalse(calls.argumentNames.containsKey("finish_real_time"));
    stream(Map.of("consumerID", "c")).commit(new TableStreamOffset(START));
    assertEquals(Protocol.arguments("finish_real_time"), calls.argumentNames.get("finish_real_time"));
    assertEquals(Json.parse(START), calls.last.get("end"));
  }
}
