package io.streamhouse.spark.metrics;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.util.Json;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** The counters of a task that reads or writes. Python sends its part at the end. */
public final class TaskCounters {
  /** The key of Python's counters in schema metadata and in commit messages. */
  public static final String COUNTS_KEY = "streamhouse.counts";

  private final Map<String, Long> counts = new TreeMap<>();

  /** Returns the metrics of a scan. */
  public static CustomMetric[] scanMetrics() {
    return new CustomMetric[] {
      new SegmentsRead(), new SegmentsSkipped(), new StoreRequests(), new BytesFromPython(),
    };
  }

  /** Returns the metrics of a write. */
  public static CustomMetric[] writeMetrics() {
    return new CustomMetric[] {
      new RecordsWritten(), new BytesWritten(), new SegmentsWritten(), new StoreRequests(),
    };
  }

  /** Adds the counters in the metadata of a schema. Returns whether there are any. */
  public boolean addFrom(Schema schema) {
    String text = schema.getCustomMetadata() == null ? null : schema.getCustomMetadata().get(COUNTS_KEY);
    if (text == null) return false;
    addFrom(text);
    return true;
  }

  /** Adds the counters in a pickled commit message, where they are the last text and follow their key. */
  public void addFromMessage(byte[] message) {
    String text = new String(message, StandardCharsets.ISO_8859_1);
    int at = text.lastIndexOf(COUNTS_KEY + "{");
    if (at >= 0) addFrom(text.substring(at + COUNTS_KEY.length(), text.indexOf('}', at) + 1));
  }

  private void addFrom(String text) {
    for (Iterator<Map.Entry<String, JsonNode>> entries = Json.parse(text).fields(); entries.hasNext(); ) {
      Map.Entry<String, JsonNode> count = entries.next();
      add(count.getKey(), count.getValue().asLong());
    }
  }

  public void add(String name, long delta) {
    counts.merge(name, delta, Long::sum);
  }

  public Map<String, Long> counts() {
    return counts;
  }

  public CustomTaskMetric[] toCustomMetrics() {
    return counts.entrySet().stream()
        .map(count -> new TaskMetricValue(count.getKey(), count.getValue()))
        .toArray(CustomTaskMetric[]::new);
  }
}
