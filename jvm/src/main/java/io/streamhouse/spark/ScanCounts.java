package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What a task counts while it reads or writes: Python tells its part at the end. */
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

  /** The metrics of every write. */
  static CustomMetric[] ofWrites() {
    return new CustomMetric[] {
      new RecordsWritten(), new BytesWritten(), new SegmentsWritten(), new StoreRequests(),
    };
  }

  /** Takes the counts in a schema, and says whether there are some. */
  boolean take(Schema schema) {
    String text = schema.getCustomMetadata() == null ? null : schema.getCustomMetadata().get(KEY);
    if (text == null) return false;
    take(text);
    return true;
  }

  /** Takes the counts that stand, behind their key, as the last text in a pickled commit message. */
  void takeFrom(byte[] message) {
    String text = new String(message, StandardCharsets.ISO_8859_1);
    int at = text.lastIndexOf(KEY + "{");
    if (at >= 0) take(text.substring(at + KEY.length(), text.indexOf('}', at) + 1));
  }

  private void take(String text) {
    for (Iterator<Map.Entry<String, JsonNode>> all = JsonTree.parse(text).fields(); all.hasNext(); ) {
      Map.Entry<String, JsonNode> count = all.next();
      add(count.getKey(), count.getValue().asLong());
    }
  }

  void add(String name, long more) {
    counts.merge(name, more, Long::sum);
  }

  Map<String, Long> sums() {
    return counts;
  }

  CustomTaskMetric[] values() {
    return counts.entrySet().stream()
        .map(count -> new TaskCount(count.getKey(), count.getValue()))
        .toArray(CustomTaskMetric[]::new);
  }
}
