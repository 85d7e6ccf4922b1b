package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What a task counts while it reads: Python tells its part at the end, behind the rows. */
final class ScanCounts {
  /** The key of Python's counts in the metadata of a schema. */
  static final String KEY = "streamhouse.counts";

  private final Map<String, Long> counts = new TreeMap<>();

  /** The metrics of every scan. */
  static CustomMetric[] metrics() {
    return new CustomMetric[] {
      new SegmentsRead(), new SegmentsSkipped(), new StoreRequests(), new BytesFromPython(),
    };
  }

  /** Takes the counts in a schema, and says whether there are some. */
  boolean take(Schema schema) {
    String text = schema.getCustomMetadata() == null ? null : schema.getCustomMetadata().get(KEY);
    if (text == null) return false;
    for (Iterator<Map.Entry<String, JsonNode>> all = JsonTree.parse(text).fields(); all.hasNext(); ) {
      Map.Entry<String, JsonNode> count = all.next();
      add(count.getKey(), count.getValue().asLong());
    }
    return true;
  }

  void add(String name, long more) {
    counts.merge(name, more, Long::sum);
  }

  CustomTaskMetric[] values() {
    return counts.entrySet().stream()
        .map(count -> new TaskCount(count.getKey(), count.getValue()))
        .toArray(CustomTaskMetric[]::new);
  }
}
