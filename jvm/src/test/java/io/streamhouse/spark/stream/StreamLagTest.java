package io.streamhouse.spark.stream;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingSourceOffset;
import org.junit.jupiter.api.Test;

/** The lag of a stream, and that Spark sees the offset as Python wrote it. */
class StreamLagTest {
  private static final String NEWEST = "{\"version\": 1, \"offsets\": {\"0\": 9, \"1\": 5}}";
  private static final String TOLD =
      NEWEST.substring(0, NEWEST.length() - 1)
          + ", \"__streamhouse_lag\": {\"offsets\": {\"0\": 7}, \"ms\": 40}}";

  private static Map<String, String> metrics(String reportedLag, String read) {
    return new StreamLag(reportedLag).metrics(new PythonStreamingSourceOffset("{\"offsets\": " + read + "}"));
  }

  @Test
  void theOffsetKeepsPythonsEncoding() {
    assertEquals(NEWEST, new StreamLag(TOLD).latestOffset);
    assertEquals(NEWEST, new StreamLag(NEWEST).latestOffset);
  }

  @Test
  void theLagInRowsSumsUpAllBuckets() {
    Map<String, String> metrics = metrics(NEWEST, "{\"0\": 10, \"1\": 2}");
    assertEquals(
        Map.of("buckets", "2", "newestOffsets", "{\"0\":9,\"1\":5}", "lagRows", "3"), metrics);
  }

  @Test
  void theLagInTimeIsReportedForItsOffsetsOnly() {
    assertEquals("40", metrics(TOLD, "{\"0\": 7}").get("lagMs"));
    assertEquals(null, metrics(TOLD, "{\"0\": 8}").get("lagMs"));
  }
}
