package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.streaming.Offset;

/** The newest offset of a table when a stream asked for it, and how far the stream is behind that. */
final class StreamLag {
  private static final String BUCKETS = "buckets";
  private static final String NEWEST = "newestOffsets";
  private static final String ROWS = "lagRows";
  private static final String TIME = "lagMs";

  /** The newest offset in Python's own text. */
  final String newest;

  private final JsonNode told;

  /** Takes the newest offset that Python reports, behind which it tells the time. */
  StreamLag(String reported) {
    int end = reported.lastIndexOf(", \"" + InternalOptions.LAG + "\":");
    this.newest = end < 0 ? reported : reported.substring(0, end) + "}";
    this.told = end < 0 ? JsonTree.object() : JsonTree.parse(reported).get(InternalOptions.LAG);
  }

  /** What a stream's progress shows once everything before an offset is read. */
  Map<String, String> metrics(Offset read) {
    JsonNode offsets = JsonTree.parse(read.json()).get("offsets");
    JsonNode ends = JsonTree.parse(newest).get("offsets");
    long rows = 0;
    for (Iterator<Map.Entry<String, JsonNode>> all = ends.fields(); all.hasNext(); ) {
      Map.Entry<String, JsonNode> bucket = all.next();
      rows += Math.max(0, bucket.getValue().asLong() - offsets.path(bucket.getKey()).asLong());
    }
    Map<String, String> found = new LinkedHashMap<>();
    found.put(BUCKETS, String.valueOf(ends.size()));
    found.put(NEWEST, ends.toString());
    found.put(ROWS, String.valueOf(rows));
    boolean isExact = told.path("ms").isNumber() && told.get("offsets").equals(offsets);
    if (isExact) found.put(TIME, told.get("ms").asText());
    return found;
  }
}
