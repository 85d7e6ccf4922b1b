package io.streamhouse.spark.stream;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.rpc.InternalOptions;
import io.streamhouse.spark.util.Json;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.streaming.Offset;

/** The latest offset of a table when the stream polled it, and how far the stream is behind it. */
final class StreamLag {
  private static final String BUCKETS = "buckets";
  private static final String NEWEST = "newestOffsets";
  private static final String ROWS = "lagRows";
  private static final String TIME = "lagMs";

  /** The latest offset as Python encoded it. */
  final String latestOffset;

  private final JsonNode reportedLag;

  /** Parses an offset that Python reports, to which it appends the lag in time. */
  StreamLag(String reported) {
    int end = reported.lastIndexOf(", \"" + InternalOptions.LAG + "\":");
    this.latestOffset = end < 0 ? reported : reported.substring(0, end) + "}";
    this.reportedLag = end < 0 ? Json.object() : Json.parse(reported).get(InternalOptions.LAG);
  }

  /** Returns the metrics of the stream's progress after everything before {@code read} was read. */
  Map<String, String> metrics(Offset read) {
    JsonNode offsets = Json.parse(read.json()).get("offsets");
    JsonNode ends = Json.parse(latestOffset).get("offsets");
    long rows = 0;
    for (Iterator<Map.Entry<String, JsonNode>> buckets = ends.fields(); buckets.hasNext(); ) {
      Map.Entry<String, JsonNode> bucket = buckets.next();
      rows += Math.max(0, bucket.getValue().asLong() - offsets.path(bucket.getKey()).asLong());
    }
    Map<String, String> metrics = new LinkedHashMap<>();
    metrics.put(BUCKETS, String.valueOf(ends.size()));
    metrics.put(NEWEST, ends.toString());
    metrics.put(ROWS, String.valueOf(rows));
    boolean isExact = reportedLag.path("ms").isNumber() && reportedLag.get("offsets").equals(offsets);
    if (isExact) metrics.put(TIME, reportedLag.get("ms").asText());
    return metrics;
  }
}
