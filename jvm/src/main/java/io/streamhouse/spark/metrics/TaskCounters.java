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

/** What a task counts while it reads or writes: Python tells its part at the end. */
public final class TaskCounters {
  /** The key of Python's counts in the metadata of a schema. */
  public static final String COUNTS_KEY = "streamhouse.counts";

  private final Map<String, Long> counts = new TreeMap<>();

  /** The metrics of every scan. */
  public static CustomMetric[] scanMetrics() {
    return new CustomMetric[] {
      new SegmentsRead(), new SegmentsSkipped(), new StoreRequests(), new BytesFromPython(),
    };
  }

  /** The metrics of every write. */
  public static CustomMetric[] writeMetrics() {
    return new CustomMetric[] {
      new RecordsWritten(), new BytesWritten(), new SegmentsWritten(), new StoreRequests(),
    };
  }

  /** Takes the counts in a schema, and says whether there are some. */
  public boolean addFrom(Schema schema) {
    String text = schema.getCustomMetadata() == null ? null : schema.getCustomMetadata().get(COUNTS_KEY);
    if (text == null) return false;
    addFrom(text);
    return true;
  }

  /** Takes the counts that stand, behind their key, as the last text in a pickled commit message. */
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
