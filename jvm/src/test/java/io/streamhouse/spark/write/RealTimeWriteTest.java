package io.streamhouse.spark.write;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.StreamhouseCatalog;
import io.streamhouse.spark.metrics.MetricsCommitMessage;
import io.streamhouse.spark.rpc.Protocol;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.rpc.RecordingRpc;
import io.streamhouse.spark.util.Json;
import java.util.Map;
import java.util.TreeSet;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.junit.jupiter.api.Test;

/** The table is told the end of a batch before Spark records it. */
class RealTimeWriteTest {
  private static final StructType SCHEMA = new StructType().add("id", "bigint");

  private final RecordingRpc calls = new RecordingRpc().answer("end_real_time_write", "{}");
  private final StreamhouseCatalog catalog =
      new StreamhouseCatalog() {
        @Override
        public PythonRpc python() {
          return calls;
        }
      };

  private static final class Info implements LogicalWriteInfo {
    @Override
    public CaseInsensitiveStringMap options() {
      return new CaseInsensitiveStringMap(Map.of("txnAppId", "app"));
    }

    @Override
    public String queryId() {
      return "the query";
    }

    @Override
    public StructType schema() {
      return SCHEMA;
    }
  }

  private WritableTable table(String name) {
    ObjectNode loaded = Json.object().put("name", "sales." + name).put("uuid", "id of " + name);
    loaded.put("schema", SCHEMA.json()).put("streams_rows", true).put("table", "sales." + name);
    return new WritableTable(catalog, Identifier.of(new String[] {"sales"}, name), loaded);
  }

  @Test
  void commitEndsTheBatchOfTheTable() {
    WritableTable target = table("target");
    RealTimeWrite write = new RealTimeWrite(target, new Info(), table("source"));
    assertFalse(write.useCommitCoordinator());
    write.abort(3, new WriterCommitMessage[0]);
    assertFalse(calls.argumentNames.containsKey("end_real_time_write"));
    WriterCommitMessage[] messages = {
      new MetricsCommitMessage(null, Map.of("recordsWritten", 2L, "commits", 1L)),
      new MetricsCommitMessage(null, Map.of("commits", 4L)),
    };
    write.commit(3, messages);
    assertEquals(Protocol.arguments("end_real_time_write"),
        new TreeSet<>(calls.argumentNames.get("end_real_time_write")));
    assertEquals("the query", calls.last.get("query").asText());
    assertEquals("id of source", calls.last.get("source").asText());
    assertEquals(Map.of("recordsWritten", "2", "commits", "5"), target.metrics());
  }

  @Test
  void aFailedCommitReportsNoMetrics() {
    calls.refuse("end_real_time_write", "COMMIT_CONFLICT");
    WritableTable target = table("target");
    RealTimeWrite write = new RealTimeWrite(target, new Info(), table("source"));
    WriterCommitMessage[] messages = {new MetricsCommitMessage(null, Map.of("commits", 1L))};
    assertThrows(AnalysisException.class, () -> write.commit(3, messages));
    assertEquals(Map.of(), target.metrics());
  }
}
